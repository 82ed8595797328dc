package nvidia

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// maxFailed is in how many scans in a row a question may go without an answer before the GPU counts as unreadable.
const maxFailed = 3

const (
	codeReadFailed = "GPU_READ_FAILED"
	codeUnreadable = "GPU_UNREADABLE"
)

// memory is what a group of questions was answered when all of them were answered the last time.
type memory[T any] struct {
	value T
	// have is true once there were answers, current while they are of this session and nothing that voids them happened.
	have, current bool
	// failed counts the scans in a row in which an answer was missing.
	failed int
}

// void says that the answers may not be true any more. They are still what is shown until there are others.
func (m *memory[T]) void() { m.current = false }

// memories are what is remembered of a GPU.
type memories struct {
	facts  memory[facts]
	fabric memory[nvml.GpuFabricInfo]
	mig    memory[migAnswers]
	links  memory[linkCounts]
	fields memory[map[uint32]uint64]
	// checks are the causes that each check found, by its symbol.
	checks map[string][]gpu.Cause
	// silent counts the scans in a row in which the GPU did not identify itself.
	silent int
}

func (m *memories) void() {
	m.facts.void()
	m.fabric.void()
	m.mig.void()
	m.links.void()
	m.fields.void()
}

// migAnswers are a GPU's answers about MIG, and the instances that the driver's files listed at that time.
type migAnswers struct {
	mig    gpu.MIG
	listed string
	// shapeless is the answer that is missing of what the GPU can be partitioned into; nil when there is none.
	shapeless *failure
}

// memories finds what is remembered of a GPU.
func (a *work) memories(id gpu.UUID) *memories {
	m := a.remembered[id]
	if m == nil {
		m = &memories{checks: map[string][]gpu.Cause{}}
		a.remembered[id] = m
	}
	return m
}

// MIGChanged tells that somebody changes the MIG mode or the MIG devices of a GPU: what earlier scans said of them is not
// relied on any more.
func (a *Adapter) MIGChanged(id gpu.UUID) { a.migTold.Store(id, true) }

// section asks questions that belong together; missing is the first answer that did not come for no lasting reason. It is the
// caller's to note.
func section[T any](q *question, ask func() T) (answers T, missing *failure) {
	before := q.missing
	q.missing = nil
	answers = ask()
	missing, q.missing = q.missing, before
	return answers, missing
}

// doubt is a question about a GPU that this scan could not answer.
type doubt struct {
	why failure
	// failed is in how many scans in a row; unreadable is true when nothing can stand for the answer.
	failed     int
	unreadable bool
	// kept is true when an earlier scan's answer stands for it.
	kept bool
}

// settled asks questions that belong together. It returns the answers when all came, and otherwise those of the last scan in
// which all did. A GPU whose essential answers are missing is unreadable when no earlier ones can stand for them.
func settled[T any](q *question, c *card, m *memory[T], essential bool, ask func() T) T {
	fresh, missing := section(q, ask)
	if q.lost != nil || q.broken != nil {
		return fresh
	}
	if missing == nil {
		*m = memory[T]{value: fresh, have: true, current: true}
		return fresh
	}
	m.failed++
	// What this driver never answers is not waited for.
	c.gpu.Health.Partial = c.gpu.Health.Partial || essential || m.have || m.failed < maxFailed
	c.doubts = append(c.doubts, doubt{
		why: *missing, failed: m.failed, kept: m.have,
		unreadable: (essential || m.have) && (!m.current || m.failed >= maxFailed),
	})
	if m.have {
		return m.value
	}
	return fresh
}

// doubtful tells whether a return code means that the same question may be answered the next time.
func doubtful(ret nvml.Return) bool {
	switch {
	case ret == nvml.SUCCESS, gone(ret), unsupported(ret):
		return false
	case ret == nvml.ERROR_GPU_IS_LOST, ret == nvml.ERROR_NO_PERMISSION:
		return false
	}
	return true
}

// causesOf says what is missing of a GPU: one cause for all of it. A GPU that needs a reset has a cause of its own.
func causesOf(doubts []doubt) []gpu.Cause {
	doubts = slices.DeleteFunc(slices.Clone(doubts), func(d doubt) bool { return d.why.ret == nvml.ERROR_RESET_REQUIRED })
	if len(doubts) == 0 {
		return nil
	}
	var calls []string
	unreadable, kept, failed := false, false, 0
	for _, d := range doubts {
		calls = append(calls, fmt.Sprintf("%s returned %s", d.why.call, say(d.why.ret)))
		unreadable = unreadable || d.unreadable
		kept = kept || d.kept
		failed = max(failed, d.failed)
	}
	evidence := strings.Join(slices.Compact(calls), "; ")
	shown := "; what is shown of that is from an earlier scan"
	if !kept {
		shown = "; nothing was known of that before"
	}
	switch {
	case !unreadable:
		return []gpu.Cause{unstamped(codeReadFailed, "a question to the GPU was not answered: "+evidence+shown)}
	case failed >= maxFailed:
		return []gpu.Cause{unstamped(codeUnreadable, fmt.Sprintf("the GPU cannot be read in %d scans or more in a row: %s%s", maxFailed, evidence, shown))}
	}
	return []gpu.Cause{unstamped(codeUnreadable, "the GPU cannot be read: "+evidence+shown)}
}

// withoutDoubts are the causes that are not about missing answers.
func withoutDoubts(causes []gpu.Cause) []gpu.Cause {
	var out []gpu.Cause
	for _, c := range causes {
		if c.Code != codeReadFailed && c.Code != codeUnreadable && c.Code != codeTimeout {
			out = append(out, c)
		}
	}
	return out
}

// silentCard is a GPU that the machine has and that did not identify itself for no lasting reason: as the last scan saw it.
func (a *Adapter) silentCard(id gpu.UUID, index int, why failure) *card {
	m := a.memories(id)
	m.silent++
	c := &card{gpu: a.known[id]}
	current := false
	if last := a.cards[id]; last != nil {
		*c, current = *last, true
	}
	c.gpu.Index = index
	c.gpu.MIG.Unsure = true
	c.gpu.Health.Partial = true
	d := doubt{why: why, failed: m.silent, kept: true, unreadable: !current || m.silent >= maxFailed}
	news := causesOf([]doubt{d})
	if why.hung {
		news = []gpu.Cause{timeoutCause(why.call, a.callDeadline)}
	}
	c.gpu.Health.Causes = append(withoutDoubts(c.gpu.Health.Causes), news...)
	return c
}

// withoutAnswer is what the last scan said, for a driver that did not say how many GPUs there are. why is no lasting reason.
func (a *Adapter) withoutAnswer(why failure) gpu.Snapshot {
	a.silent++
	snapshot := *a.latest
	snapshot.GPUs = slices.Clone(a.latest.GPUs)
	d := doubt{why: why, failed: a.silent, kept: true, unreadable: a.silent >= maxFailed}
	for i := range snapshot.GPUs {
		g := &snapshot.GPUs[i]
		g.MIG.Unsure = true
		g.Health.Partial = true
		if g.Health.State != gpu.Gone {
			g.Health.Causes = append(withoutDoubts(g.Health.Causes), causesOf([]doubt{d})...)
		}
	}
	return snapshot
}

// listedInstances is what the driver's files list of a GPU's instances, as in "gi1/ci0 gi2/ci0"; empty where they do not say.
func (a *work) listedInstances(minor int) string {
	folder := path.Join(capabilitiesDir, fmt.Sprintf("gpu%d/mig", minor))
	var listed []string
	for _, name := range a.proc.names(folder) {
		if _, ok := numbered(name, "gi"); !ok {
			continue
		}
		listed = append(listed, name)
		for _, below := range a.proc.names(path.Join(folder, name)) {
			if _, ok := numbered(below, "ci"); ok {
				listed = append(listed, name+"/"+below)
			}
		}
	}
	return strings.Join(listed, " ")
}
