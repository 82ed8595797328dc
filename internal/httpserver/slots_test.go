package httpserver

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlots checks that an address that fills its slots delays itself only, and that nothing is left of it.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots(4, 2)
		busy, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
		wait := make(chan struct{})
		hold := func(context.Context) error { <-wait; return nil }
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() { _ = s.Do(t.Context(), busy, hold) })
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		did := errors.New("did it")
		if err := s.Do(ctx, other, func(context.Context) error { return did }); !errors.Is(err, did) {
			t.Errorf("another address: %v", err)
		}
		if err := s.Do(ctx, busy, hold); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the busy address: %v", err)
		}
		close(wait)
		all.Wait()
		if len(s.of) != 0 || len(s.all) != 0 {
			t.Errorf("%d addresses and %d slots are left", len(s.of), len(s.all))
		}
	})
}
