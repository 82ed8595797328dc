package migapply

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/openers"
)

// TestOpenGPU checks that a GPU that a program has open is not changed: it waits, has failed after 30 seconds and
// serves as it is, and is changed once the program has closed it.
func TestOpenGPU(t *testing.T) {
	for _, test := range []struct{ is, want string }{{"7x1g.10gb", "off"}, {"off", "1x7g.80gb"}} {
		t.Run(test.is+" to "+test.want, func(t *testing.T) {
			w := newWorld(t, t.TempDir(), 2)
			w.be("GPU-0", test.is)
			before := len(w.gpuOf("GPU-0").instances)
			w.gpuOf("GPU-0").openers = []openers.Opener{{PID: 4711, Program: "nv-hostengine", Pod: "gpu/dcgm-x", Stop: "stop DCGM"}}
			w.want("GPU-0", test.want, "layout x")
			w.want("GPU-1", "1x7g.80gb", "") // needs no reset
			untouched := func(state State, got Status) {
				t.Helper()
				if got.State != state || len(w.gpuOf("GPU-0").instances) != before || w.gpuOf("GPU-0").pending != w.gpuOf("GPU-0").enabled {
					t.Errorf("%s, want %s: %s\n%s", got.State, state, got.Message, w.picture())
				}
				for _, part := range []string{"process 4711", "nv-hostengine", "gpu/dcgm-x", "stop DCGM"} {
					if !strings.Contains(got.Message, part) {
						t.Errorf("%q is not in: %s", part, got.Message)
					}
				}
			}
			free := gpu.DeviceKey{GPU: "GPU-0"}
			if before > 0 {
				free.MIG = "MIG-0-13"
			}
			untouched(Waiting, state(t, w.reconcile(), "GPU-0"))
			var blocked *ledger.BlockedError
			if err := w.run("early", free); !errors.As(err, &blocked) {
				t.Errorf("a pod got %s while the GPU waits: %v", free, err)
			}
			w.clock.Step(openWithin - time.Second)
			untouched(Waiting, state(t, w.reconcile(), "GPU-0"))
			w.clock.Step(time.Second)
			untouched(Failed, state(t, w.reconcile(), "GPU-0"))
			if device := w.gpuOf("GPU-1"); !device.enabled || len(device.instances) != 1 {
				t.Errorf("the other GPU was not changed:\n%s", w.picture())
			}
			for range 3 { // the wanted layout is unchanged
				w.clock.Step(lastRetry)
				untouched(Failed, state(t, w.reconcile(), "GPU-0"))
			}
			if err := w.run("pod", free); err != nil {
				t.Errorf("the GPU cannot be allocated: %v", err)
			}
			w.clock.Step(lastRetry)
			if got := state(t, w.reconcile(), "GPU-0"); got.State != Waiting || !strings.Contains(got.Message, "default/pod") {
				t.Errorf("%s: %s", got.State, got.Message)
			}
			w.end("pod")
			w.gpuOf("GPU-0").openers = nil
			w.settle()
			w.reached(w.wants)
			if n := strings.Count(strings.Join(w.trace, " "), "reset ["); n != 1 {
				t.Errorf("%d resets: %v", n, w.trace)
			}
		})
	}
}

// TestOpenersUnknown checks that a GPU is not changed while the programs that have it open cannot be listed.
func TestOpenersUnknown(t *testing.T) {
	w := newWorld(t, t.TempDir(), 1)
	w.be("GPU-0", "7x1g.10gb")
	w.want("GPU-0", "off", "")
	w.breakNext([]string{"openers"}, false)
	if got := state(t, w.reconcile(), "GPU-0"); got.State != Waiting || !strings.Contains(got.Message,
		"who has it open") || len(w.gpuOf("GPU-0").instances) != 7 {
		t.Errorf("%s: %s\n%s", got.State, got.Message, w.picture())
	}
	w.settle()
	w.reached(w.wants)
}
