package signal

import "sync"

// Rounds counts the rounds of an actor, so that a caller can wait for one that began after its call: an earlier one has read an older
// state. Create it with NewRounds.
type Rounds struct {
	asked *Signal
	ended Broadcast

	mu sync.Mutex
	// began and last are the numbers of the last round that has begun, and of the last one that has ended.
	began int64
	last  int64
}

// NewRounds returns Rounds that nobody has asked for.
func NewRounds() *Rounds {
	asked := New()
	<-asked.C()
	return &Rounds{asked: asked}
}

// Asked delivers the signal that a caller waits for a round, to the actor.
func (r *Rounds) Asked() <-chan struct{} { return r.asked.C() }

// Begin begins a round, which the actor ends by calling the result. Rounds do not overlap.
func (r *Rounds) Begin() (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.began++
	number := r.began
	return func() {
		r.mu.Lock()
		r.last = number
		r.mu.Unlock()
		r.ended.Set()
	}
}

// Ask asks the actor for a round. The result reports whether one that began after the call has ended.
func (r *Rounds) Ask() (ended func() bool) {
	r.mu.Lock()
	before := r.began
	r.mu.Unlock()
	r.asked.Set()
	return func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.last > before
	}
}

// Subscribe signals when a round has ended.
func (r *Rounds) Subscribe() *Subscription { return r.ended.Subscribe() }
