package agent

import (
	"errors"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/google/go-cmp/cmp"
	testingclock "k8s.io/utils/clock/testing"
	"log/slog"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/hardware/nvidia"
)

func TestBoard(t *testing.T) {
	clock := testingclock.NewFakePassiveClock(time.Unix(100, 0))
	b := newBoard(clock, slog.New(slog.DiscardHandler))
	b.fail("cdi", "CDI", errors.New("no space"))
	b.fail("checkpoint", "CHECKPOINT", errors.New("corrupt"))
	clock.SetTime(time.Unix(200, 0))
	b.fail("cdi", "CDI", errors.New("no space")) // It stands, since the first time.
	b.fail("checkpoint", "CHECKPOINT", nil)
	want := []gpu.Cause{{Code: "CDI", Message: "no space", Since: time.Unix(100, 0)}}
	if diff := cmp.Diff(want, b.all()); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	b.set("cdi", gpu.Cause{Code: "CDI", Message: "no driver"})
	if got := b.all(); len(got) != 1 || !got[0].Since.Equal(time.Unix(200, 0)) {
		t.Errorf("another problem of the same source is %v, want it to begin now", got)
	}
}

// TestMPSDaemonIsNoOpener: the control daemon of the GPU and what it has started are Berth's own, nobody else is.
func TestMPSDaemonIsNoOpener(t *testing.T) {
	all := []nvidia.Opener{{PID: 10, Parent: 1}, {PID: 11, Parent: 10}, {PID: 12, Parent: 11}, {PID: 20, Parent: 1}, {PID: 21, Parent: 21}}
	for _, o := range all {
		if got, want := isDaemon(10, all, o), o.PID < 20; got != want {
			t.Errorf("process %d: %v, want %v", o.PID, got, want)
		}
		if isDaemon(0, all, o) {
			t.Errorf("process %d is of a daemon, and there is none", o.PID)
		}
	}
	if !isDaemon(10, all[1:], all[1]) {
		t.Error("a server whose daemon has not the GPU open is somebody else's")
	}
}
