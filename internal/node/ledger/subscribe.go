package ledger

import "sync"

// Subscription tells that holdings have changed since it was last read. It tells
// that, not what: a slow reader misses nothing but repetitions.
type Subscription struct {
	c    chan struct{}
	from *subscribers
}

// C receives after each change; it holds one signal.
func (s *Subscription) C() <-chan struct{} { return s.c }

// Close ends the subscription.
func (s *Subscription) Close() {
	s.from.mu.Lock()
	defer s.from.mu.Unlock()
	delete(s.from.all, s)
}

// Subscribe makes a subscription. Its first signal is for the first change after this call.
func (l *Ledger) Subscribe() *Subscription { return l.subs.add() }

type subscribers struct {
	mu  sync.Mutex
	all map[*Subscription]struct{}
}

func (s *subscribers) add() *Subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*Subscription]struct{}{}
	}
	sub := &Subscription{c: make(chan struct{}, 1), from: s}
	s.all[sub] = struct{}{}
	return sub
}

func (s *subscribers) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for sub := range s.all {
		select {
		case sub.c <- struct{}{}:
		default:
		}
	}
}
