package health_test

import (
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/health"
)

// watched is a GPU that is scanned every five seconds by a driver that responds and finds nothing else wrong.
type watched struct {
	record health.Record
	now    time.Time
}

func (w *watched) event(xid uint64) {
	w.record = health.Update(health.Input{
		Previous: w.record, Now: w.now,
		Events: []gpu.Event{{Code: gpu.XID(xid), GI: gpu.NoInstance, CI: gpu.NoInstance, Time: w.now}},
	})
}

func (w *watched) scan(recovery gpu.Recovery) gpu.State {
	in := health.Input{Previous: w.record, ScanBegan: w.now, Now: w.now, Answers: true, Recovery: recovery}
	if recovery != gpu.RecoveryNone {
		in.Seen = []gpu.Cause{{Code: "RECOVERY_ACTION", Message: "asked"}}
	}
	w.record = health.Update(in)
	return w.record.Whole(health.Rules{}).State
}

// back scans until the GPU is healthy again and returns how long that took; limit when it is not.
func (w *watched) back(limit time.Duration, says func(since time.Duration) gpu.Recovery) time.Duration {
	for began := w.now; ; {
		w.now = w.now.Add(5 * time.Second)
		since := w.now.Sub(began)
		if state := w.scan(says(since)); state == gpu.Healthy || since >= limit {
			return since
		}
	}
}

func none(time.Duration) gpu.Recovery { return gpu.RecoveryNone }

// TestNoneIsNoProofByItself has errors that need a reset or a reboot and a driver that always reports that nothing
// needs repair, or reports it until its diagnosis is finished.
func TestNoneIsNoProofByItself(t *testing.T) {
	for _, xid := range []uint64{119, 48, 74, 79} {
		w := &watched{now: start}
		w.scan(gpu.RecoveryNone)
		w.event(xid)
		if got := w.back(2*time.Hour, none); got < 5*time.Minute || got > 5*time.Minute+15*time.Second {
			t.Errorf("XID %d, recovery action always None: healthy again after %v; want the hold-off of 5 minutes", xid, got)
		}

		// The driver reports the action with its third timeout and withdraws it after the GPU was reset an hour later.
		w = &watched{now: start}
		w.scan(gpu.RecoveryNone)
		w.event(xid)
		got := w.back(2*time.Hour, func(since time.Duration) gpu.Recovery {
			if since < 135*time.Second || since >= time.Hour {
				return gpu.RecoveryNone
			}
			return gpu.RecoveryGPUReset
		})
		if got != time.Hour {
			t.Errorf("XID %d, recovery action from 135 s to 1 h: healthy again after %v; want 1h0m0s", xid, got)
		}
	}
}
