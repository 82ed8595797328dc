package migapply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// round is one Reconcile.
type round struct {
	*Partition
	ctx     context.Context
	journal journal
	wants   []Want
	jobs    []*job
	// closed is the reason why nothing may be changed now; empty when it may.
	closed string
	// readWell is true when the journal, or that there is none, could be read.
	readWell bool
}

// job is a GPU in a round.
type job struct {
	want   Want
	device *gpu.GPU // nil for a GPU that the last scan did not find
	plan   mig.GPUPlan
	// state and message are the present ones, or those after the work is done.
	state   State
	message string
	// destroy, mode and create are the work that can be done now; ready is true when it is the whole plan. Otherwise it
	// affects no holder: instances without a device are removed, and a pending change of the mode that is not wanted is
	// reverted.
	ready   bool
	destroy []mig.Instance
	mode    *bool
	create  []mig.Placed
	touch   bool // for instances that exist already
	// waits is true when a holder or a program blocks the plan.
	waits bool
	// needsReset is set when the mode waits for a reset.
	needsReset bool
	// calls is true while a call has not returned from the GPU. left is set when the rest of the work is left to a later round.
	calls bool
	left  bool
	// delayed is true when a call has delayed the change by sayAfter or more.
	delayed bool
	// worked is set once the work has begun; then err is its error, and after is the GPU as it is now when there is
	// none.
	worked bool
	err    error
	after  *job
}

func (j *job) busy() bool {
	return len(j.destroy) > 0 || j.mode != nil || len(j.create) > 0 || j.touch
}

// dropWork removes the work of the job.
func (j *job) dropWork() { j.ready, j.destroy, j.mode, j.create, j.touch = false, nil, nil, nil, false }

// stopError ends a round immediately, as if the agent were killed: the agent stops, or a test stops it.
type stopError struct{ error }

func (e *stopError) Unwrap() error { return e.error }

func isStop(err error) bool {
	var stop *stopError
	return errors.As(err, &stop)
}

// step reports that a step is done; its error is a stopError.
func (r *round) step(done Step) error {
	if r.deps.Fault != nil {
		if err := r.deps.Fault(done); err != nil {
			return &stopError{err}
		}
	}
	return r.stopped()
}

// stopped returns a stopError when the agent stops.
func (r *round) stopped() error {
	if err := r.ctx.Err(); err != nil {
		return &stopError{err}
	}
	return nil
}

// Reconcile brings the GPUs as close to what is wanted as is possible now, and returns the status of each in the order
// of their index. Call it when wants, the inventory, the ledger or the result of Deps.Blind have changed, and every few
// seconds as long as a GPU is not Applied. GPUs without a want are left unchanged. While GPUs are changed it takes as
// long as the hardware needs; Statuses shows the progress. When ctx ends it stops at the next step, and the next agent
// continues.
func (p *Partition) Reconcile(ctx context.Context, wants []Want) []Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &round{Partition: p, ctx: ctx, wants: wants}
	if err := r.run(); err != nil {
		p.deps.Log.Info("MIG changes were interrupted; the next agent continues", "reason", err)
	}
	return p.Statuses()
}

// run does a round; its error is a stopError.
func (r *round) run() error {
	// 1. One agent at a time.
	entered, err := r.enter()
	if entered {
		defer r.closeStore()
	}
	if err != nil {
		return err
	}
	// 2. Plan, on a snapshot that is not older than the last change of this agent.
	r.planAll()
	if len(r.unseen) > 0 || slices.ContainsFunc(r.jobs, (*job).busy) {
		if err = r.rescan(); isStop(err) {
			return err
		}
		if err != nil {
			r.closed = cmp.Or(r.closed, fmt.Sprintf("the hardware does not respond: %v", err))
		}
		r.planAll()
	}
	if r.closed != "" {
		r.publish()
		return nil
	}
	// 3. Postpone GPUs that cannot be reset now.
	if err := r.awaitClosed(); err != nil {
		return err
	}
	// 4. Acquire what changes from the ledger, or the free part of it; release the rest.
	if err := r.holdAll(); err != nil {
		return err
	}
	// 5. Carry the plans out.
	if err := r.carryOut(); err != nil {
		return err
	}
	// 6. Remove completed changes from the journal.
	r.publish()
	r.clearJournalFaults()
	return r.closeJournal()
}

// enter acquires the lock and reads the journal, or sets closed to the reason why nothing may be changed. It reports whether the
// lock was acquired.
func (r *round) enter() (bool, error) {
	if !r.deps.Ledger.Writes() {
		r.closed = "another agent of this node writes the ledger"
		return false, nil
	}
	if r.deps.Blind != nil {
		if why := r.deps.Blind(); why != "" {
			r.closed = "it is not known who holds what: " + why
		}
	}
	if c := r.outstanding(allGPUs); c != nil {
		r.closed = c.String()
	}
	if err := r.useStore(); err != nil {
		r.closed = err.Error()
		if !errors.Is(err, errBusy) {
			r.journalFault(unreadable, err)
		}
		return false, nil
	}
	return true, r.readJournal()
}

// The codes of problems with the journal.
const (
	unreadable = "MIG_JOURNAL_UNREADABLE"
	unwritable = "MIG_JOURNAL_UNWRITABLE"
	// The codes of a journal that was renamed.
	corrupt      = "MIG_JOURNAL_CORRUPT"
	otherVersion = "MIG_JOURNAL_VERSION"
)

// rescan scans the hardware; afterwards nothing is unseen.
func (r *round) rescan() error {
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	_, err := r.await(scanWithin, &openCall{}, func(context.Context) error { return r.deps.Inventory.Refresh(ctx) })
	if err == nil {
		clear(r.unseen)
	}
	return err
}

// planAll creates the jobs: from what is wanted, and from changes in progress of other GPUs.
func (r *round) planAll() {
	r.jobs = nil
	snapshot, held := r.deps.Inventory.Current(), r.holdings()
	known := map[gpu.UUID]bool{}
	for _, want := range r.wants {
		if !known[want.UUID] {
			known[want.UUID] = true
			r.jobs = append(r.jobs, r.consider(want, snapshot, held))
		}
	}
	for _, e := range r.journal.GPUs {
		// A GPU that is not found while the driver answers was removed.
		gone := snapshot.DriverPresent() && snapshot.GPU(e.UUID) == nil
		if !known[e.UUID] && !gone {
			want := Want{UUID: e.UUID, Wanted: e.Wanted, Source: e.Source, Claims: e.Claims}
			r.jobs = append(r.jobs, r.consider(want, snapshot, held))
		}
	}
	slices.SortStableFunc(r.jobs, func(a, b *job) int {
		return cmp.Or(cmp.Compare(uint(a.index()), uint(b.index())), strings.Compare(string(a.want.UUID), string(b.want.UUID)))
	})
	for id := range r.tries {
		if !slices.ContainsFunc(r.jobs, func(j *job) bool { return j.want.UUID == id }) {
			delete(r.tries, id)
		}
	}
}

func (j *job) index() int {
	if j.device == nil {
		return -1
	}
	return j.device.Index
}

// consider returns the work on a GPU, and whether it can be done now.
func (r *round) consider(want Want, snapshot *gpu.Snapshot, held *holdings) *job {
	j := &job{want: want, device: snapshot.GPU(want.UUID), state: Waiting}
	open := r.outstanding(want.UUID)
	failed := r.tries[want.UUID]
	if failed != nil && !reflect.DeepEqual(failed.wanted, want.Wanted) {
		delete(r.tries, want.UUID)
		failed = nil
	}
	if j.device == nil {
		j.message = fmt.Sprintf("%s was not found by the last scan. It changes to %s when it is found again.", want.UUID, goal(want))
		return j
	}
	if open != nil {
		r.waitForCall(j, open)
		return j
	}
	if j.device.Health.State == gpu.Gone {
		j.message = fmt.Sprintf("%s does not respond. It changes to %s when it does.", name(j.device), goal(want))
		return j
	}
	if j.device.MIG.Unsure {
		r.unsure(j)
		return j
	}
	now := held.withHolders(j.device, want.Claims)
	j.plan = mig.PlanGPU(now, want.Wanted)
	r.addCleanups(j, now.Instances)
	switch {
	case j.plan.Refused != "":
		j.state = Refused
		j.message = fmt.Sprintf("%s cannot have %s: %s.", name(j.device), goal(want), strings.TrimSuffix(j.plan.Refused, "."))
	case len(j.plan.Blockers) > 0:
		j.waits = true
		j.message = fmt.Sprintf("%s changes to %s when %s.", name(j.device), goal(want), ended(j.plan.Blockers))
	case !j.plan.Changes() && !j.busy():
		j.state = Applied
		j.message = fmt.Sprintf("%s has %s.", name(j.device), goal(want))
		delete(r.tries, want.UUID)
	default:
		j.ready, j.state = true, Changing
		j.destroy = union(j.plan.Destroy, j.destroy)
		j.create = j.plan.Create
		j.mode = cmp.Or(j.mode, j.plan.SetMode)
		j.message = fmt.Sprintf("%s is being changed to %s.", name(j.device), goal(want))
	}
	switch {
	case r.closed != "" && (j.ready || r.unseen[want.UUID]):
		j.state = Waiting
		j.message = fmt.Sprintf("%s does not change to %s yet: %s.", name(j.device), goal(want), r.closed)
		j.dropWork()
	case failed != nil && r.deps.Clock.Now().Before(failed.next):
		failed.report(j)
		j.dropWork()
	}
	return j
}

// addCleanups adds the work that affects no holder and waits for none.
func (r *round) addCleanups(j *job, instances []mig.Instance) {
	for i := range instances {
		if instances[i].UUID == "" && len(instances[i].Holders) == 0 {
			j.destroy = append(j.destroy, instances[i])
		}
	}
	on := j.device.MIG.Enabled
	if j.plan.Refused == "" && j.want.Wanted.Enabled == on && j.device.MIG.PendingEnabled != on {
		j.mode = &on
	}
	j.touch = r.untouched[j.want.UUID] && len(j.device.MIG.Devices) > 0
}

// union returns the instances of both lists, by their number.
func union(a, b []mig.Instance) []mig.Instance {
	all := slices.Clone(a)
	for _, one := range b {
		if !slices.ContainsFunc(a, func(other mig.Instance) bool { return other.GI == one.GI }) {
			all = append(all, one)
		}
	}
	return all
}

// holdAll acquires the devices that each job needs.
func (r *round) holdAll() error {
	if err := r.releaseStrays(); err != nil {
		return err
	}
	for i := range r.jobs {
		if err := r.holdFor(&r.jobs[i]); err != nil {
			return err
		}
	}
	return nil
}

func (r *round) holdFor(at **job) error {
	j := *at
	var err error
	switch {
	case j.ready:
		err = r.hold(j.want.UUID, j.take(r.holdings()))
	case j.waits:
		err = r.block(j)
	case j.plan.UUID != "" && !j.calls:
		err = r.hold(j.want.UUID, nil)
	}
	if blocked, ok := errors.AsType[*ledger.BlockedError](err); ok {
		// A holder acquired a device first, or holds one that the planner does not list.
		j = r.consider(j.want, r.deps.Inventory.Current(), r.holdings())
		if j.ready {
			j.dropWork()
			j.state, j.waits = Waiting, true
			j.message = fmt.Sprintf("%s changes to %s when this holding has ended: %v.", name(j.device), goal(j.want), blocked)
		}
		*at, err = j, r.block(j)
	}
	if err != nil && !isStop(err) {
		j.dropWork()
		j.state = Waiting
		j.message = fmt.Sprintf("%s does not change to %s yet: %v.", name(j.device), goal(j.want), err)
		return nil
	}
	return err
}

// publish publishes the jobs' states.
func (r *round) publish() {
	statuses := make([]Status, 0, len(r.jobs))
	for _, j := range r.jobs {
		plan := j.plan
		plan.UUID, plan.Index, plan.Wanted = j.want.UUID, j.index(), j.want.Wanted
		statuses = append(statuses, Status{UUID: j.want.UUID, Index: j.index(), State: j.state, Message: j.message, Plan: plan, Delayed: j.delayed})
	}
	if reflect.DeepEqual(*r.statuses.Load(), statuses) {
		return
	}
	r.statuses.Store(&statuses)
	if r.deps.Notify != nil {
		r.deps.Notify()
	}
}
