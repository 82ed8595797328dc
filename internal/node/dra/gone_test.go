package dra

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestClaimsGone: of 10,000 claims that come and go, some of which had a call that did not return in its time, nothing is kept.
func TestClaimsGone(t *testing.T) {
	var locks claimLocks
	var hung hungCalls
	report := func(string, ...gpu.Cause) {}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range 10_000 {
		uid := fmt.Sprint("claim-", i)
		unlock, err := locks.lock(t.Context(), uid, time.Now)
		if err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			if _, err := locks.lock(over, uid, time.Now); err == nil {
				t.Fatal("two calls for one claim")
			}
			hung.add(uid, "it hangs", report)
		}
		hung.end(uid, report)
		unlock()
	}
	if len(locks.locks) > 0 || len(hung.claims) > 0 {
		t.Errorf("%d locks and %d calls are kept", len(locks.locks), len(hung.claims))
	}
}
