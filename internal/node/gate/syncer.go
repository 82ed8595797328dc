package gate

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gate"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/podwatch"
	"github.com/berth-gpu/berth/internal/node/signal"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

const (
	// waitingTick, startingTick and validatedTick are the times between two looks without a signal: startingTick while the spec is
	// written and the kubelet registers the devices.
	waitingTick   = 2 * time.Second
	startingTick  = 500 * time.Millisecond
	validatedTick = 30 * time.Second
	// settle is how long further signals of one cause are waited for.
	settle = 20 * time.Millisecond
	// podsWithin bounds the wait for the pods of the node at the start: which of them are validation pods.
	podsWithin = 3 * time.Second
	podsStep   = 50 * time.Millisecond
	// taintWithin is the time after which the need for the taint is looked at again, while it is not written.
	taintWithin = 5 * time.Second
	// source is the source of the gate's problem.
	source = "gate"
)

// Node writes the objects of the API. Only AwaitGateTaint waits.
type Node interface {
	SetReady(nodeapi.NodeCondition)
	SetGateTaint(nodeapi.GateTaint)
	// GateTaintWritten reports whether the Node has what SetGateTaint was given last.
	GateTaintWritten() bool
	AwaitGateTaint(context.Context, nodeapi.GateTaint) error
}

// Pods are the pods of the node.
type Pods interface {
	Pod(uid string) (podwatch.Pod, podwatch.State)
	Validations() (pods []podwatch.Validation, known bool)
	// Resolve finds out which of the pods have ended, by one consistent list.
	Resolve(ctx context.Context, uids []string) error
}

// Deps are the dependencies of a Syncer.
type Deps struct {
	// Settings returns the settings of the gate, complete.
	Settings func() v1alpha1.Gate
	// Observe returns what other packages know of the node. It may read files of the kernel and of the host.
	Observe func() Inputs
	// Holdings are those of the ledger.
	Holdings func() []gpu.Holding
	Pods     Pods
	Changed  []func() *signal.Subscription
	StateDir string
	BootID   string
	// Files makes the files of other programs those of a state, which show them how far the node is.
	Files func(gate.State) error
	Node  Node
	// Report replaces the problems of a source; FileLost reports a state file that could not be used. They must not block.
	Report   func(source string, problems ...gpu.Cause)
	FileLost func(source string, result statefile.Result, without string)
	Clock    clock.WithTicker
}

// Syncer is the actor. Make it with New, call awaitRegistration, start it with Run.
type Syncer struct {
	deps Deps
	file statefile.File[kept]
	uses users
	// decided is closed when there was a decision.
	decided chan struct{}
	once    sync.Once
	// unsaved is true while the file does not have kept.
	unsaved bool

	// tainting is true when the last decision was for the taint.
	tainting bool

	mu      sync.Mutex
	kept    kept
	status  *v1alpha1.GateStatus
	changed signal.Broadcast
}

// kept is what the next agent of the boot has to know.
type kept struct {
	Record gate.Record `json:"record"`
	// State and Code are those of the last decision, and Since is when they were first decided.
	State gate.State `json:"state,omitempty"`
	Code  string     `json:"code,omitempty"`
	Since time.Time  `json:"since,omitzero"`
}

// fileName is the name of the state file.
const fileName = "gate.json"

// Open returns a Syncer with what an earlier agent of the boot has left.
func Open(deps Deps) *Syncer {
	s := &Syncer{deps: deps, decided: make(chan struct{}), file: statefile.File[kept]{
		Path: filepath.Join(deps.StateDir, fileName), What: "the state of the gate", Format: "berth-gate", Version: 1, BootID: deps.BootID,
	}}
	s.uses.pods = deps.Pods
	before, result := s.file.Load()
	s.kept = before
	if result.Lost() {
		deps.FileLost("gate-file", result, "the node is validated again when its GPUs are free")
	}
	return s
}

// Remove removes the files of a Syncer from the state directory.
func Remove(stateDir string) error { return statefile.Remove(filepath.Join(stateDir, fileName)) }

// Status returns the state of the gate; nil while it is off, on a node without GPUs, and before the first decision.
func (s *Syncer) Status() *v1alpha1.GateStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Decided is closed when there was a first decision. Before, a Status of nil says nothing.
func (s *Syncer) Decided() <-chan struct{} { return s.decided }

// Subscribe signals changes of Status.
func (s *Syncer) Subscribe() *signal.Subscription { return s.changed.Subscribe() }

// awaitRegistration returns when devices may be advertised: when the Node has the taint, or needs none, because the node has no GPUs, is
// in use, or was validated in this boot. Without the API server it waits for it, since a pod could otherwise come before the taint; no
// pod that the node does not have yet can come without the API server either. The ledger must have been compared with the node.
func (s *Syncer) awaitRegistration(ctx context.Context) {
	for ctx.Err() == nil {
		settings := s.deps.Settings()
		facts, _ := observeFacts(s.deps.Observe())
		if settings.Mode != v1alpha1.GateEnforce || !facts.GPUs || s.kept.Record.By != "" || !s.kept.Record.Closed() && s.inUseAtStart(ctx) {
			return
		}
		// Saved before the taint is there: an agent that ends in between leaves no time in which a pod that tolerates it opens the node.
		next := s.kept
		next.Record.Tainted = true
		s.save(next)
		// The API server may refuse the taint because the settings have changed.
		attempt, cancel := context.WithTimeout(ctx, taintWithin)
		err := s.deps.Node.AwaitGateTaint(attempt, nodeapi.GateTaint{Key: settings.TaintKey, Wanted: true})
		cancel()
		if err == nil {
			return
		}
	}
}

// Before returns a function that calls begin when devices may be advertised.
func (s *Syncer) Before(begin func()) func(context.Context) {
	return func(ctx context.Context) {
		s.awaitRegistration(ctx)
		begin()
	}
}

// inUseAtStart reports whether pods hold devices. It waits a moment for the pods of the node, when a holder may be a validation pod, or
// one that has ended.
func (s *Syncer) inUseAtStart(ctx context.Context) bool {
	holdings := s.deps.Holdings()
	for deadline := s.deps.Clock.Now().Add(podsWithin); len(holdings) > 0; {
		if _, known := s.deps.Pods.Validations(); known || !s.deps.Clock.Now().Before(deadline) {
			break
		}
		select {
		case <-ctx.Done():
			return true
		case <-s.deps.Clock.After(podsStep):
		}
	}
	var holders []string
	for i := range holdings {
		holders = append(holders, uids(&holdings[i])...)
	}
	holders = slices.DeleteFunc(holders, func(uid string) bool { return uid == "" })
	ctx, cancel := context.WithTimeout(ctx, podsWithin)
	defer cancel()
	_ = s.deps.Pods.Resolve(ctx, holders) // What stays unknown counts as in use.
	return s.uses.inUse(holdings)
}

// Run keeps the gate until ctx ends. It must not run before the ledger was compared with the node.
func (s *Syncer) Run(ctx context.Context) error {
	wake := signal.New()
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		_ = signal.Join(ctx, wake, s.deps.Changed...)
	}()
	defer func() { <-joined }()
	for {
		next := s.decide()
		select {
		case <-ctx.Done():
			return nil
		case <-wake.C():
			select {
			case <-ctx.Done():
				return nil
			case <-s.deps.Clock.After(settle):
			}
		case <-s.deps.Clock.After(next):
		}
	}
}

// decide decides once and returns the time until the next look.
func (s *Syncer) decide() time.Duration {
	settings, now := s.deps.Settings(), s.deps.Clock.Now()
	facts, known := observeFacts(s.deps.Observe())
	if !known {
		// What an earlier agent of the boot has validated stays so until the spec was read.
		facts.Key = s.kept.Record.Key
	}
	facts.InUse = s.uses.inUse(s.deps.Holdings())
	pods, _ := s.deps.Pods.Validations()
	var seen bool
	facts.Outcome, seen = judgeValidation(pods, facts.Key)
	if s.kept.State == gate.Held && s.kept.Code != gate.HeldByPod && !seen {
		facts.Waited = now.Sub(s.kept.Since)
	}
	decision := gate.Decide(gate.Settings{
		Mode: gate.Mode(settings.Mode), Timeout: settings.Timeout.Duration, Opens: settings.OnTimeout == v1alpha1.GateOpen,
	}, facts, s.kept.Record)
	closed := s.kept.Record.Tainted || s.tainting && s.deps.Node.GateTaintWritten()
	s.tainting = decision.Tainted
	// A pod that gets a GPU before the Node has the taint has not tolerated it.
	decision.Record.Tainted = decision.Record.Tainted && closed
	s.keep(decision, now)
	s.files(decision.State)
	s.publish(settings, decision, facts.Key)
	s.once.Do(func() { close(s.decided) })
	switch decision.State {
	case gate.Validated, gate.None:
		return validatedTick
	case gate.RuntimeReady, gate.SpecReady:
		return startingTick
	}
	if decision.Tainted && !closed {
		return startingTick
	}
	return waitingTick
}

// keep saves a decision. A file that cannot be written is a problem, and only that: the next agent validates the node again. The next
// decision, which follows within 30 seconds, writes it again.
func (s *Syncer) keep(d gate.Decision, now time.Time) {
	next := kept{Record: d.Record, State: d.State, Code: d.Stop.Code, Since: s.kept.Since}
	// The time in which a held node waits for an operator does not begin again when the waiting gets its code.
	if next.State != s.kept.State || next.Code != s.kept.Code && next.Code != gate.NoOperator {
		next.Since = now
	}
	s.save(next)
}

// save replaces what the next agent has to know, and writes it when it has changed.
func (s *Syncer) save(next kept) {
	if same(next, s.kept) && !s.unsaved {
		return
	}
	s.kept = next
	err := s.file.Save(next)
	if s.unsaved = err != nil; s.unsaved {
		s.deps.Report("gate-file", gpu.Cause{Code: "STATE_UNWRITABLE", Message: err.Error()})
		return
	}
	s.deps.Report("gate-file")
}

func same(a, b kept) bool {
	failed := func(r gate.Record) gate.Stop {
		if r.Failed == nil {
			return gate.Stop{}
		}
		return *r.Failed
	}
	return a.State == b.State && a.Code == b.Code && a.Since.Equal(b.Since) && a.Record.Key == b.Record.Key && a.Record.By == b.Record.By &&
		a.Record.FailedKey == b.Record.FailedKey && a.Record.Tainted == b.Record.Tainted && failed(a.Record) == failed(b.Record)
}

// files brings the files in line with the state.
func (s *Syncer) files(state gate.State) {
	if err := s.deps.Files(state); err != nil {
		s.deps.Report("validation-files", gpu.Cause{Code: "STATE_UNWRITABLE", Message: err.Error()})
		return
	}
	s.deps.Report("validation-files")
}

// publish passes the decision on.
func (s *Syncer) publish(settings v1alpha1.Gate, d gate.Decision, key string) {
	s.deps.Node.SetGateTaint(nodeapi.GateTaint{Key: settings.TaintKey, Wanted: d.Tainted})
	if d.State == gate.None {
		s.deps.Node.SetReady(nodeapi.NodeCondition{})
		s.deps.Report(source)
		s.set(nil)
		return
	}
	status := &v1alpha1.GateStatus{
		State: v1alpha1.GateState(d.State), Since: metav1.NewTime(s.kept.Since), Mode: settings.Mode, TaintKey: settings.TaintKey, Tainted: d.Tainted,
		Code: d.Stop.Code, Message: d.Stop.Message, Key: key, By: v1alpha1.GateBy(d.By),
	}
	if d.State == gate.Validated {
		status.Message = validatedBy(d.By)
	}
	s.deps.Node.SetReady(condition(status))
	s.report(status)
	s.set(status)
}

// validatedBy says who validated the node.
func validatedBy(by gate.By) string {
	switch by {
	case gate.ByPod:
		return "a pod has used each device"
	case gate.ByAgent:
		return "the GPUs were in use; a pod validates them when they are free"
	}
	return "no operator came in time, and gate.onTimeout is open"
}

// condition is the Node's condition. Its reason is the code where there is one.
func condition(status *v1alpha1.GateStatus) nodeapi.NodeCondition {
	made := nodeapi.NodeCondition{OK: status.State == v1alpha1.GateValidated, Reason: string(status.State), Message: status.Message}
	if status.Code != "" {
		made.Reason, made.Message = status.Code, string(status.State)+": "+status.Message
	}
	return made
}

// ours are the codes that no other source reports.
func ours(code string) bool {
	return len(code) > 5 && code[:5] == "GATE_" || len(code) > 9 && code[:9] == "VALIDATE_"
}

// report reports the problem of a node that waits; those that other packages have found are reported by them.
func (s *Syncer) report(status *v1alpha1.GateStatus) {
	if !ours(status.Code) {
		s.deps.Report(source)
		return
	}
	s.deps.Report(source, gpu.Cause{Code: status.Code, Message: status.Message})
}

// set replaces the status.
func (s *Syncer) set(status *v1alpha1.GateStatus) {
	s.mu.Lock()
	changed := (s.status == nil) != (status == nil) || status != nil && *status != *s.status
	s.status = status
	s.mu.Unlock()
	if changed {
		s.changed.Set()
	}
}
