package signal

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// count empties a channel and returns how many signals were in it.
func count(c <-chan struct{}) int {
	for n := 0; ; n++ {
		select {
		case <-c:
		default:
			return n
		}
	}
}

// TestSignal: signalled at first; many calls before a receive are one.
func TestSignal(t *testing.T) {
	s := New()
	if got := count(s.C()); got != 1 {
		t.Errorf("%d signals at first, want 1", got)
	}
	for range 3 {
		s.Set()
	}
	if got := count(s.C()); got != 1 {
		t.Errorf("%d signals after three calls, want 1", got)
	}
}

// TestBroadcast: each subscription is signalled at first and once per change, and not after Close.
func TestBroadcast(t *testing.T) {
	var b Broadcast
	b.Set() // Without subscriptions it does nothing.
	early := b.Subscribe()
	if got := count(early.C()); got != 1 {
		t.Errorf("%d signals at first, want 1", got)
	}
	late := b.Subscribe()
	if got := count(early.C()); got != 0 {
		t.Errorf("a new subscription signals another one %d times", got)
	}
	b.Set()
	if got, want := count(early.C()), count(late.C()); got != 1 || want != 1 {
		t.Errorf("signals %d and %d, want 1 each", got, want)
	}
	early.Close()
	early.Close()
	b.Set()
	if got := count(early.C()); got != 0 {
		t.Errorf("%d signals after Close, want none", got)
	}
	if got := count(late.C()); got != 1 {
		t.Errorf("%d signals for the other one, want 1", got)
	}
}

// TestJoin: each broadcast wakes the one signal; with the context all subscriptions end.
func TestJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a, b Broadcast
		ctx, cancel := context.WithCancel(t.Context())
		wake, ended := New(), make(chan error)
		go func() { ended <- Join(ctx, wake, a.Subscribe, b.Subscribe) }()
		synctest.Wait()
		if got := count(wake.C()); got != 1 {
			t.Errorf("%d signals at first, want 1", got)
		}
		for name, each := range map[string]*Broadcast{"the first": &a, "the second": &b} {
			each.Set()
			synctest.Wait()
			if got := count(wake.C()); got != 1 {
				t.Errorf("%d signals after a change of %s, want 1", got, name)
			}
		}
		cancel()
		if err := <-ended; err != nil || len(a.subs)+len(b.subs) != 0 {
			t.Errorf("Join returned %v and left %d subscriptions", err, len(a.subs)+len(b.subs))
		}
	})
}

// TestReady: it becomes true once, wakes all who wait, and waits no longer than the context.
func TestReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewReady()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.Wait(ended); !errors.Is(err, context.Canceled) || r.Is() {
			t.Errorf("Wait: %v, Is: %v", err, r.Is())
		}
		woken := make(chan error, 2)
		for range 2 {
			go func() { woken <- r.Wait(t.Context()) }()
		}
		synctest.Wait()
		r.Set()
		r.Set()
		for range 2 {
			if err := <-woken; err != nil {
				t.Error(err)
			}
		}
		if <-r.Done(); !r.Is() {
			t.Error("not ready after Set")
		}
	})
}

// TestSetAfter: calls before the delay has passed count as one, and one after it counts again.
func TestSetAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Broadcast
		s := b.Subscribe()
		defer s.Close()
		<-s.C()
		signalled := func() bool {
			synctest.Wait()
			select {
			case <-s.C():
				return true
			default:
				return false
			}
		}
		for range 2 {
			b.SetAfter(10 * time.Millisecond)
			time.Sleep(9 * time.Millisecond)
			b.SetAfter(10 * time.Millisecond)
			if signalled() {
				t.Error("signalled before the delay has passed")
			}
			time.Sleep(time.Millisecond)
			if !signalled() {
				t.Error("not signalled after the delay")
			}
			time.Sleep(time.Second)
			if signalled() {
				t.Error("signalled twice for two calls within the delay")
			}
		}
	})
}

// TestSettled: signals that come within the delay after the first one count as one; the context ends both waits.
func TestSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		wake := New()
		began := time.Now()
		time.AfterFunc(5*time.Millisecond, wake.Set)
		if err := Settled(ctx, wake, 10*time.Millisecond); err != nil || time.Since(began) != 10*time.Millisecond {
			t.Errorf("settled after %s, %v; want 10ms", time.Since(began), err)
		}
		if got := count(wake.C()); got != 0 {
			t.Errorf("%d signals are left, want none", got)
		}
		time.AfterFunc(time.Second, cancel)
		if err := Settled(ctx, wake, time.Millisecond); !errors.Is(err, context.Canceled) {
			t.Errorf("without a signal: %v", err)
		}
		wake.Set()
		if err := Settled(ctx, New(), time.Hour); !errors.Is(err, context.Canceled) {
			t.Errorf("during the delay: %v", err)
		}
	})
}
