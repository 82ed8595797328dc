// Package signal has the ways in which actors wake one another: Signal for one receiver, Broadcast for any number, Ready for
// a condition that becomes true once, and Rounds for callers that wait for the work of an actor.
//
// A signal says that something may have changed, never what: the receiver reads the present state. Signals coalesce, a
// sender never waits, and a new receiver is signalled at once, so that it also reads the initial state. The package
// must not import anything but the standard library.
package signal

import (
	"context"
	"sync"
	"time"
)

// Signal wakes one receiver. It is signalled when it is made.
type Signal struct {
	c chan struct{}
}

// New returns a Signal that is signalled.
func New() *Signal {
	s := &Signal{c: make(chan struct{}, 1)}
	s.Set()
	return s
}

// Set signals. It never waits; any number of calls before the next receive count as one.
func (s *Signal) Set() {
	select {
	case s.c <- struct{}{}:
	default:
	}
}

// C delivers the signal. It is never closed.
func (s *Signal) C() <-chan struct{} { return s.c }

// Broadcast wakes all its subscriptions. The zero value is ready for use.
type Broadcast struct {
	mu   sync.Mutex
	subs map[*Subscription]bool
	// later is true while a SetAfter is pending.
	later bool
}

// Subscription is one receiver of a Broadcast. It is signalled when it is made.
type Subscription struct {
	*Signal
	from *Broadcast
}

// Subscribe adds a receiver.
func (b *Broadcast) Subscribe() *Subscription {
	s := &Subscription{Signal: New(), from: b}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.subs == nil {
		b.subs = map[*Subscription]bool{}
	}
	b.subs[s] = true
	return s
}

// Close ends the subscription. A pending signal can still be received.
func (s *Subscription) Close() {
	s.from.mu.Lock()
	defer s.from.mu.Unlock()
	delete(s.from.subs, s)
}

// Set signals all subscriptions. It waits for none of them.
func (b *Broadcast) Set() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.subs {
		s.Set()
	}
}

// SetAfter signals all subscriptions after a delay, once for all calls until then. It is for a sender that others wait
// for and that should not compete with the receivers for processor time.
func (b *Broadcast) SetAfter(delay time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.later {
		return
	}
	b.later = true
	time.AfterFunc(delay, func() {
		b.mu.Lock()
		b.later = false
		b.mu.Unlock()
		b.Set()
	})
}

// Join sets wake at each signal of the subscriptions, until ctx ends. It returns when all of them are closed.
func Join(ctx context.Context, wake *Signal, subscribe ...func() *Subscription) error {
	var group sync.WaitGroup
	for _, each := range subscribe {
		changes := each()
		group.Go(func() {
			defer changes.Close()
			for {
				select {
				case <-ctx.Done():
					return
				case <-changes.C():
					wake.Set()
				}
			}
		})
	}
	group.Wait()
	return nil
}

// Settled waits for wake and then for delay, in which other signals come that have the same cause, and takes them too. It returns the
// error of ctx when that ends first.
func Settled(ctx context.Context, wake *Signal, delay time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-wake.C():
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(delay):
	}
	select {
	case <-wake.C():
	default:
	}
	return nil
}

// Ready is a condition that becomes true once and stays so.
type Ready struct {
	once sync.Once
	c    chan struct{}
}

// NewReady returns a condition that is not true yet.
func NewReady() *Ready { return &Ready{c: make(chan struct{})} }

// Set makes the condition true. Later calls do nothing.
func (r *Ready) Set() { r.once.Do(func() { close(r.c) }) }

// Done is closed once the condition is true.
func (r *Ready) Done() <-chan struct{} { return r.c }

// Is reports whether the condition is true.
func (r *Ready) Is() bool {
	select {
	case <-r.c:
		return true
	default:
		return false
	}
}

// Wait returns when the condition is true or ctx has ended; then with ctx's error.
func (r *Ready) Wait(ctx context.Context) error {
	select {
	case <-r.c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
