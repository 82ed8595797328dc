package httpserver

import (
	"context"
	"net/netip"
	"sync"
)

// Slots bound how many requests do something at the same time, in all and from one address: who fills the slots of an address takes none
// from others.
type Slots struct {
	all        chan struct{}
	perAddress int

	mu sync.Mutex
	of map[netip.Addr]*addressSlots
}

// addressSlots are those of an address that uses or waits for some.
type addressSlots struct {
	slots chan struct{}
	users int
}

// NewSlots returns free slots.
func NewSlots(all, perAddress int) *Slots {
	return &Slots{all: make(chan struct{}, all), perAddress: perAddress, of: map[netip.Addr]*addressSlots{}}
}

// Do does something with a slot of an address. It returns the error of do, or that of ctx when there is no slot until ctx ends.
func (s *Slots) Do(ctx context.Context, address netip.Addr, do func(context.Context) error) error {
	own := s.use(address)
	defer s.leave(address, own)
	for _, slots := range []chan struct{}{own.slots, s.all} {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return do(ctx)
}

func (s *Slots) use(address netip.Addr) *addressSlots {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.of[address]
	if own == nil {
		own = &addressSlots{slots: make(chan struct{}, s.perAddress)}
		s.of[address] = own
	}
	own.users++
	return own
}

func (s *Slots) leave(address netip.Addr, own *addressSlots) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if own.users--; own.users == 0 {
		delete(s.of, address)
	}
}
