package migapply

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestMain keeps temporary directories in memory where it can: the tests save some 10,000 files, and each save waits
// for fsync. A kill is simulated by a returned error, so nothing here depends on a disk.
func TestMain(m *testing.M) {
	const memory = "/dev/shm"
	if unix.Access(memory, unix.W_OK|unix.X_OK) == nil {
		os.Setenv("TMPDIR", memory)
	}
	goleak.VerifyTestMain(m)
}

// story is a node before a change, and the change.
type story struct {
	gpus     int
	are      map[gpu.UUID]string
	replicas map[gpu.UUID]int
	pods     map[string]gpu.DeviceKey
	orphan   string // a pod that the kubelet has forgotten
	busy     []gpu.UUID
	prepare  func(*world)
	become   map[gpu.UUID]string
}

func stories() map[string]story {
	return map[string]story{
		"MIG on, with a reset": {gpus: 1, become: map[gpu.UUID]string{"GPU-0": "2x1g.10gb 1x3g.40gb"}, busy: []gpu.UUID{"GPU-0"}},
		"MIG on, without":      {gpus: 2, become: map[gpu.UUID]string{"GPU-1": "1x7g.80gb"}},
		"MIG off": {gpus: 1, are: map[gpu.UUID]string{"GPU-0": "1x4g.40gb 2x1g.10gb"}, replicas: map[gpu.UUID]int{"GPU-0": 2},
			become: map[gpu.UUID]string{"GPU-0": "off"}},
		"beside held instances": {gpus: 1, are: map[gpu.UUID]string{"GPU-0": "6x1g.10gb"},
			pods:   map[string]gpu.DeviceKey{"a": {GPU: "GPU-0", MIG: "MIG-0-14"}, "b": {GPU: "GPU-0", MIG: "MIG-0-15"}},
			become: map[gpu.UUID]string{"GPU-0": "2x1g.10gb 1x4g.40gb"}},
		"beside an orphan, to devices of the old names": {gpus: 1, are: map[gpu.UUID]string{"GPU-0": "2x1g.10gb 1x2g.20gb 1x3g.40gb"},
			pods: map[string]gpu.DeviceKey{"a": {GPU: "GPU-0", MIG: "MIG-0-44"}}, orphan: "a",
			become: map[gpu.UUID]string{"GPU-0": "4x1g.10gb 1x3g.40gb"}},
		"what a life before left": {gpus: 1, are: map[gpu.UUID]string{"GPU-0": "3x1g.10gb"},
			prepare: func(w *world) {
				w.gpus[0].instances[1].device = false
				w.gpus[0].pending = false
				w.scan()
			},
			become: map[gpu.UUID]string{"GPU-0": "3x1g.10gb"}},
		"several GPUs, one of which must not change": {gpus: 5,
			are:    map[gpu.UUID]string{"GPU-2": "7x1g.10gb", "GPU-3": "1x3g.40gb", "GPU-4": "1x7g.80gb"},
			pods:   map[string]gpu.DeviceKey{"a": {GPU: "GPU-3", MIG: "MIG-3-44"}, "b": {GPU: "GPU-4", MIG: "MIG-4-80"}},
			become: map[gpu.UUID]string{"GPU-0": "1x7g.80gb", "GPU-1": "2x3g.40gb", "GPU-2": "off", "GPU-3": "2x3g.40gb"}},
	}
}

func (s story) begin(t *testing.T) *world {
	w := newWorld(t, t.TempDir(), s.gpus)
	maps.Copy(w.replicas, s.replicas)
	for _, id := range slices.Sorted(maps.Keys(s.are)) {
		w.be(id, s.are[id])
	}
	for _, pod := range slices.Sorted(maps.Keys(s.pods)) {
		if err := w.run(pod, s.pods[pod]); err != nil {
			t.Fatal(err)
		}
	}
	if s.orphan != "" {
		w.pods[s.orphan].orphan = true
		w.compare()
	}
	w.busy = s.busy
	if s.prepare != nil {
		s.prepare(w)
	}
	for _, id := range slices.Sorted(maps.Keys(s.become)) {
		w.want(id, s.become[id], "layout x")
	}
	return w
}

// intact fails when a pod's device was removed.
func (w *world) intact() {
	w.t.Helper()
	now := w.look()
	for pod, p := range w.pods {
		for _, key := range p.keys {
			if whole, device := now.Device(key.Device()); whole == nil || key.MIG != "" && device == nil {
				w.t.Fatalf("%s of pod %s was removed:\n%s%v", key, pod, w.picture(), w.trace)
			}
		}
	}
}

// TestKilledAtEachStep kills the agent at each step of each scenario. For the next agent the change is still wanted, no
// longer wanted, or reverted.
func TestKilledAtEachStep(t *testing.T) {
	for name, s := range stories() {
		t.Run(name, func(t *testing.T) {
			w := s.begin(t)
			before := map[gpu.UUID]string{}
			for id := range s.become {
				before[id] = cmp.Or(s.are[id], "off")
			}
			w.settle()
			w.reached(w.wants)
			w.intact()
			if w.lives != 1 || w.points < 5 {
				t.Fatalf("%d lives, %d points: %v", w.lives, w.points, w.trace)
			}
			for at := 1; at <= w.points; at++ {
				for _, then := range []string{"wanted", "not wanted", "wanted back"} {
					t.Run(fmt.Sprintf("%d, %s", at, then), func(t *testing.T) { killAt(t, s, at, then, before) })
				}
			}
		})
	}
}

func killAt(t *testing.T, s story, at int, then string, before map[gpu.UUID]string) {
	w := s.begin(t)
	w.killAt = at
	old := slices.Clone(w.wants)
	w.reconcile()
	if w.lives != 2 {
		t.Fatalf("did not die at point %d: %v", at, w.trace)
	}
	what := w.trace[len(w.trace)-1]
	begun := slices.Contains(w.trace, string(StepJournalWritten)) && !slices.Contains(w.trace, string(StepJournalRemoved))
	defer func() {
		if t.Failed() {
			t.Logf("killed at %q; then:\n%s%v", what, w.picture(), w.trace)
		}
	}()
	switch then {
	case "not wanted":
		w.wants = nil
	case "wanted back":
		for id, text := range before {
			w.want(id, text, "layout before")
		}
	}
	w.settle()
	w.intact()
	w.clean()
	switch {
	case then != "not wanted":
		w.reached(w.wants)
	case begun:
		w.reached(old)
	}
	// A third agent finds nothing to do.
	w.endAgent()
	w.startAgent()
	points := w.points
	if w.settle(); w.points != points {
		t.Errorf("another agent does something still: %v", w.trace)
	}
}

// TestKilledAgainAndAgain kills each agent one step later than the one before, until nothing is left to do.
func TestKilledAgainAndAgain(t *testing.T) {
	for name, s := range stories() {
		for _, each := range []int{1, 2, 3, 5} {
			t.Run(fmt.Sprintf("%s, after %d", name, each), func(t *testing.T) {
				w := s.begin(t)
				for life := range 300 {
					w.killAt = w.points + each + life/10 // one agent runs long enough to finish
					if w.reconcile(); w.lives == life+1 {
						break
					}
				}
				w.killAt = 0
				w.settle()
				w.reached(w.wants)
				w.intact()
			})
		}
	}
}

// runIsEmpty removes the agent's files below /run and keeps those in /var/lib/berth: the journal and its lock.
func (w *world) runIsEmpty() {
	entries, err := os.ReadDir(w.dir)
	if err != nil {
		w.t.Fatalf("empty /run: %v", err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(strings.TrimPrefix(entry.Name(), "."), JournalFile) || entry.Name() == LockFile {
			continue
		}
		if err := os.RemoveAll(filepath.Join(w.dir, entry.Name())); err != nil {
			w.t.Fatalf("empty /run: %v", err)
		}
	}
}

// TestRebootInTheMiddle loses all of /run, every instance, and the mode where the GPU does not keep it.
func TestRebootInTheMiddle(t *testing.T) {
	for name, s := range stories() {
		t.Run(name, func(t *testing.T) {
			w := s.begin(t)
			w.settle()
			for at := 1; at <= w.points; at++ {
				w := s.begin(t)
				w.killAt = at
				w.reconcile()
				w.endAgent()
				w.runIsEmpty()
				w.boot, w.pods = "another boot", map[string]*fakePod{}
				for _, c := range w.gpus {
					c.enabled, c.instances = c.pending && c.needsReset, nil
					c.pending = c.enabled
				}
				w.scan()
				w.startAgent()
				w.settle()
				w.reached(w.wants)
			}
		})
	}
}
