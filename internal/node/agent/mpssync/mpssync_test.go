package mpssync_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/agent/mpssync"
	"github.com/berth-gpu/berth/internal/node/mps"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
)

const gpuA, gpuB gpu.UUID = "GPU-a", "GPU-b"

// supervisor is an MPS supervisor whose daemons start and end immediately.
type supervisor struct {
	mu         sync.Mutex
	wanted     []mps.Wanted
	generation int64
	// gone is the error of every call; nil for none.
	gone error
	// failed are the GPUs whose daemons fail; keeps are those whose daemons do not end.
	failed map[gpu.UUID]bool
	keeps  map[gpu.UUID]bool
	// slow makes the next Set, and late the next Status, wait until it is closed; nil for none.
	slow chan struct{}
	late chan struct{}
	// sets counts the sets, busy those in progress, and asked the calls of Status.
	sets    int
	busy    int
	asked   int
	overlap bool
	watch   func(mps.Report)
}

// Set implements mpssync.Supervisor.
func (s *supervisor) Set(ctx context.Context, wanted []mps.Wanted) (int64, error) {
	s.mu.Lock()
	s.sets++
	s.busy++
	s.overlap = s.overlap || s.busy > 1
	slow := s.slow
	s.slow = nil
	s.mu.Unlock()
	if slow != nil {
		<-slow
	}
	s.mu.Lock()
	s.busy--
	if s.gone != nil {
		defer s.mu.Unlock()
		return mps.NoGeneration, s.gone
	}
	same := slices.Equal(s.wanted, wanted) && s.generation > 0
	if !same {
		s.wanted = wanted
		s.generation++
	}
	generation := s.generation
	s.mu.Unlock()
	if !same {
		s.report() // As over the socket, the report may arrive before the response.
	}
	return generation, ctx.Err()
}

// Status implements mpssync.Supervisor.
func (s *supervisor) Status(context.Context) ([]mps.Status, error) {
	s.mu.Lock()
	s.asked++
	statuses, gone, late := s.statuses(), s.gone, s.late
	s.late = nil
	s.mu.Unlock()
	if late != nil {
		<-late
	}
	return statuses, gone
}

// Watch implements mpssync.Supervisor.
func (s *supervisor) Watch(ctx context.Context, see func(mps.Report)) {
	s.mu.Lock()
	s.watch = see
	s.mu.Unlock()
	s.report()
	<-ctx.Done()
}

// statuses is called with the lock held.
func (s *supervisor) statuses() []mps.Status {
	var statuses []mps.Status
	for _, want := range s.wanted {
		status := mps.Status{GPU: want.GPU, State: mps.Ready, PID: 7, Limits: want.Limits}
		if s.failed[want.GPU] {
			status.State, status.Reason = mps.Failed, "no memory"
		}
		statuses = append(statuses, status)
	}
	for id := range s.keeps {
		if !slices.ContainsFunc(statuses, func(status mps.Status) bool { return status.GPU == id }) {
			statuses = append(statuses, mps.Status{GPU: id, State: mps.Stopping})
		}
	}
	return statuses
}

// report sends the present state to the watcher.
func (s *supervisor) report() {
	s.mu.Lock()
	report, watch, gone := mps.Report{Generation: s.generation, GPUs: s.statuses()}, s.watch, s.gone
	s.mu.Unlock()
	if gone == nil && watch != nil {
		watch(report)
	}
}

// change changes the supervisor and reports the change.
func (s *supervisor) change(edit func()) {
	s.mu.Lock()
	edit()
	s.mu.Unlock()
	s.report()
	synctest.Wait()
}

func (s *supervisor) wants(id gpu.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.wanted, func(w mps.Wanted) bool { return w.GPU == id })
}

// node is a Syncer with its dependencies.
type node struct {
	*mpssync.Syncer
	signal.Broadcast // driver version of the inventory
	t                *testing.T
	supervisor       *supervisor
	unitsChanged     signal.Broadcast
	ledger           signal.Broadcast
	superseded       atomic.Bool

	mu       sync.Mutex
	holdings []gpu.Holding
	units    []offer.Unit
	snapshot *gpu.Snapshot
	// changed counts the calls of Changed.
	changed  int
	problems map[string]string
}

func newNode(t *testing.T, units ...offer.Unit) *node {
	n := &node{
		t: t, units: units, problems: map[string]string{}, supervisor: &supervisor{failed: map[gpu.UUID]bool{}, keeps: map[gpu.UUID]bool{}},
		snapshot: &gpu.Snapshot{Vendors: []gpu.VendorState{{Name: gpu.NVIDIA, Driver: gpu.Driver{Version: "570.1"}}},
			GPUs: []gpu.GPU{{UUID: gpuA}, {UUID: gpuB, Index: 1}}},
	}
	n.Syncer = mpssync.New(mpssync.Deps{
		Units: n.read, UnitsChanged: n.unitsChanged.Subscribe, Hardware: n, Supervisor: n.supervisor, Report: n.report,
		Holdings: func() []gpu.Holding {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.holdings
		},
		HoldingsChanged: n.ledger.Subscribe, Writes: func() bool { return !n.superseded.Load() },
		Changed: func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.changed++
		},
		Clock: clock.RealClock{},
	})
	return n
}

// replicas returns a GPU with MPS replicas.
func replicas(id gpu.UUID) offer.Unit {
	return offer.Unit{Key: gpu.DeviceKey{GPU: id}, Use: offer.Use{Resource: "nvidia.com/gpu.shared", Mode: offer.MPS,
		Replicas: 4, MPSLimits: gpu.MPSLimits{PinnedMemoryMiB: mps.NoLimit, ActiveThreadPercentage: 25}}}
}

// start runs the Syncer as the agent does, until the test ends.
func (n *node) start() {
	n.Prepare(n.t.Context())
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	n.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Error(err)
		}
	})
	synctest.Wait()
}

func (n *node) read() []offer.Unit {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.units
}

// Current implements mpssync.Hardware.
func (n *node) Current() *gpu.Snapshot {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.snapshot
}

func (n *node) report(source string, causes ...gpu.Cause) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.problems, source)
	for _, cause := range causes {
		n.problems[source] = cause.Code + ": " + cause.Message
	}
}

func (n *node) problem(source string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.problems[source]
}

// settle makes units the settled ones.
func (n *node) settle(units ...offer.Unit) {
	n.mu.Lock()
	n.units = units
	n.mu.Unlock()
	n.unitsChanged.Set()
	synctest.Wait()
}

// scan sets the driver version of the last scan; empty for no driver.
func (n *node) scan(version string) {
	n.mu.Lock()
	next := *n.snapshot
	next.Vendors = []gpu.VendorState{{Name: gpu.NVIDIA, Driver: gpu.Driver{Version: version}}}
	n.snapshot = &next
	n.mu.Unlock()
	n.Set()
	synctest.Wait()
}

// wantCounts checks how many sets were sent, and how often Changed was called, since the last call.
func (n *node) wantCounts(event string, sets, changed int) {
	n.t.Helper()
	n.mu.Lock()
	n.supervisor.mu.Lock()
	defer n.mu.Unlock()
	defer n.supervisor.mu.Unlock()
	if n.supervisor.sets != sets || n.changed != changed {
		n.t.Errorf("%s: %d sets and %d changes, want %d and %d", event, n.supervisor.sets, n.changed, sets, changed)
	}
	n.supervisor.sets, n.changed = 0, 0
}

// wantUnready checks the result of Unready; an empty want means that the replicas can be allocated.
func (n *node) wantUnready(id gpu.UUID, want string) {
	n.t.Helper()
	if got := n.Unready(id); want == "" && got != "" || !strings.Contains(got, want) {
		n.t.Errorf("Unready(%s) = %q, want %q", id, got, want)
	}
}

// TestOneSetPerEvent counts: one edit leads to one set, and an event that changes no wanted daemon to none.
func TestOneSetPerEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.wantUnready(gpuA, "not queried yet")
		n.start()
		n.wantCounts("start", 1, 1)
		n.wantUnready(gpuA, "not started yet")
		n.settle(replicas(gpuA))
		n.wantCounts("one edit", 1, 1)
		n.wantUnready(gpuA, "")
		n.settle(replicas(gpuA), offer.Unit{Key: gpu.DeviceKey{GPU: gpuB}, Use: offer.Use{Resource: "nvidia.com/gpu"}})
		n.wantCounts("an edit that does not concern MPS", 0, 0)
		n.scan("570.1")
		n.wantCounts("a change of the inventory", 0, 0)
		n.Unquiesce(mpssync.ForMIG)
		synctest.Wait()
		n.wantCounts("the end of a MIG change that quiesced nothing", 0, 0)
		time.Sleep(time.Hour)
		synctest.Wait()
		n.wantCounts("nothing, as an allocation is", 0, 0)
		n.supervisor.change(func() { n.supervisor.failed[gpuA] = true })
		n.wantCounts("a daemon that fails", 0, 1)
		n.wantUnready(gpuA, "Failed: no memory")
		if got := n.problem("mps-daemons"); !strings.Contains(got, "MPS_DAEMON: the MPS daemon of GPU-a: no memory") {
			t.Errorf("problem %q", got)
		}
		n.supervisor.change(func() { n.supervisor.failed[gpuA] = false })
		n.wantCounts("a daemon that recovers", 0, 1)
		if got := n.problem("mps-daemons"); got != "" {
			t.Errorf("problem %q", got)
		}
		n.settle()
		n.wantCounts("an edit that ends MPS", 1, 1)
		if n.supervisor.wants(gpuA) {
			t.Error("the daemon is still wanted")
		}
	})
}

// TestPrepareFindsRunningDaemons checks that an agent that starts beside a ready daemon reports no replica as
// unhealthy.
func TestPrepareFindsRunningDaemons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, replicas(gpuA))
		n.Prepare(t.Context())
		n.wantUnready(gpuA, "")
		if status, ok := n.Status(gpuA); !ok || status.PID != 7 {
			t.Errorf("Status = %+v, %v", status, ok)
		}
		n.supervisor.sets = 0
		n.start()
		n.wantCounts("start of a prepared agent", 1, n.changed)
	})
}

// TestSupervisorThatGoesAndComesBack checks that the problem is reported and the set is retried while the supervisor is
// missing; one that comes back with another set than the accepted one gets the wanted one immediately.
func TestSupervisorThatGoesAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, replicas(gpuA))
		n.start()
		n.wantCounts("start", 1, n.changed)
		s := n.supervisor
		s.mu.Lock()
		s.gone = fmt.Errorf("%w at control.sock", mps.ErrUnavailable)
		s.mu.Unlock()
		s.watch(mps.Report{Generation: mps.NoGeneration, GPUs: []mps.Status{{GPU: gpuA, State: mps.Failed, Reason: "gone"}}})
		synctest.Wait()
		n.wantCounts("a supervisor that goes", 1, 2)
		n.wantUnready(gpuA, "no MPS daemon: the MPS supervisor does not answer")
		if got := n.problem("mps"); !strings.HasPrefix(got, "MPS_SUPERVISOR: ") {
			t.Errorf("problem %q", got)
		}
		time.Sleep(11 * time.Second)
		synctest.Wait()
		n.wantCounts("two retries", 2, 0)
		s.change(func() { s.gone, s.wanted, s.generation = nil, nil, 0 }) // Another supervisor, without a set.
		n.wantCounts("a supervisor that comes", 1, n.changed)
		n.wantUnready(gpuA, "")
		if got := n.problem("mps"); got != "" || !s.wants(gpuA) {
			t.Errorf("problem %q, wanted %v", got, s.wanted)
		}
		s.change(func() { s.wanted, s.generation = nil, s.generation+1 })
		n.wantCounts("a set of another agent", 1, n.changed)
		if !s.wants(gpuA) {
			t.Error("the set of another agent stays in force")
		}
		s.change(func() { s.failed[gpuA] = true })
		n.wantCounts("a report of the same set", 0, 1)
	})
}

// TestNoSupervisorIsNeeded checks that no problem is reported while no daemon is wanted; a supervisor that appears
// later gets the empty set.
func TestNoSupervisorIsNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		s := n.supervisor
		s.gone = mps.ErrUnavailable
		s.wanted, s.generation = []mps.Wanted{{GPU: gpuB}}, 3 // The set of an earlier agent.
		n.start()
		if got := n.problem("mps"); got != "" {
			t.Errorf("problem %q", got)
		}
		n.wantCounts("start", 1, 1)
		n.scan("570.1")
		time.Sleep(time.Minute)
		n.wantCounts("nothing", 0, 0)
		s.change(func() { s.gone = nil })
		n.wantCounts("a supervisor that starts", 1, n.changed)
		if s.wants(gpuB) {
			t.Error("its old set stays in force")
		}
	})
}

// TestNoDriver checks that nothing is sent without a driver, because the units may still exist.
func TestNoDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, replicas(gpuA))
		n.start()
		n.wantCounts("start", 1, n.changed)
		n.scan("")
		n.settle()
		n.wantCounts("no driver", 0, 0)
		if !n.supervisor.wants(gpuA) {
			t.Error("the daemon was ended")
		}
		n.scan("570.2")
		n.wantCounts("a driver that is back", 1, n.changed)
		if n.supervisor.wants(gpuA) {
			t.Error("the daemon is still wanted")
		}
	})
}

// TestQuiesce checks that the daemon has ended when Quiesce returns, and starts again after Unquiesce by all that have
// quiesced it.
func TestQuiesce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, replicas(gpuA), replicas(gpuB))
		n.start()
		n.wantCounts("start", 1, n.changed)
		for _, by := range []mpssync.Quiescer{mpssync.ForMIG, mpssync.ForReset} {
			if err := n.Quiesce(t.Context(), by, gpuA); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		n.wantCounts("two quiescers", 2, n.changed)
		n.settle(replicas(gpuA))
		if n.supervisor.wants(gpuA) {
			t.Error("an edit starts the daemon of a quiesced GPU")
		}
		n.Unquiesce(mpssync.ForReset, gpuA)
		n.Unquiesce(mpssync.ForMIG)
		synctest.Wait()
		if n.supervisor.wants(gpuA) {
			t.Error("the end of a MIG change starts the daemon of a GPU that is being reset")
		}
		n.wantCounts("the first end", 1, n.changed) // The set without gpuB.
		n.Unquiesce(mpssync.ForReset)
		synctest.Wait()
		n.wantCounts("the second end", 1, n.changed)
		n.wantUnready(gpuA, "")
		if err := n.Quiesce(t.Context(), mpssync.ForReset, gpuB); err != nil {
			t.Error(err)
		}
		n.wantCounts("a GPU without a daemon", 0, 0)
		n.settle(replicas(gpuA), replicas(gpuB))
		if n.supervisor.wants(gpuB) {
			t.Error("a daemon starts on a GPU that is being reset")
		}
	})
}

// TestQuiesceFails checks Quiesce when the daemon does not end, when there is no supervisor, and when the caller's
// context ends.
func TestQuiesceFails(t *testing.T) {
	tests := map[string]struct {
		spoil func(*supervisor)
		want  string
	}{
		"a daemon that does not end": {func(s *supervisor) { s.keeps[gpuA] = true },
			"end the MPS daemon of GPU-a: it still runs after 30s"},
		"no supervisor": {func(s *supervisor) { s.gone = mps.ErrUnavailable },
			"end the MPS daemon of GPU-a: the MPS supervisor does not answer"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, replicas(gpuA), replicas(gpuB))
				n.start()
				n.supervisor.mu.Lock()
				tc.spoil(n.supervisor)
				n.supervisor.mu.Unlock()
				if err := n.Quiesce(t.Context(), mpssync.ForMIG, gpuA); err == nil || err.Error() != tc.want {
					t.Errorf("Quiesce: %v, want %s", err, tc.want)
				}
			})
		})
	}
}

// TestOneSender checks that a slow set, sent before a GPU was quiesced, does not start the GPU's daemon again
// afterwards.
func TestOneSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, replicas(gpuA))
		n.start()
		s := n.supervisor
		slow := make(chan struct{})
		s.mu.Lock()
		s.slow = slow
		s.mu.Unlock()
		n.settle(replicas(gpuA), replicas(gpuB)) // The set is slow, and contains gpuA.
		quiesced := make(chan error, 1)
		go func() { quiesced <- n.Quiesce(t.Context(), mpssync.ForMIG, gpuA) }()
		synctest.Wait()
		select {
		case err := <-quiesced:
			t.Fatalf("Quiesce returned before the slow set: %v", err)
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := n.Quiesce(ctx, mpssync.ForMIG, gpuB); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller whose context ends: %v", err)
		}
		close(slow)
		if err := <-quiesced; err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s.wants(gpuA) {
			t.Error("the daemon of a quiesced GPU is wanted again")
		}
		if s.overlap {
			t.Error("two sets were sent at the same time")
		}
		if len(n.Units()) != 2 {
			t.Errorf("%d units of MPS, want 2: the test shows nothing", len(n.Units()))
		}
	})
}

// TestOldAnswer checks that a response that was sent before a daemon was reported as ready, and arrives after that
// report, has no effect. No further report would correct it.
func TestOldAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := replicas(gpuA)
		held.Use.Mode = offer.Unknown
		n := newNode(t, replicas(gpuB))
		n.start()
		s := n.supervisor
		late := make(chan struct{})
		s.change(func() { s.failed[gpuB] = true })
		s.mu.Lock()
		s.late = late
		s.mu.Unlock()
		n.settle(held, replicas(gpuB)) // It sends a request, and the response reports that the daemon has failed.
		s.change(func() { s.failed[gpuB] = false })
		n.settle(replicas(gpuB)) // This is no reason for another request.
		close(late)
		synctest.Wait()
		n.wantUnready(gpuB, "")
	})
}

// TestUnknownMode checks that a ready daemon shows that a GPU in use is shared through MPS, with the limits that its
// clients have. Nothing is sent while the daemons cannot be queried.
func TestUnknownMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := replicas(gpuA)
		held.Use.Mode, held.Use.ActiveThreadPercentage, held.Use.SingleUser = offer.Unknown, 0, false
		n := newNode(t, held)
		s := n.supervisor
		runs := mps.Wanted{GPU: gpuA, Replicas: 4, Limits: mps.Limits{PinnedMemoryMiB: 500, ActiveThreadPercentage: 30}}
		s.wanted, s.generation, s.gone = []mps.Wanted{runs}, 1, mps.ErrUnavailable
		n.start()
		n.wantCounts("a start without a response", 0, 1)
		if n.problem("mps") == "" {
			t.Error("no problem is reported")
		}
		s.change(func() { s.gone = nil })
		if got := s.wanted; len(got) != 1 || got[0] != runs {
			t.Errorf("wanted is %+v, want %+v", got, runs)
		}
		n.wantUnready(gpuA, "")
		if units := n.Units(); len(units) != 1 || units[0].Use.ActiveThreadPercentage != 30 || !units[0].Use.SingleUser {
			t.Errorf("units of MPS: %+v", units)
		}
	})
}
