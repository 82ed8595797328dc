package agent

import (
	"testing"

	"github.com/berth-gpu/berth/internal/hardware/nvidia"
)

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
