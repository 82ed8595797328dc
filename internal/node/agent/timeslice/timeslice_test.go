package timeslice_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/agent/timeslice"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

const (
	gpuA, gpuB gpu.UUID = "GPU-a", "GPU-b"
	// unset is the time slice of a GPU before one was set.
	unset = "default"
)

// node is a node with two GPUs: the settled units, the inventory, nvidia-smi and the list of problems.
type node struct {
	t       *testing.T
	dir     string
	settled signal.Broadcast
	claims  signal.Broadcast
	// superseded is true while another agent writes the ledger.
	superseded atomic.Bool

	fault func(timeslice.Step) error

	mu       sync.Mutex
	units    []offer.Unit
	holdings []gpu.Holding
	snapshot *gpu.Snapshot
	// passes counts how often the units were read, which is once per pass; sets how often a time slice was set.
	passes int
	sets   int
	slices map[gpu.UUID]string
	// failing are the GPUs whose time slice cannot be set.
	failing map[gpu.UUID]bool
	// setting is called while a time slice is being set; nil for nothing.
	setting  func(gpu.UUID)
	problems map[string]string
}

func newNode(t *testing.T) *node {
	n := &node{t: t, dir: t.TempDir(), slices: map[gpu.UUID]string{gpuA: unset, gpuB: unset},
		failing: map[gpu.UUID]bool{}, problems: map[string]string{}}
	n.snapshot = snapshotOf(gpuA, gpuB)
	return n
}

func snapshotOf(ids ...gpu.UUID) *gpu.Snapshot {
	snapshot := &gpu.Snapshot{Vendors: []gpu.VendorState{{Name: gpu.NVIDIA, Driver: gpu.Driver{Version: "570.1"}}}}
	for i, id := range ids {
		snapshot.GPUs = append(snapshot.GPUs, gpu.GPU{UUID: id, Index: i})
	}
	return snapshot
}

// sliced is a GPU with time-sliced replicas.
func sliced(id gpu.UUID, slice string) offer.Unit {
	return offer.Unit{Key: gpu.DeviceKey{GPU: id}, Use: offer.Use{Resource: "nvidia.com/gpu", Mode: offer.TimeSlicing,
		Replicas: 2, TimeSlice: slice}}
}

// run starts a Syncer that ends when end is called, or with the test.
func (n *node) run() (s *timeslice.Syncer, end func()) {
	s = timeslice.New(timeslice.Deps{
		Units: n.read, Settled: n.settled.Subscribe, Holdings: n.held, HoldingsChanged: n.claims.Subscribe, Writes: func() bool { return !n.superseded.Load() }, Hardware: n, Program: n,
		StateDir: n.dir, BootID: "boot", FileLost: n.lost, Report: n.report, Fault: n.fault,
		Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Error(err)
		}
	})
	synctest.Wait()
	return s, end
}

// dieAt runs a Syncer that is killed at a step.
func (n *node) dieAt(step timeslice.Step) {
	n.fault = func(at timeslice.Step) error {
		if at == step {
			return context.Canceled
		}
		return nil
	}
	_, end := n.run()
	end()
	n.fault = nil
}

func (n *node) read() []offer.Unit {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.passes++
	return n.units
}

func (n *node) held() []gpu.Holding {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.holdings
}

// Current implements timeslice.Hardware.
func (n *node) Current() *gpu.Snapshot {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.snapshot
}

// SetTimeSlice implements timeslice.Program.
func (n *node) SetTimeSlice(_ context.Context, id gpu.UUID, slice string) error {
	n.mu.Lock()
	setting := n.setting
	n.mu.Unlock()
	if setting != nil {
		setting(id)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sets++
	if n.failing[id] {
		return errors.New("Unable to set timeslice: Unknown Error")
	}
	n.slices[id] = slice
	return nil
}

func (n *node) report(source string, causes ...gpu.Cause) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.problems, source)
	for _, cause := range causes {
		n.problems[source] = cause.Code
	}
}

func (n *node) lost(source string, result statefile.Result, _ string) {
	n.report(source, gpu.Cause{Code: result.Code()})
}

// settle makes units the settled ones.
func (n *node) settle(units ...offer.Unit) {
	n.mu.Lock()
	n.units = units
	n.mu.Unlock()
	n.settled.Set()
	synctest.Wait()
}

// scan sets the snapshot of the last scan.
func (n *node) scan(snapshot *gpu.Snapshot) {
	n.mu.Lock()
	n.snapshot = snapshot
	n.mu.Unlock()
	n.settled.Set()
	synctest.Wait()
}

// want checks the time slices of both GPUs.
func (n *node) want(a, b string) {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if diff := cmp.Diff(map[gpu.UUID]string{gpuA: a, gpuB: b}, n.slices); diff != "" {
		n.t.Errorf("time slices (-want +got):\n%s", diff)
	}
}

// wantCounts checks how often the actor has worked since the last call.
func (n *node) wantCounts(event string, passes, sets int) {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.passes != passes || n.sets != sets {
		n.t.Errorf("%s: %d passes that set %d time slices, want %d and %d", event, n.passes, n.sets, passes, sets)
	}
	n.passes, n.sets = 0, 0
}

// wantNoted checks which GPUs the file lists.
func (n *node) wantNoted(want ...gpu.UUID) {
	n.t.Helper()
	file := statefile.File[map[gpu.UUID]string]{Path: filepath.Join(n.dir, timeslice.FileName),
		Format: "berth-timeslices", Version: 1, BootID: "boot"}
	noted, result := file.Read()
	if got := slices.Sorted(maps.Keys(noted)); result.Lost() || !slices.Equal(got, want) {
		n.t.Errorf("the file lists %v (%v), want %v", got, result.Err, want)
	}
}

// TestOnePassPerEvent counts: each event leads to one pass, and a pass sets only what has changed.
func TestOnePassPerEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		s, end := n.run()
		defer end()
		n.wantCounts("start", n.passes, 0) // At most one pass for each of the three sources.
		n.settle(sliced(gpuA, "short"))
		n.wantCounts("one edit", 1, 1)
		n.want("short", unset)
		n.scan(n.Current())
		n.wantCounts("a change of the inventory", 1, 0)
		time.Sleep(29 * time.Second)
		synctest.Wait()
		n.wantCounts("nothing, as an allocation is", 0, 0)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		n.wantCounts("the regular check", 1, 1)
		s.WereReset([]gpu.UUID{gpuA})
		synctest.Wait()
		n.wantCounts("a reset", 1, 1)
		n.settle(sliced(gpuB, "long"))
		n.wantCounts("an edit that moves the rule", 1, 2)
		n.want(unset, "long")
		n.settle()
		n.wantCounts("an edit that removes the rule", 1, 1)
		n.want(unset, unset)
		n.wantNoted()
		time.Sleep(time.Hour)
		synctest.Wait()
		n.wantCounts("nothing to check", 0, 0)
	})
}

// TestKilledAtEachStep checks that an agent that is killed while it sets a time slice leaves it unchanged or recorded,
// so that the next agent sets the wanted one.
func TestKilledAtEachStep(t *testing.T) {
	for _, step := range []timeslice.Step{timeslice.Noted, timeslice.Set} {
		t.Run(string(step), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.units = []offer.Unit{sliced(gpuA, "short")}
				n.dieAt(step)
				n.wantNoted(gpuA)
				n.units = nil
				_, end := n.run()
				defer end()
				n.want(unset, unset)
				n.wantNoted()
				if n.sets == 0 {
					t.Error("the next agent did not set the default")
				}
			})
		})
	}
}

// TestResetWhileSetting checks that a reset while nvidia-smi runs, which may have removed the time slice, leads to
// setting it again.
func TestResetWhileSetting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		s, end := n.run()
		defer end()
		n.setting = func(gpu.UUID) {
			n.mu.Lock()
			n.setting = nil
			n.mu.Unlock()
			s.WereReset([]gpu.UUID{gpuA})
		}
		n.wantCounts("start", n.passes, 0)
		n.settle(sliced(gpuA, "medium"))
		n.wantCounts("an edit with a reset", 2, 2)
		n.want("medium", unset)
	})
}

// TestGPUThatReturns checks that a GPU that does not respond is not changed, and gets its time slice when it responds
// again.
func TestGPUThatReturns(t *testing.T) {
	gone := snapshotOf(gpuA, gpuB)
	gone.GPUs[0].Health.State = gpu.Gone
	noDriver := snapshotOf(gpuA, gpuB)
	noDriver.Vendors = nil
	for name, snapshot := range map[string]*gpu.Snapshot{"not found": snapshotOf(gpuB), "gone": gone, "no driver": noDriver} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.units = []offer.Unit{sliced(gpuA, "short")}
				_, end := n.run()
				defer end()
				n.want("short", unset)
				n.scan(snapshot)
				n.mu.Lock()
				n.sets, n.slices[gpuA] = 0, unset // The driver loses the setting.
				n.mu.Unlock()
				time.Sleep(time.Minute)
				if n.sets != 0 {
					t.Errorf("%d time slices were set while the GPU was away", n.sets)
				}
				n.scan(snapshotOf(gpuA, gpuB))
				n.want("short", unset)
			})
		})
	}
}

// TestFailure checks that the failure of one GPU is reported and retried, and does not delay the other one.
func TestFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.failing[gpuA] = true
		n.units = []offer.Unit{sliced(gpuA, "short"), sliced(gpuB, "long")}
		_, end := n.run()
		defer end()
		n.want(unset, "long")
		if n.problems["timeslice"] != "TIME_SLICE" {
			t.Errorf("problems: %v", n.problems)
		}
		n.mu.Lock()
		n.failing[gpuA] = false
		n.mu.Unlock()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		n.want("short", "long")
		if len(n.problems) != 0 {
			t.Errorf("problems: %v", n.problems)
		}
		n.wantNoted(gpuA, gpuB)
	})
}

// TestLostFile checks that, without the record, the wanted time slice of each GPU is set, and the damaged file is kept.
func TestLostFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		path := filepath.Join(n.dir, timeslice.FileName)
		if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		n.slices[gpuA] = "long" // The time slice from before the damage.
		n.units = []offer.Unit{sliced(gpuB, "short")}
		_, end := n.run()
		defer end()
		n.want(unset, "short")
		n.wantNoted(gpuB)
	})
}

// TestUnwritableFile checks that no time slice is changed that could not be recorded before.
func TestUnwritableFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.dir = filepath.Join(n.dir, "file")
		if err := os.WriteFile(n.dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		n.units = []offer.Unit{sliced(gpuA, "short")}
		_, end := n.run()
		defer end()
		n.want(unset, unset)
		if n.problems["timeslice"] != "TIME_SLICE" {
			t.Errorf("problems: %v", n.problems)
		}
	})
}

// TestUnknownMode checks that the time slice of a GPU in use is kept while its sharing mode is unknown.
func TestUnknownMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.units = []offer.Unit{sliced(gpuA, "short")}
		_, end := n.run()
		defer end()
		held := sliced(gpuA, "")
		held.Use.Mode = offer.Unknown
		n.settle(held)
		n.want("short", unset)
		n.settle()
		n.want(unset, unset)
	})
}
