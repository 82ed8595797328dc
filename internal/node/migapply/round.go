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
	desk    *desk
	journal journal
	wants   []Want
	jobs    []*job
	// closed says why nothing may be changed now; empty when it may.
	closed string
	// readWell is true when the journal, or that there is none, could be read.
	readWell bool
}

// job is a card in a round.
type job struct {
	want Want
	card *gpu.GPU // nil for one that the last scan did not find
	plan mig.GPUPlan
	// state and message are what is so now, or once the work is done.
	state   State
	message string
	// destroy, mode and create are the work that can be done now; ready says that it is
	// the whole plan. Otherwise it is what disturbs nobody: instances without a device are removed, a
	// pending change of the mode that is not wanted is taken back.
	ready   bool
	destroy []mig.Instance
	mode    *bool
	create  []mig.Placed
	touch   bool // of instances that are there already
	// waits is true when somebody is in the way of the plan.
	waits bool
	// needsReset is set when the mode waits for a reset.
	needsReset bool
	// worked is set once the work has begun; then err says what went wrong, and
	// otherwise after is the card as it is now.
	worked bool
	err    error
	after  *job
}

func (j *job) busy() bool {
	return len(j.destroy) > 0 || j.mode != nil || len(j.create) > 0 || j.touch
}

// rest drops the work.
func (j *job) rest() { j.ready, j.destroy, j.mode, j.create, j.touch = false, nil, nil, nil, false }

// stopError ends a round on the spot, as death would: the agent leaves, or a test kills it.
type stopError struct{ error }

func (e *stopError) Unwrap() error { return e.error }

func isStop(err error) bool {
	var stop *stopError
	return errors.As(err, &stop)
}

// step says that a step is done; its error is a stopError.
func (r *round) step(done Step) error {
	if r.deps.Fault != nil {
		if err := r.deps.Fault(done); err != nil {
			return &stopError{err}
		}
	}
	return r.left()
}

// left tells whether the agent leaves.
func (r *round) left() error {
	if err := r.ctx.Err(); err != nil {
		return &stopError{err}
	}
	return nil
}

// Reconcile brings the cards closer to what is wanted, as far as can be done now, and says
// how far each is, in the order of their index. It is to be called when wants, the inventory, the ledger
// or what Deps.Blind says have changed, and every few seconds as long as a card is not
// Applied. Cards without a want are left alone. While cards are changed it takes as
// long as the hardware does; Statuses then shows them. When ctx ends it stops at the
// next step, and the next agent goes on.
func (p *Partition) Reconcile(ctx context.Context, wants []Want) []Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &round{Partition: p, ctx: ctx, wants: wants}
	if err := r.run(); err != nil {
		p.deps.Log.Info("MIG changes are interrupted; the next agent goes on", "why", err)
	}
	return p.Statuses()
}

// run does a round; its error is a stopError.
func (r *round) run() error {
	// 1. One agent at a time.
	err := r.enter()
	if r.desk != nil {
		defer r.desk.close()
	}
	if err != nil {
		return err
	}
	// 2. What is to be done, on a picture that is not older than our own last change.
	r.planAll()
	if len(r.unseen) > 0 || slices.ContainsFunc(r.jobs, (*job).busy) {
		if err = r.rescan(); isStop(err) {
			return err
		}
		if err != nil {
			r.closed = cmp.Or(r.closed, fmt.Sprintf("the hardware does not answer: %v", err))
		}
		r.planAll()
	}
	if r.closed != "" {
		r.publish()
		return nil
	}
	// 3. A GPU that cannot be reset now is not changed now.
	if err := r.awaitClosed(); err != nil {
		return err
	}
	// 4. Take what changes from the ledger, or what is free of it; let go of the rest.
	if err := r.holdAll(); err != nil {
		return err
	}
	// 5. Do it.
	if err := r.carryOut(); err != nil {
		return err
	}
	// 6. What has ended is no longer under way.
	r.publish()
	r.forgiveJournal()
	return r.closeJournal()
}

// enter takes the lock and reads the journal, or says why nothing may be changed.
func (r *round) enter() error {
	if !r.deps.Ledger.Writes() {
		r.closed = "another agent of this node is in charge"
		return nil
	}
	if r.deps.Blind != nil {
		if why := r.deps.Blind(); why != "" {
			r.closed = "it is not known who holds what: " + why
		}
	}
	if c := r.hanging(everyCard); c != nil {
		r.closed = c.String()
	}
	desk, err := openDesk(r.deps.Dir)
	if err != nil {
		r.closed = err.Error()
		if !errors.Is(err, errBusy) {
			r.unusable(unreadable, err)
		}
		return nil
	}
	r.desk = desk
	return r.readJournal()
}

// The codes of troubles with the disk.
const (
	unreadable = "MIG_JOURNAL_UNREADABLE"
	unwritable = "MIG_JOURNAL_UNWRITABLE"
	// These two are of a journal that was put aside.
	corrupt      = "MIG_JOURNAL_CORRUPT"
	otherVersion = "MIG_JOURNAL_VERSION"
)

// rescan looks at the hardware; afterwards nothing is unseen.
func (r *round) rescan() error {
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	_, err := r.await(scanWithin, &hungCall{}, func(context.Context) error { return r.deps.Inventory.Rescan(ctx) })
	if err == nil {
		clear(r.unseen)
	}
	return err
}

// planAll makes the jobs: of what is wanted, and of what is under way and not wanted otherwise.
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
	for _, card := range r.journal.Cards {
		// A card that is gone while others answer was taken out.
		gone := snapshot.Driver.Present() && snapshot.GPU(card.UUID) == nil
		if !known[card.UUID] && !gone {
			want := Want{UUID: card.UUID, Wanted: card.Wanted, Source: card.Source}
			r.jobs = append(r.jobs, r.consider(want, snapshot, held))
		}
	}
	slices.SortStableFunc(r.jobs, func(a, b *job) int {
		return cmp.Or(cmp.Compare(uint(a.index()), uint(b.index())), strings.Compare(string(a.want.UUID), string(b.want.UUID)))
	})
	for card := range r.tries {
		if !slices.ContainsFunc(r.jobs, func(j *job) bool { return j.want.UUID == card }) {
			delete(r.tries, card)
		}
	}
}

func (j *job) index() int {
	if j.card == nil {
		return -1
	}
	return j.card.Index
}

// consider says what is to be done with a card, and whether it can be done now.
func (r *round) consider(want Want, snapshot *gpu.Snapshot, held *holdings) *job {
	j := &job{want: want, card: snapshot.GPU(want.UUID), state: Waiting}
	failed := r.tries[want.UUID]
	if failed != nil && !reflect.DeepEqual(failed.wanted, want.Wanted) {
		delete(r.tries, want.UUID)
		failed = nil
	}
	if j.card == nil {
		j.message = fmt.Sprintf("%s is not there: the last scan did not find it. It changes to %s when it is back.", want.UUID, goal(want))
		return j
	}
	if c := r.hanging(want.UUID); c != nil {
		j.state = Failed
		j.message = fmt.Sprintf("%s does not change to %s: %v. Until then nothing more is done with it, and what was to change is not given out.", name(j.card), goal(want), c)
		return j
	}
	if j.card.Health.State == gpu.Gone {
		j.message = fmt.Sprintf("%s does not answer. It changes to %s when it does.", name(j.card), goal(want))
		return j
	}
	if j.card.MIG.Unsure {
		r.unsure(j)
		return j
	}
	now := held.card(j.card)
	j.plan = mig.PlanGPU(now, want.Wanted)
	r.chores(j, now.Instances)
	switch {
	case j.plan.Refused != "":
		j.state = Refused
		j.message = fmt.Sprintf("%s cannot have %s: %s.", name(j.card), goal(want), strings.TrimSuffix(j.plan.Refused, "."))
	case len(j.plan.Blockers) > 0:
		j.waits = true
		j.message = fmt.Sprintf("%s changes to %s when %s.", name(j.card), goal(want), ended(j.plan.Blockers))
	case !j.plan.Changes() && !j.busy():
		j.state = Applied
		j.message = fmt.Sprintf("%s has %s.", name(j.card), goal(want))
		delete(r.tries, want.UUID)
	default:
		j.ready, j.state = true, Changing
		j.destroy = union(j.plan.Destroy, j.destroy)
		j.create = j.plan.Create
		j.mode = cmp.Or(j.mode, j.plan.SetMode)
		j.message = fmt.Sprintf("%s is being changed to %s.", name(j.card), goal(want))
	}
	switch {
	case r.closed != "" && (j.ready || r.unseen[want.UUID]):
		j.state = Waiting
		j.message = fmt.Sprintf("%s does not change to %s yet: %s.", name(j.card), goal(want), r.closed)
		j.rest()
	case failed != nil && r.deps.Clock.Now().Before(failed.next):
		failed.report(j)
		j.rest()
	}
	return j
}

// chores finds the work that disturbs nobody and waits for nobody.
func (r *round) chores(j *job, instances []mig.Instance) {
	for i := range instances {
		if instances[i].UUID == "" && len(instances[i].Holders) == 0 {
			j.destroy = append(j.destroy, instances[i])
		}
	}
	on := j.card.MIG.Enabled
	if j.plan.Refused == "" && j.want.Wanted.Enabled == on && j.card.MIG.PendingEnabled != on {
		j.mode = &on
	}
	j.touch = r.untouched[j.want.UUID] && len(j.card.MIG.Devices) > 0
}

// union are the instances of both lists, by their number.
func union(a, b []mig.Instance) []mig.Instance {
	all := slices.Clone(a)
	for _, one := range b {
		if !slices.ContainsFunc(a, func(other mig.Instance) bool { return other.GI == one.GI }) {
			all = append(all, one)
		}
	}
	return all
}

// holdAll takes for each job what it needs.
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
		err = r.hold(j.want.UUID, j.take())
	case j.waits:
		err = r.bar(j)
	case j.plan.UUID != "":
		err = r.hold(j.want.UUID, nil)
	}
	if barred, ok := errors.AsType[*ledger.BarredError](err); ok {
		// Somebody was faster, or holds what the planner does not see.
		j = r.consider(j.want, r.deps.Inventory.Current(), r.holdings())
		if j.ready {
			j.rest()
			j.state, j.waits = Waiting, true
			j.message = fmt.Sprintf("%s changes to %s when this has ended: %v.", name(j.card), goal(j.want), barred)
		}
		*at, err = j, r.bar(j)
	}
	if err != nil && !isStop(err) {
		j.rest()
		j.state = Waiting
		j.message = fmt.Sprintf("%s does not change to %s yet: %v.", name(j.card), goal(j.want), err)
		return nil
	}
	return err
}

// publish makes the jobs' states visible.
func (r *round) publish() {
	statuses := make([]Status, 0, len(r.jobs))
	for _, j := range r.jobs {
		plan := j.plan
		plan.UUID, plan.Index, plan.Wanted = j.want.UUID, j.index(), j.want.Wanted
		statuses = append(statuses, Status{UUID: j.want.UUID, Index: j.index(), State: j.state, Message: j.message, Plan: plan})
	}
	if reflect.DeepEqual(*r.statuses.Load(), statuses) {
		return
	}
	r.statuses.Store(&statuses)
	if r.deps.Notify != nil {
		r.deps.Notify()
	}
}
