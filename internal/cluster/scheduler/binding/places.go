package binding

import (
	"context"
	"slices"
	"sync"
)

// places are how many pods can be bound at a time. A place that becomes free is for the group with the fewest places of those that wait and
// may have one, and in a group for the lowest number.
type places struct {
	mu sync.Mutex
	// taken are all of them that are taken, gangs those that members of gangs have.
	taken  int
	gangs  int
	groups map[string]*group
}

// group are pods that share their turn: those of one gang or pod group, or all others.
type group struct {
	taken   int
	waiting []*waiter // ascending
}

// waiter is a pod that wants a place.
type waiter struct {
	number uint64
	// group is that of the pod, empty for none. It does not change once the pod has a place.
	group string
	has   bool
	// ready is closed when the pod that waits has a place; nil for one that does not wait.
	ready chan struct{}
}

// take waits for a place. The error is the cause of the end of the context; there is no place then.
func (p *places) take(ctx context.Context, w *waiter) error {
	p.mu.Lock()
	if p.free(w.group) {
		p.grant(w)
		p.mu.Unlock()
		return nil
	}
	w.ready = make(chan struct{})
	p.enqueue(w)
	p.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	got := w.has
	if !got {
		p.dequeue(w)
	}
	p.mu.Unlock()
	if got {
		p.give(w) // It got one in between.
	}
	return context.Cause(ctx)
}

// give gives a place back: the first that waits gets it.
func (p *places) give(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.has = false
	p.add(w.group, -1)
	p.forget(w.group)
	p.next()
}

// next gives a free place to the first that waits for one. The caller holds the lock.
func (p *places) next() {
	var first *group
	for name, g := range p.groups {
		if len(g.waiting) > 0 && p.free(name) && (first == nil || g.before(first)) {
			first = g
		}
	}
	if first != nil {
		w := first.waiting[0]
		first.waiting = slices.Delete(first.waiting, 0, 1)
		p.grant(w)
		close(w.ready)
	}
}

// hurry has a pod wait as one of no gang.
func (p *places) hurry(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case w.has || w.group == "":
	case w.ready == nil:
		w.group = "" // It is about to wait.
	default:
		p.dequeue(w)
		w.group = ""
		p.enqueue(w)
		p.next()
	}
}

// enqueue and dequeue note that a pod waits in its group, and that it does no longer. The caller holds the lock.
func (p *places) enqueue(w *waiter) {
	g := p.group(w.group)
	at, _ := slices.BinarySearchFunc(g.waiting, w.number+1, func(other *waiter, n uint64) int {
		if other.number < n {
			return -1
		}
		return 1
	})
	g.waiting = slices.Insert(g.waiting, at, w)
}

func (p *places) dequeue(w *waiter) {
	g := p.groups[w.group]
	if g == nil {
		return
	}
	if i := slices.Index(g.waiting, w); i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
		p.forget(w.group)
	}
}

// free tells whether there is a place for a group. The caller holds the lock.
func (p *places) free(group string) bool {
	return p.taken < Slots && (group == "" || p.gangs < GangSlots)
}

// grant notes that a pod has a place. The caller holds the lock.
func (p *places) grant(w *waiter) {
	w.has = true
	p.add(w.group, 1)
}

// add notes that a group has more places, or fewer. The caller holds the lock.
func (p *places) add(name string, places int) {
	p.taken += places
	p.group(name).taken += places
	if name != "" {
		p.gangs += places
	}
}

// group returns a group, which is made if it is new. The caller holds the lock.
func (p *places) group(name string) *group {
	g := p.groups[name]
	if g == nil {
		g = &group{}
		p.groups[name] = g
	}
	return g
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
