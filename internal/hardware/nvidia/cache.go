package nvidia

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// maxFailed is the number of scans in a row in which a read must fail for the GPU to count as unreadable.
const maxFailed = 3

const (
	codeReadFailed = "GPU_READ_FAILED"
	codeUnreadable = "GPU_UNREADABLE"
)

// cached is the result of a group of calls from the last scan in which all of them succeeded.
type cached[T any] struct {
	value T
	// have is true once there is a value, current while it is of this session and was not invalidated.
	have    bool
	current bool
	// failed counts the scans in a row in which a call failed.
	failed int
	// answered are the calls that returned a part of the value.
	answered map[string]bool
}

// expected returns which calls have to return a value again. A value that the driver no longer has is a fault while the driver is the same:
// for an essential value always, for another until it was so in several scans. That an instance is gone is believed sooner.
func (m *cached[T]) expected(essential bool) expectation {
	settled := !m.current || m.failed >= maxFailed-1
	return expectation{calls: m.answered, exceptGone: settled, none: settled && !essential}
}

// expectation is which calls of a group have to return a value.
type expectation struct {
	calls map[string]bool
	// exceptGone is true when NOT_FOUND is an answer, and none when each code is one.
	exceptGone bool
	none       bool
}

// has reports whether the return code of a call is no answer, since it has had a value before.
func (e expectation) has(call string, ret nvml.Return) bool {
	return e.calls[call] && !e.none && !(e.exceptGone && ret == nvml.ERROR_NOT_FOUND)
}

// invalidate marks the value as outdated. It is still shown until it is read again.
func (m *cached[T]) invalidate() { m.current = false }

// cache holds the cached values of a GPU.
type cache struct {
	facts  cached[facts]
	fabric cached[nvml.GpuFabricInfo]
	mig    cached[migAnswers]
	links  cached[linkCounts]
	fields cached[map[uint32]uint64]
	// checks are the causes that each check found, by its symbol.
	checks map[string]cached[[]gpu.Cause]
	// silent counts the scans in a row in which the GPU did not identify itself.
	silent int
}

func (m *cache) invalidate() {
	m.facts.invalidate()
	m.fabric.invalidate()
	m.mig.invalidate()
	m.links.invalidate()
	m.fields.invalidate()
}

// migAnswers are the MIG state of a GPU, and the instances that the driver's files listed when it was read.
type migAnswers struct {
	mig    gpu.MIG
	listed string
	// noGeometry is the failure to read the MIG geometry; nil when it was read.
	noGeometry *failure
}

// cache returns the cache of a GPU.
func (a *work) cache(id gpu.UUID) *cache {
	m := a.caches[id]
	if m == nil {
		m = &cache{checks: map[string]cached[[]gpu.Cause]{}}
		a.caches[id] = m
	}
	return m
}

// MIGChanged invalidates the MIG state that earlier scans read of a GPU. Call it when the MIG mode or the MIG devices change.
func (a *Adapter) MIGChanged(id gpu.UUID) { a.changedMIG.Store(id, true) }

// group makes calls that belong together. missing is the first failure that may be transient, which the caller must record.
func group[T any](q *caller, read func() T) (answers T, missing *failure) {
	answers, _, missing = groupExpecting(q, expectation{}, read)
	return answers, missing
}

// groupExpecting is group for calls of which some have to return a value. It returns those that did.
func groupExpecting[T any](q *caller, expected expectation, read func() T) (answers T, answered map[string]bool, missing *failure) {
	outer, outerAnswered, outerExpected := q.missing, q.answered, q.expected
	q.missing, q.answered, q.expected = nil, map[string]bool{}, expected
	answers = read()
	missing, answered = q.missing, q.answered
	q.missing, q.answered, q.expected = outer, outerAnswered, outerExpected
	return answers, answered, missing
}

// missingAnswer is a group of calls that failed in this scan.
type missingAnswer struct {
	why failure
	// failed is the number of scans in a row; unreadable is true when no earlier value may be used.
	failed     int
	unreadable bool
	// kept is true when the value of an earlier scan is used.
	kept bool
}

// readCached makes calls that belong together. It returns their values if all succeeded, otherwise those of the last scan in
// which all did. A GPU without essential values is unreadable when no earlier ones may be used.
func readCached[T any](q *caller, c *scannedGPU, m *cached[T], essential bool, read func() T) T {
	fresh, answered, missing := groupExpecting(q, m.expected(essential), read)
	if q.lost != nil || q.broken != nil {
		return fresh
	}
	if missing == nil {
		*m = cached[T]{value: fresh, have: true, current: true, answered: answered}
		return fresh
	}
	m.failed++
	// A call that never succeeded on this driver does not make the scan partial.
	c.gpu.Health.Partial = c.gpu.Health.Partial || essential || m.have || m.failed < maxFailed
	c.missingAnswers = append(c.missingAnswers, missingAnswer{
		why: *missing, failed: m.failed, kept: m.have,
		unreadable: (essential || m.have) && (!m.current || m.failed >= maxFailed),
	})
	if m.have {
		return m.value
	}
	return fresh
}

// transient reports whether the same call may succeed the next time, whatever it returned before.
func transient(ret nvml.Return) bool {
	switch {
	case ret == nvml.SUCCESS, driverGone(ret), unsupported(ret):
		return false
	case ret == nvml.ERROR_GPU_IS_LOST, ret == nvml.ERROR_NO_PERMISSION:
		return false
	}
	return true
}

// readFailures returns one cause for all failed reads of a GPU. A GPU that needs a reset has a cause of its own.
func readFailures(missingAnswers []missingAnswer) []gpu.Cause {
	missingAnswers = slices.DeleteFunc(slices.Clone(missingAnswers), func(d missingAnswer) bool { return d.why.ret == nvml.ERROR_RESET_REQUIRED })
	if len(missingAnswers) == 0 {
		return nil
	}
	var calls []string
	unreadable, kept, failed := false, false, 0
	for _, d := range missingAnswers {
		calls = append(calls, fmt.Sprintf("%s returned %s", d.why.call, codeName(d.why.ret)))
		unreadable = unreadable || d.unreadable
		kept = kept || d.kept
		failed = max(failed, d.failed)
	}
	evidence := strings.Join(slices.Compact(calls), "; ")
	shown := "; the values shown are those of an earlier scan"
	if !kept {
		shown = "; there are no earlier values"
	}
	switch {
	case !unreadable:
		return []gpu.Cause{newCause(codeReadFailed, "a value of the GPU could not be read: "+evidence+shown)}
	case failed >= maxFailed:
		return []gpu.Cause{newCause(codeUnreadable, fmt.Sprintf("the GPU cannot be read in %d scans or more in a row: %s%s", maxFailed, evidence, shown))}
	}
	return []gpu.Cause{newCause(codeUnreadable, "the GPU cannot be read: "+evidence+shown)}
}

// withoutReadFailures returns the causes that are not about failed reads.
func withoutReadFailures(causes []gpu.Cause) []gpu.Cause {
	var out []gpu.Cause
	for _, c := range causes {
		if c.Code != codeReadFailed && c.Code != codeUnreadable && c.Code != codeTimeout {
			out = append(out, c)
		}
	}
	return out
}

// silentGPU returns a GPU that could not be identified because of a transient error, as the last scan read it.
func (a *Adapter) silentGPU(id gpu.UUID, index int, why failure) *scannedGPU {
	m := a.cache(id)
	m.silent++
	c := &scannedGPU{gpu: a.known[id]}
	current := false
	if last := a.gpus[id]; last != nil {
		*c, current = *last, true
	}
	c.gpu.Index = index
	c.gpu.MIG.Unsure = true
	c.gpu.Health.Partial = true
	d := missingAnswer{why: why, failed: m.silent, kept: true, unreadable: !current || m.silent >= maxFailed}
	news := readFailures([]missingAnswer{d})
	if why.hung {
		news = []gpu.Cause{timeoutCause(why.call, a.callDeadline)}
	}
	c.gpu.Health.Causes = append(withoutReadFailures(c.gpu.Health.Causes), news...)
	return c
}

// withoutAnswer returns the result of the last scan when a transient error prevented the enumeration.
func (a *Adapter) withoutAnswer(why failure) gpu.Snapshot {
	a.silent++
	snapshot := *a.latest
	snapshot.GPUs = slices.Clone(a.latest.GPUs)
	d := missingAnswer{why: why, failed: a.silent, kept: true, unreadable: a.silent >= maxFailed}
	for i := range snapshot.GPUs {
		g := &snapshot.GPUs[i]
		g.MIG.Unsure = true
		g.Health.Partial = true
		if g.Health.State != gpu.Gone {
			g.Health.Causes = append(withoutReadFailures(g.Health.Causes), readFailures([]missingAnswer{d})...)
		}
	}
	return snapshot
}

// listedInstances returns the instances of a GPU in the driver's files, as in "gi1/ci0 gi2/ci0"; empty where there are no
// files.
func (a *work) listedInstances(minor int) string {
	dir := path.Join(capabilitiesDir, fmt.Sprintf("gpu%d/mig", minor))
	var listed []string
	for _, name := range a.proc.names(dir) {
		if _, ok := numbered(name, "gi"); !ok {
			continue
		}
		listed = append(listed, name)
		for _, below := range a.proc.names(path.Join(dir, name)) {
			if _, ok := numbered(below, "ci"); ok {
				listed = append(listed, name+"/"+below)
			}
		}
	}
	return strings.Join(listed, " ")
}
