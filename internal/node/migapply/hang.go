package migapply

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/bound"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// allGPUs represents all GPUs in the list of calls that have not returned.
const allGPUs gpu.UUID = ""

// openCall is a hardware call that no round waits for any more; it may still have an effect.
type openCall struct {
	what  string
	since time.Time
	// call only returns its error.
	call *bound.Pending[struct{}]
	// job, if any, is the change that the call is a step of, and that has not failed. A later round continues it.
	job *job
}

func (c *openCall) String() string {
	return fmt.Sprintf("the driver has not answered since %s (%s)", c.since.UTC().Format(time.RFC3339), c.what)
}

// call runs a hardware call for GPUs, and stops waiting for it after callWithin. The error is a stopError when the
// agent stops.
func (r *round) call(ids []gpu.UUID, what string, do func(context.Context) error) error {
	c := &openCall{what: what, since: r.deps.Clock.Now()}
	returned, err := r.await(callWithin, c, do)
	if !returned {
		for _, id := range ids {
			r.open[id] = c
		}
	}
	return err
}

// callOrLeave runs a hardware call for the GPU of a job. After leaveAfter it leaves the job to a later round, so that the other GPUs do
// not wait for the call. The error is a stopError when the agent stops.
func (r *round) callOrLeave(j *job, what string, do func(context.Context) error) error {
	c := &openCall{what: what, since: r.deps.Clock.Now(), job: j}
	returned, err := r.await(leaveAfter, c, do)
	if returned {
		return err
	}
	r.open[j.want.UUID] = c
	if isStop(err) {
		return err
	}
	r.leave(j, c, c.String())
	// The lock is kept as long as the call may change the GPU, but not for a call that never returns. The round has the store open.
	_ = r.useStore()
	deadline := r.deps.Clock.NewTimer(callWithin - r.deps.Clock.Since(c.since))
	go func() {
		defer deadline.Stop()
		select {
		case <-c.call.Done():
		case <-deadline.C():
		}
		r.closeStore()
		r.returned.Set()
	}()
	return nil
}

// leave leaves the rest of a job to a later round, because of a call that has not returned.
func (r *round) leave(j *job, c *openCall, why string) {
	j.left = true
	if j.ready {
		r.delay(j, c, why)
	}
}

// delay says why a change takes longer than usual, once the call has taken sayAfter.
func (r *round) delay(j *job, c *openCall, why string) {
	if r.deps.Clock.Since(c.since) >= sayAfter {
		j.delayed = true
		j.message = fmt.Sprintf("%s is being changed to %s: %s.", name(j.device), goal(j.want), why)
	}
}

// Subscribe signals when a later Reconcile can continue a change that an earlier one did not wait for.
func (p *Partition) Subscribe() *signal.Subscription { return p.returned.Subscribe() }

// await waits for a call that may not be interruptible, and reports whether it has returned.
func (r *round) await(within time.Duration, c *openCall, do func(context.Context) error) (returned bool, err error) {
	timer := r.deps.Clock.NewTimer(within)
	defer timer.Stop()
	c.call = bound.Start(func() (struct{}, error) { return struct{}{}, do(r.ctx) })
	select {
	case <-c.call.Done():
		if stop := r.stopped(); stop != nil {
			return true, stop
		}
		_, err := c.call.Result()
		return true, err
	case <-timer.C():
		return false, fmt.Errorf("no answer within %v", within)
	case <-r.ctx.Done():
	}
	grace := r.deps.Clock.NewTimer(shutdownGrace)
	defer grace.Stop()
	select {
	case <-c.call.Done():
		return true, r.stopped()
	case <-grace.C():
		return false, r.stopped()
	}
}

// outstanding returns the call that has not returned from a GPU; nil when there is none. The effect of a call that has returned since
// is unseen, and its error is one of the change.
func (p *Partition) outstanding(id gpu.UUID) *openCall {
	c := p.open[id]
	if c == nil || !c.call.Returned() {
		return c
	}
	delete(p.open, id)
	if id != allGPUs {
		p.unseen[id], p.untouched[id] = true, true
	}
	_, err := c.call.Result()
	p.deps.Log.Info("Hardware call returned late", "gpu", id, "call", c.what, "error", err)
	if err != nil && c.job != nil {
		c.job.err = fmt.Errorf("%s: %w", c.what, err)
		p.failed(c.job)
	}
	return nil
}

// isLate reports whether a call has not returned within callWithin. Its change has failed.
func (p *Partition) isLate(c *openCall) bool {
	return c.job == nil || p.deps.Clock.Since(c.since) >= callWithin
}

// waitForCall sets the state of a GPU from which a call has not returned: nothing is changed, and what is held stays held.
func (r *round) waitForCall(j *job, c *openCall) {
	j.calls = true
	if !r.isLate(c) {
		j.state, j.plan, j.message = c.job.state, c.job.plan, c.job.message
		if c.job.ready {
			r.delay(j, c, c.String())
		}
		return
	}
	j.state = Failed
	j.message = fmt.Sprintf("%s does not change to %s: %v. Until it answers, the GPU is not changed, and the devices that were to change are not allocated.",
		name(j.device), goal(j.want), c)
}

// changing returns the oldest call of a change that has not returned from its GPU; nil when there is none.
func (p *Partition) changing() (oldest *openCall) {
	for id, c := range p.open {
		if id != allGPUs && !c.call.Returned() && !p.isLate(c) && (oldest == nil || c.since.Before(oldest.since)) {
			oldest = c
		}
	}
	return oldest
}

// known reports whether the inventory shows all changes of a GPU, and no call is outstanding.
func (p *Partition) known(id gpu.UUID) bool { return !p.unseen[id] && p.outstanding(id) == nil }
