package migsync

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/core/mig/migtest"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/signal"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// world is a node with two MIG-capable GPUs, as the fakes of Deps return it. It records the actions of the Syncer.
type world struct {
	*Syncer

	mu       sync.Mutex
	state    configwatch.State
	snapshot *gpu.Snapshot
	// outcome is the result of Reconcile for a GPU; Applied when the GPU is not in it.
	outcome map[gpu.UUID]migapply.State
	// delayed are the GPUs that a call of the driver delays.
	delayed  map[gpu.UUID]bool
	statuses []migapply.Status
	faults   []gpu.Cause
	// hang, when not nil, blocks Reconcile until it is closed.
	hang chan struct{}
	held []ledger.Holding
	// kept are the MIG devices of GPU-0 in its status.
	kept []mig.Instance

	did        []string
	reconciles int
	condition  metav1.Condition
	problems   map[string][]gpu.Cause

	config   signal.Broadcast
	hardware signal.Broadcast
	ledger   signal.Broadcast
	changes  signal.Broadcast

	// dir has the state files; fault is called at each step of a write.
	dir   string
	fault func(statefile.Step) error
	// writes is whether the agent is the writer of the ledger.
	writes bool
}

func newWorld(t testing.TB) *world {
	w := &world{dir: t.TempDir(), writes: true,
		snapshot: migtest.TwoGPUs(), outcome: map[gpu.UUID]migapply.State{}, problems: map[string][]gpu.Cause{},
		state: configwatch.State{Config: &v1alpha1.AgentConfig{}, MIG: configwatch.MIG{Known: true}},
	}
	w.renew()
	return w
}

// renew makes the Syncer of the next agent.
func (w *world) renew() {
	report := func(source string, problems ...gpu.Cause) { w.set(func() { w.problems[source] = problems }) }
	w.Syncer = New(Deps{
		Config: configFake{w}, Hardware: hardwareFake{w}, Ledger: ledgerFake{w}, Partition: partitionFake{w}, Node: nodeFake{w},
		Modes: OpenModes(ModesDeps{
			StateDir: w.dir, BootID: "boot", Report: report,
			FileLost: func(source string, result statefile.Result, _ string) { report(source, gpu.Cause{Code: result.Code()}) },
			Fault: func(step statefile.Step) error {
				if w.fault == nil {
					return nil
				}
				return w.fault(step)
			},
		}),
		Settle: func() { w.note("settle") }, Resume: func([]gpu.UUID) { w.note("resume") },
		Report: report, Clock: clock.RealClock{},
	})
}

// start runs the Syncer until the test ends.
func (w *world) start(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	synctest.Wait()
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *world) note(what string) { w.set(func() { w.did = append(w.did, what) }) }

// took returns the actions since the last call.
func (w *world) took() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	did := w.did
	w.did = nil
	return did
}

// reports returns the codes of the problems of a source.
func (w *world) reports(source string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var codes []string
	for _, cause := range w.problems[source] {
		codes = append(codes, cause.Code)
	}
	return codes
}

// relabel makes the Node's label name a layout.
func (w *world) relabel(layout string) {
	w.set(func() { w.state.MIG.Layout = layout })
	w.config.Set()
}

// reconfigure replaces the rules of the configuration in force.
func (w *world) reconfigure(rules ...v1alpha1.GPURule) {
	w.set(func() { w.state.Config = &v1alpha1.AgentConfig{GPUs: rules} })
	w.config.Set()
}

// scan publishes another snapshot.
func (w *world) scan(change func(*gpu.Snapshot)) {
	w.set(func() {
		next := *w.snapshot
		next.GPUs = slices.Clone(next.GPUs)
		change(&next)
		w.snapshot = &next
	})
	w.hardware.Set()
}

type (
	configFake    struct{ *world }
	hardwareFake  struct{ *world }
	ledgerFake    struct{ *world }
	partitionFake struct{ *world }
	nodeFake      struct{ *world }
)

func (f configFake) Current() configwatch.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

func (f configFake) Subscribe() *signal.Subscription { return f.config.Subscribe() }

func (f hardwareFake) Current() *gpu.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.snapshot
}

func (f hardwareFake) Subscribe() *signal.Subscription { return f.hardware.Subscribe() }

func (f ledgerFake) Holdings() []ledger.Holding {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.held)
}

func (f ledgerFake) Writes() bool { return f.writes }

func (f ledgerFake) Subscribe() *signal.Subscription { return f.ledger.Subscribe() }

func (f partitionFake) Reconcile(_ context.Context, wants []migapply.Want) []migapply.Status {
	f.note("reconcile")
	f.mu.Lock()
	hang := f.hang
	f.mu.Unlock()
	if hang != nil {
		<-hang
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reconciles++
	f.statuses = nil
	for _, want := range wants {
		status := migapply.Status{UUID: want.UUID, State: migapply.Applied, Delayed: f.delayed[want.UUID], Message: string(want.UUID) + " has it."}
		if outcome := f.outcome[want.UUID]; outcome != "" {
			status.State, status.Message = outcome, string(want.UUID)+" is "+string(outcome)+"."
		}
		status.Plan.Wanted = want.Wanted
		if want.UUID == "GPU-0" {
			status.Plan.Keep = f.kept
		}
		f.statuses = append(f.statuses, status)
	}
	return slices.Clone(f.statuses)
}

func (f partitionFake) Subscribe() *signal.Subscription { return f.changes.Subscribe() }

func (f partitionFake) Statuses() []migapply.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.statuses)
}

func (f partitionFake) Faults() []gpu.Cause {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.faults
}

func (f nodeFake) SetMIGState(_ context.Context, state string, _ bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.did = append(f.did, "state "+state)
}

func (f nodeFake) SetMIGCondition(status metav1.ConditionStatus, reason, message string) {
	f.set(func() { f.condition = metav1.Condition{Status: status, Reason: reason, Message: message} })
}
