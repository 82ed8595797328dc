package binding

import (
	"context"
	"slices"
	"sync"
)

// places are how many pods can be bound at a time. A place that becomes free is for the group with the fewest places of those that wait,
// and in a group for the lowest number.
type places struct {
	mu sync.Mutex
	// taken are all of them that are taken, gangs those that members of gangs have.
	taken, gangs int
	groups       map[string]*group
}

// group are pods that share their turn: those of one gang, or all of no gang.
type group struct {
	gang    bool
	taken   int
	waiting []*waiter // ascending
}

// waiter is a pod that waits for a place; ready is closed when it has one.
type waiter struct {
	number uint64
	ready  chan struct{}
}

// take waits for a place. The error is the cause of the end of the context; there is no place then.
func (p *places) take(ctx context.Context, name string, number uint64) error {
	p.mu.Lock()
	g := p.groups[name]
	if g == nil {
		g = &group{gang: name != ""}
		p.groups[name] = g
	}
	if p.free(g) {
		p.add(g, 1)
		p.mu.Unlock()
		return nil
	}
	w := &waiter{number: number, ready: make(chan struct{})}
	at, _ := slices.BinarySearchFunc(g.waiting, w.number+1, func(other *waiter, n uint64) int {
		if other.number < n {
			return -1
		}
		return 1
	})
	g.waiting = slices.Insert(g.waiting, at, w)
	p.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	i := slices.Index(g.waiting, w)
	if i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
		p.forget(name)
	}
	p.mu.Unlock()
	if i < 0 {
		p.give(name) // It got one in between.
	}
	return context.Cause(ctx)
}

// give gives a place of a group back: the first that waits gets it.
func (p *places) give(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(p.groups[name], -1)
	p.forget(name)
	var next *group
	for _, g := range p.groups {
		if len(g.waiting) > 0 && p.free(g) && (next == nil || g.before(next)) {
			next = g
		}
	}
	if next == nil {
		return
	}
	p.add(next, 1)
	first := next.waiting[0]
	next.waiting = slices.Delete(next.waiting, 0, 1)
	close(first.ready)
}

// free tells whether there is a place for a group. The caller holds the lock.
func (p *places) free(g *group) bool { return p.taken < Slots && (!g.gang || p.gangs < GangSlots) }

// add notes that a group has more places, or fewer. The caller holds the lock.
func (p *places) add(g *group, places int) {
	p.taken += places
	g.taken += places
	if g.gang {
		p.gangs += places
	}
}

// before tells whether a group gets the next place and not another one. Both have pods that wait.
func (g *group) before(other *group) bool {
	if g.taken != other.taken {
		return g.taken < other.taken
	}
	return g.waiting[0].number < other.waiting[0].number
}

// forget forgets a group without places that waits for none. The caller holds the lock.
func (p *places) forget(name string) {
	if g := p.groups[name]; g.taken == 0 && len(g.waiting) == 0 {
		delete(p.groups, name)
	}
}

// held returns how many places are taken.
func (p *places) held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}
