package gangs

import (
	"cmp"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// plan is where the members that have no node yet go.
type plan struct {
	nodes    map[types.UID]string
	reserved map[types.UID]bool
	// shares is true where members of the plan share a ResourceClaim.
	shares bool
	// preparing are reserved members that are prepared although not all are reserved, see leaders.
	preparing map[types.UID]bool
	// progress is when the last member was reserved, or prepared.
	progress time.Time
	// replaced are the holds of lost members whose places the plan has.
	replaced []*hold
	// permitted is true once all were reserved: they are being bound. decided is closed then, and when the plan ends before that.
	permitted bool
	decided   chan struct{}
}

// newPlan returns a plan without members.
func newPlan(now time.Time) *plan {
	return &plan{nodes: map[types.UID]string{}, reserved: map[types.UID]bool{}, preparing: map[types.UID]bool{}, progress: now, decided: make(chan struct{})}
}

// permit lets the members be bound. The caller holds the lock.
func (p *plan) permit() {
	if !p.permitted {
		p.permitted, p.replaced = true, nil
		close(p.decided)
	}
}

// end gives up the plan of a gang and what is held for it. The caller holds the lock.
func (r *registry) end(g *gang) {
	if g.plan == nil {
		return
	}
	for uid := range g.plan.nodes {
		r.holds.remove(uid)
	}
	for _, held := range g.plan.replaced {
		r.holds.add(held)
	}
	if !g.plan.permitted {
		close(g.plan.decided)
	}
	g.plan = nil
}

// released are members whose reservation ends, and why.
type released struct {
	waiting []types.UID
	pods    []*v1.Pod
	reason  string
}

// add adds what else is released.
func (out *released) add(more released) {
	out.waiting, out.pods, out.reason = append(out.waiting, more.waiting...), append(out.pods, more.pods...), cmp.Or(more.reason, out.reason)
}

// release gives up the plan of a gang that is not permitted yet. The caller holds the lock, and ends the wait of the members without it.
// From the third plan in a row on the gang waits before the next one, so that it does not take the place of others in the queue.
func (r *registry) release(g *gang, reason string) released {
	if g.plan == nil {
		return released{}
	}
	out := released{reason: r.refusal(errors.New(reason)).Error()}
	for uid := range g.plan.reserved {
		out.waiting = append(out.waiting, uid)
	}
	r.end(g)
	g.failures++
	if wait := r.limits.retryAfter(g.failures); wait > 0 {
		g.next, g.failure = r.clock.Now().Add(wait), reason
		g.wakeAt(g.next)
		return out
	}
	g.brought = r.clock.Now()
	out.pods = r.pending(g)
	return out
}

// wakeAt has a member brought back to the queue at a time. The caller holds the lock.
func (g *gang) wakeAt(at time.Time) {
	if g.wake.IsZero() || at.Before(g.wake) {
		g.wake = at
	}
}
