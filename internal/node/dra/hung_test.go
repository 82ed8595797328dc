package dra

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// TestRetryOverTheSocket: a kubelet that repeats a prepare while the first one is under way gets the result of the first one's work, or,
// when the first one does not return, an error and a problem with the fix.
func TestRetryOverTheSocket(t *testing.T) {
	claim := allocated("train", "u1", result("gpu", 0))
	n := newNode(1)
	now := clocktesting.NewFakeClock(time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC))
	n.clock = now
	hang, begun := make(chan struct{}), make(chan struct{}, 1)
	var inLedger, most atomic.Int32
	n.ledger.holdOn = func(ledger.Claim) {
		if at := inLedger.Add(1); at > most.Load() {
			most.Store(at)
		}
		begun <- struct{}{}
		<-hang // It ignores the end of the call, as a disk that hangs.
		inLedger.Add(-1)
	}
	h := serve(t, n, t.TempDir(), claim)
	k := register(t, h.sockets()[0])
	try := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		names, err := k.prepare(ctx, claim)
		if err == nil && (len(names) != 1 || names[0] != "k8s.berth.dev/gpu=GPU-0") {
			t.Errorf("prepared %v", names)
		}
		return err
	}
	const short = 100 * time.Millisecond
	problems := func() []gpu.Cause { return n.reported(SourceCalls) }
	if err := try(short); err == nil {
		t.Fatal("the prepare has succeeded without the ledger")
	}
	<-begun
	// Within the time of the first call, a retry that ends is no problem.
	now.Step(prepareWithin / 2)
	if err := try(short); err == nil || len(problems()) > 0 {
		t.Errorf("the early retry: %v, problems %v", err, problems())
	}
	now.Step(2 * time.Minute)
	if err := try(short); err == nil {
		t.Error("the late retry has succeeded")
	}
	for deadline := time.Now().Add(10 * time.Second); len(problems()) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no problem is reported")
		}
	}
	for _, part := range []string{"claim ns/train: an earlier call of the kubelet for it has not returned since 2026-12-01T12:00:00Z", "check that disk", "restart the agent"} {
		if got := problems()[0]; got.Code != "DRA_CALL_HANGS" || !strings.Contains(got.Message, part) || strings.Contains(got.Message, "\n") {
			t.Errorf("%q is not in %v", part, got)
		}
	}
	// Two retries wait, and the first call returns.
	ended := make(chan error, 2)
	for range cap(ended) {
		go func() { ended <- try(30 * time.Second) }()
	}
	n.ledger.holdOn = nil
	close(hang)
	for range cap(ended) {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if got := problems(); len(got) > 0 || most.Load() != 1 || n.ledger.holders()["GPU-0"] != "u1" {
		t.Errorf("problems %v; %d calls in the ledger at once; holders %v", got, most.Load(), n.ledger.holders())
	}
	if err := k.unprepare(t.Context(), claim); err != nil || len(n.ledger.holders()) > 0 {
		t.Errorf("%v, holders %v", err, n.ledger.holders())
	}
}

// TestLate: a prepare that takes too long while the kubelet waits has another error than one that the kubelet has ended.
func TestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(1)
		var calls []Call
		deps := n.deps(n.ledger)
		deps.Observe = func(call Call) { calls = append(calls, call) }
		deps.Ready = func(ctx context.Context, _ gpu.UUID) error {
			<-ctx.Done()
			return fmt.Errorf("wait for the device: %w", ctx.Err())
		}
		d := New(deps)
		if err := d.Adopt(); err != nil {
			t.Fatal(err)
		}
		claim := allocated("train", "u1", result("gpu", 0))
		for _, test := range []struct {
			limit time.Duration
			late  bool
		}{{45 * time.Second, true}, {30 * time.Second, false}} {
			ctx, cancel := context.WithTimeout(t.Context(), test.limit)
			began := time.Now()
			got := one(ctx, t, d, claim)
			took := time.Since(began)
			cancel()
			late, is := errors.AsType[*LateError](got.Err)
			if is != test.late || !errors.Is(got.Err, context.DeadlineExceeded) || is && late.Error() != got.Err.Error() || took != min(test.limit, prepareWithin) {
				t.Errorf("limit %s: late %v after %s: %v", test.limit, is, took, got.Err)
			}
			if last := calls[len(calls)-1]; !errors.Is(last.Err, got.Err) {
				t.Errorf("limit %s: observed %v", test.limit, last.Err)
			}
		}
	})
}
