package binding

import (
	"context"
	"slices"
	"sync"
)

// places are how many pods can be bound at a time. Those that wait for one get it in the order of their numbers, the lowest first.
type places struct {
	mu      sync.Mutex
	taken   int
	waiting []*waiter // ascending
}

// waiter is a pod that waits for a place; ready is closed when it has one.
type waiter struct {
	number uint64
	ready  chan struct{}
}

// take waits for a place. The error is the cause of the end of the context; there is no place then.
func (p *places) take(ctx context.Context, number uint64) error {
	p.mu.Lock()
	if p.taken < Slots {
		p.taken++
		p.mu.Unlock()
		return nil
	}
	w := &waiter{number: number, ready: make(chan struct{})}
	at, _ := slices.BinarySearchFunc(p.waiting, w.number+1, func(other *waiter, n uint64) int {
		if other.number < n {
			return -1
		}
		return 1
	})
	p.waiting = slices.Insert(p.waiting, at, w)
	p.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	i := slices.Index(p.waiting, w)
	if i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
	}
	p.mu.Unlock()
	if i < 0 {
		p.give() // It got one in between.
	}
	return context.Cause(ctx)
}

// give gives a place back: the first that waits gets it.
func (p *places) give() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) == 0 {
		p.taken--
		return
	}
	first := p.waiting[0]
	p.waiting = slices.Delete(p.waiting, 0, 1)
	close(first.ready)
}

// held returns how many places are taken.
func (p *places) held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}
