package migapply

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/bound"
)

// allGPUs represents all GPUs in the list of calls that hang.
const allGPUs gpu.UUID = ""

// hungCall is a hardware call that exceeded its deadline; it may still have an effect.
type hungCall struct {
	what  string
	since time.Time
	// call only returns its error.
	call *bound.Pending[struct{}]
}

func (c *hungCall) String() string {
	return fmt.Sprintf("the driver has not answered since %s (%s)", c.since.UTC().Format(time.RFC3339), c.what)
}

// call runs a hardware call for GPUs, and stops waiting for it after the deadline. The error is a stopError when the
// agent stops.
func (r *round) call(ids []gpu.UUID, what string, do func(context.Context) error) error {
	c := &hungCall{what: what, since: r.deps.Clock.Now()}
	returned, err := r.await(callWithin, c, do)
	if !returned {
		for _, id := range ids {
			r.hung[id] = c
		}
	}
	return err
}

// await waits for a call that may not be interruptible, and reports whether it has returned.
func (r *round) await(within time.Duration, c *hungCall, do func(context.Context) error) (returned bool, err error) {
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

// hanging returns the call that still hangs on a GPU; nil when there is none. The effect of a call that has returned is
// unseen.
func (p *Partition) hanging(id gpu.UUID) *hungCall {
	c := p.hung[id]
	if c == nil || !c.call.Returned() {
		return c
	}
	delete(p.hung, id)
	if id != allGPUs {
		p.unseen[id] = true
	}
	_, err := c.call.Result()
	p.deps.Log.Info("Hardware call returned late", "gpu", id, "call", c.what, "error", err)
	return nil
}

// known reports whether the inventory shows all changes of a GPU, and no call is outstanding.
func (p *Partition) known(id gpu.UUID) bool { return !p.unseen[id] && p.hanging(id) == nil }
