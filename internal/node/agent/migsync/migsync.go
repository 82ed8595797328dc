// Package migsync brings the GPUs to the wanted MIG layout: the one that the Node's label nvidia.com/mig.config names,
// and for the other GPUs the one of the configuration's rules. A GPU with dynamicMIG has no layout: it gets the MIG devices
// that the ledger has holdings of, and MIG is off while a claim holds it whole.
//
// It guarantees that nothing is changed on any GPU while the layout of the label is not known; that a GPU whose MIG
// mode is to change is withheld ([Syncer.Changing]) before the change begins; that the wanted layouts are computed once
// for each change of the configuration or of the hardware, whichever caller requests them; and that the label
// nvidia.com/mig.config.state says "pending" before the first change for a new layout and "success" only when every GPU
// has it. Of a dynamic GPU it guarantees that no MIG device is destroyed that anything holds, that one that nothing holds is
// destroyed with the next attempt, and that no change needs a reset; Ensure returns when an attempt that began after the call
// has found the device. The MIG mode that it has turned on for claims is turned off when the GPU is not dynamic any more, no layout is
// for it, and nothing holds it.
//
// A plan of what MIG devices each GPU is to have follows from its inputs alone, and has no wants while one of them is not known. A GPU is
// under a layout or dynamic, never both, and no want creates a device of one API with the resource name of a device of the other one.
//
// What wakes it: the inventory, the configuration, a call of Ensure, a late answer of the driver, the ledger while there are
// dynamic GPUs, and, while a GPU waits or a change has failed, the ledger and a tick every second. While every GPU is as wanted,
// other holdings change nothing, so that an Allocate is not followed by any work here.
//
// What it writes: MIG devices, through [Partition]; mig-modes.json; the problems of the sources "mig", "mig-layout", "mig-journal" and
// "mig-modes";
// and through [Node] the condition MIGApplied and the label nvidia.com/mig.config.state.
//
// What it never waits for: a holder of a GPU, or a call of the driver beyond the deadlines that migapply sets: after 250 ms a
// call that changes a GPU delays no other GPU. A write of the label is waited for, with the deadline that [Node] sets, since it
// has to be seen before the change. No other actor waits for this one: Changing is computed from memory.
//
// It must not import the agent, a package below it, a vendor's adapter or a front end.
package migsync

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/inventory"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// Interval is the time between two attempts while a GPU waits, or while a change or a write of the label has failed.
const Interval = time.Second

// Config is the configuration; *[configwatch.Watcher] is one.
type Config interface {
	Current() configwatch.State
	Subscribe() *signal.Subscription
}

// Ledger is who holds what.
type Ledger interface {
	Holdings() []ledger.Holding
	// Writes reports whether this agent is the one of the node that writes the ledger.
	Writes() bool
	Subscribe() *signal.Subscription
}

// Partition changes GPUs; *[migapply.Partition] is one.
type Partition interface {
	Reconcile(ctx context.Context, wants []migapply.Want) []migapply.Status
	// Subscribe signals when a later Reconcile can continue a change that an earlier one did not wait for.
	Subscribe() *signal.Subscription
	Statuses() []migapply.Status
	Faults() []gpu.Cause
}

var _ Partition = (*migapply.Partition)(nil)

// Node is the node in the API server.
type Node interface {
	// SetMIGState publishes a state as the label nvidia.com/mig.config.state; an empty one removes the label. With wait
	// it waits a moment for the write. It reports and repeats a failed write itself.
	SetMIGState(ctx context.Context, state string, wait bool)
	// SetMIGCondition sets the condition MIGApplied; an empty status removes it. It must not block.
	SetMIGCondition(status metav1.ConditionStatus, reason, message string)
}

// Deps are the dependencies of a Syncer.
type Deps struct {
	Config Config
	// Hardware is the inventory of the vendor whose GPUs have MIG.
	Hardware  inventory.Hardware
	Ledger    Ledger
	Partition Partition
	Modes     *Modes
	Node      Node
	// Settle brings the use of the devices in line with Changing, and returns when it is in force.
	Settle func()
	// Resume lets the MPS daemons start again that were ended for a change, without those of GPUs that are still changing.
	Resume func(changing []gpu.UUID)
	// Report replaces the problems of a source. It must not block.
	Report func(source string, problems ...gpu.Cause)
	Clock  clock.Clock
}

// Syncer is the actor. Create it with New, start it with Run.
type Syncer struct {
	deps  Deps
	label stateLabel
	// last are the layouts that were wanted last, and claimed what dynamic GPUs were to have.
	last    []migapply.Want
	claimed []migapply.Want
	rounds  *signal.Rounds
	plans   wantsCache
}

// New returns a Syncer.
func New(deps Deps) *Syncer {
	return &Syncer{deps: deps, label: stateLabel{node: deps.Node}, rounds: signal.NewRounds()}
}

// wanted returns what the GPUs are to be.
func (s *Syncer) wanted() *wantPlan {
	return s.plans.Get(s.inputs(s.deps.Config.Current()))
}

// inputs returns what the wanted layouts follow from.
func (s *Syncer) inputs(by configwatch.State) wantInputs {
	return wantInputs{Snapshot: s.deps.Hardware.Current(), Config: by.Config, MIG: by.MIG, Waiting: by.Waiting || by.Pending, TurnedOn: s.deps.Modes.get()}
}

// Computed returns how often the wanted layouts were computed.
func (s *Syncer) Computed() int64 { return s.plans.Computed() }

// Changing returns the GPUs whose MIG mode is about to change or is changing, with the reason. A GPU is among them as
// soon as the change is wanted, not only when Partition begins it: in between, at a start above all, a pod could be
// given the GPU that is about to be partitioned. A dynamic GPU is not among them: its mode changes while claims hold it, and
// the ledger refuses what does not fit. repartitioned are all GPUs that are to have another layout than they have. It never waits
// for a call of the driver, a file or the API server.
func (s *Syncer) Changing(snapshot *gpu.Snapshot) (changing map[gpu.UUID]string, repartitioned map[gpu.UUID]bool) {
	statuses := s.deps.Partition.Statuses()
	changing = migapply.Pending(statuses)
	plan := s.wanted()
	maps.DeleteFunc(changing, func(id gpu.UUID, _ string) bool { return plan.Dynamic[id] })
	for _, status := range statuses {
		at := slices.IndexFunc(plan.Wants, func(want migapply.Want) bool { return want.UUID == status.UUID })
		if status.State == migapply.Changing && changing[status.UUID] != "" && at >= 0 {
			// The reason stays the same from the edit to the result, so that the use of the devices does.
			changing[status.UUID] = modeReason(&plan.Wants[at])
		}
	}
	for id, reason := range plan.Modes {
		given := slices.ContainsFunc(statuses, func(status migapply.Status) bool {
			return status.UUID == id && (status.State == migapply.Failed || status.State == migapply.Refused)
		})
		if snapshot.GPU(id) != nil && !given && changing[id] == "" {
			changing[id] = reason
		}
	}
	return changing, plan.Differing
}

// Layouts returns the GPUs whose layout by another configuration is not the one that they have, and why its layouts cannot be applied
// when both APIs would serve a resource name because of them.
func (s *Syncer) Layouts(by *v1alpha1.AgentConfig) (repartitioned map[gpu.UUID]bool, twoAPIs error) {
	now := s.deps.Config.Current()
	now.Config, now.Waiting, now.Pending = by, false, false
	plan := computeWants(s.inputs(now))
	return plan.Differing, plan.TwoAPIs
}

// AwaitLayout returns when the label of the Node is known. Without a response of the API server it waits for
// [configwatch.AnswerTimeout], after which the label that an earlier agent stored applies.
//
// It is called at a start at which no use of the devices is in force, as after a reboot. A reboot leaves some GPUs
// without their MIG mode, and before the label is known they would be advertised whole.
func (s *Syncer) AwaitLayout(ctx context.Context) {
	changes := s.deps.Config.Subscribe()
	defer changes.Close()
	patience := s.deps.Clock.After(configwatch.AnswerTimeout)
	for expired := false; ; {
		if mig := s.deps.Config.Current().MIG; mig.Known || expired && !mig.Remembered {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-patience:
			expired = true
		case <-changes.C():
		}
	}
}

// Run keeps the GPUs partitioned as wanted until ctx ends. The caller starts it when it is known who holds what.
func (s *Syncer) Run(ctx context.Context) error {
	hardware, config, holdings := s.deps.Hardware.Subscribe(), s.deps.Config.Subscribe(), s.deps.Ledger.Subscribe()
	changes := s.deps.Partition.Subscribe()
	defer changes.Close()
	defer hardware.Close()
	defer config.Close()
	defer holdings.Close()
	// The first signal of each is pending; the first attempt is for both.
	<-hardware.C()
	<-config.C()
	<-changes.C()
	for {
		var again <-chan time.Time
		select {
		case <-holdings.C(): // The attempt reads the holdings; a later change of them is signalled.
		default:
		}
		done := s.reconcile(ctx)
		if !done {
			again = s.deps.Clock.After(Interval)
		}
		for due := false; !due; {
			due = true
			select {
			case <-ctx.Done():
				return nil
			case <-hardware.C():
			case <-config.C():
			case <-changes.C():
			case <-s.rounds.Asked():
			case <-holdings.C():
				due = !done || s.claimsChanged()
			case <-again:
			}
		}
	}
}

// reconcile makes one attempt. It reports whether all GPUs are as wanted, and the label and the file of modes show it.
func (s *Syncer) reconcile(ctx context.Context) (done bool) {
	defer s.rounds.Begin()()
	s.deps.Modes.take(s.deps.Ledger.Writes())
	plan := s.wanted()
	s.deps.Report("mig-layout", plan.Problems...)
	changed := !reflect.DeepEqual(plan.Wants, s.last)
	if changed {
		s.deps.Settle()
	}
	if plan.Layout != "" && len(plan.Differing) > 0 {
		s.label.announce(ctx, changed)
	}
	s.last, s.claimed = plan.Wants, plan.Claimed(s.deps.Ledger.Holdings())
	s.deps.Modes.turnOn(plan.Snapshot(), s.claimed)
	statuses := s.deps.Partition.Reconcile(ctx, slices.Concat(plan.Wants, s.claimed))
	s.deps.Modes.ended(plan, statuses)
	s.deps.Report("mig-journal", s.deps.Partition.Faults()...)
	s.show(plan, statuses)
	s.deps.Settle()
	s.deps.Resume(changing(statuses))
	written := s.label.update(ctx, plan, plan.Static(statuses))
	return written && s.deps.Modes.isSaved() && !slices.ContainsFunc(statuses, func(status migapply.Status) bool { return status.State != migapply.Applied })
}

// changing returns the GPUs whose change is under way.
func changing(statuses []migapply.Status) []gpu.UUID {
	var ids []gpu.UUID
	for _, status := range statuses {
		if status.State == migapply.Changing {
			ids = append(ids, status.UUID)
		}
	}
	return ids
}

// show sets a problem for each GPU that cannot be as wanted, and a condition for all GPUs.
// A dynamic GPU that changes for a claim changes the condition only when it fails: claims come and go. A GPU that is being changed
// changes it only when the change is done, has failed or is delayed.
func (s *Syncer) show(plan *wantPlan, statuses []migapply.Status) {
	var failed, waiting []string
	soon := false
	for _, problem := range plan.Problems {
		failed = append(failed, problem.Message)
	}
	var causes []gpu.Cause
	for _, status := range statuses {
		switch status.State {
		case migapply.Failed, migapply.Refused:
			failed = append(failed, status.Message)
			causes = append(causes, gpu.Cause{Code: "MIG_" + strings.ToUpper(string(status.State)), Message: status.Message})
		case migapply.Waiting, migapply.Changing:
			switch {
			case plan.Dynamic[status.UUID]:
			case status.State == migapply.Changing && !status.Delayed:
				soon = true
			default:
				waiting = append(waiting, status.Message)
			}
		}
	}
	s.deps.Report("mig", causes...)
	switch {
	case len(failed) > 0:
		s.deps.Node.SetMIGCondition(metav1.ConditionFalse, "Failed", strings.Join(failed, "; "))
	case len(waiting) > 0:
		s.deps.Node.SetMIGCondition(metav1.ConditionFalse, "Waiting", strings.Join(waiting, "; "))
	case soon: // The condition changes with the result.
	case len(plan.Static(statuses)) > 0:
		s.deps.Node.SetMIGCondition(metav1.ConditionTrue, "Applied", "every GPU is partitioned as wanted")
	default:
		s.deps.Node.SetMIGCondition("", "", "")
	}
}
