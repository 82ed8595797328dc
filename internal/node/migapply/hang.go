package migapply

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// everyCard stands for all cards in the list of calls that hang.
const everyCard gpu.UUID = ""

// hungCall is a call of the hardware that was left behind: nobody knows what it will still do.
type hungCall struct {
	what  string
	since time.Time
	done  chan error
}

func (c *hungCall) String() string {
	return fmt.Sprintf("the driver has not answered since %s (%s)", c.since.UTC().Format(time.RFC3339), c.what)
}

// call does something with cards, and leaves it behind when it takes too long. Its error is a
// stopError when the agent leaves.
func (r *round) call(cards []gpu.UUID, what string, do func(context.Context) error) error {
	c := &hungCall{what: what, since: r.deps.Clock.Now()}
	returned, err := r.await(callWithin, c, do)
	if !returned {
		for _, card := range cards {
			r.hung[card] = c
		}
	}
	return err
}

// await waits for something that nothing may be able to interrupt, and tells whether it has returned.
func (r *round) await(within time.Duration, c *hungCall, do func(context.Context) error) (returned bool, err error) {
	c.done = make(chan error, 1)
	patience := r.deps.Clock.NewTimer(within)
	defer patience.Stop()
	go func() { c.done <- do(r.ctx) }()
	select {
	case err := <-c.done:
		if stop := r.left(); stop != nil {
			return true, stop
		}
		return true, err
	case <-patience.C():
		return false, fmt.Errorf("no answer within %v", within)
	case <-r.ctx.Done():
	}
	bye := r.deps.Clock.NewTimer(farewell)
	defer bye.Stop()
	select {
	case <-c.done:
		return true, r.left()
	case <-bye.C():
		return false, r.left()
	}
}

// hanging gives the call that still hangs on a card; nil when none does. What one that
// has returned did is unseen.
func (p *Partition) hanging(card gpu.UUID) *hungCall {
	c := p.hung[card]
	if c == nil {
		return nil
	}
	select {
	case err := <-c.done:
		c.done <- err // it may hang on other cards too
		delete(p.hung, card)
		if card != everyCard {
			p.unseen[card] = true
		}
		p.deps.Log.Info("a call of the hardware has returned late", "gpu", card, "call", c.what, "error", err)
		return nil
	default:
		return c
	}
}

// known tells whether the inventory shows what was done to a card, and nothing more is to come.
func (p *Partition) known(card gpu.UUID) bool { return !p.unseen[card] && p.hanging(card) == nil }
