package bound

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestCall checks the result of a call that ends, and the error for one that hangs, which is returned in time.
func TestCall(t *testing.T) {
	broken := errors.New("broken")
	if got, err := Call(t.Context(), "ask", func() (int, error) { return 7, broken }); got != 7 || !errors.Is(err, broken) {
		t.Errorf("Call = %d, %v; want what the function returned", got, err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		hang := make(chan struct{})
		defer close(hang)
		began := time.Now()
		got, err := Call(ctx, "read the mode of GPU-1", func() (int, error) { <-hang; return 7, nil })
		if want := "read the mode of GPU-1: no answer from the driver: context deadline exceeded"; got != 0 || err == nil || err.Error() != want {
			t.Errorf("Call = %d, %v; want %s", got, err, want)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("Call took %s, want 1s", took)
		}
	})
}

// TestPending checks that a call that a caller has stopped waiting for is reported as returned once it has.
func TestPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		hang, broken := make(chan struct{}), errors.New("broken")
		call := Start(func() (int, error) { <-hang; return 7, broken })
		if call.Wait(ctx) || call.Returned() {
			t.Error("the call has returned while it hangs")
		}
		close(hang)
		<-call.Done()
		if got, err := call.Result(); !call.Returned() || got != 7 || !errors.Is(err, broken) {
			t.Errorf("Result = %d, %v, returned %v; want what the function returned", got, err, call.Returned())
		}
		if !call.Wait(ctx) {
			t.Error("Wait gives up a call that has returned, because the context has ended")
		}
	})
}
