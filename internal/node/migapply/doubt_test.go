package migapply

import (
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestUnsurePartition checks that after a scan that could not read the placements, no instance is planned to be
// removed, and an applied GPU is still reported as Applied.
func TestUnsurePartition(t *testing.T) {
	w := newWorld(t, t.TempDir(), 1)
	w.be("GPU-0", "7x1g.10gb")
	w.want("GPU-0", "7x1g.10gb", "")
	for _, first := range []bool{true, false} {
		points := w.points
		w.gpuOf("GPU-0").unsure = true
		w.scan()
		got := state(t, w.reconcile(), "GPU-0")
		if first && (got.State != Waiting || !strings.Contains(got.Message,
			"could not be read")) || !first && got.State != Applied || w.points != points {
			t.Errorf("first %v: %s: %s; %v", first, got.State, got.Message, w.trace)
		}
		w.gpuOf("GPU-0").unsure = false
		w.scan()
		if got := state(t, w.reconcile(), "GPU-0"); got.State != Applied || w.points != points {
			t.Errorf("read again: %s: %s; %v", got.State, got.Message, w.trace)
		}
	}
}

// TestEmptyOrHeld: a scan reports an instance as empty although a pod holds its MIG device, and does not list the
// device. The instance is kept until the pod has ended, whatever the layout, and the plan names the pod.
func TestEmptyOrHeld(t *testing.T) {
	for _, layout := range []string{"7x1g.10gb", "6x1g.10gb", "1x7g.80gb"} {
		t.Run(layout, func(t *testing.T) {
			w := newWorld(t, t.TempDir(), 1)
			w.be("GPU-0", "7x1g.10gb")
			if err := w.run("a", gpu.DeviceKey{GPU: "GPU-0", MIG: "MIG-0-10"}); err != nil {
				t.Fatal(err)
			}
			w.gpuOf("GPU-0").instances[0].device = false
			w.scan()
			w.want("GPU-0", layout, "")
			if got := state(t, w.reconcile(), "GPU-0"); got.State != Waiting || !strings.Contains(got.Message, "default/a") {
				t.Errorf("%s: %s", got.State, got.Message)
			}
			if got := w.gpuOf("GPU-0").instances; len(got) == 0 || got[0].GI != 10 {
				t.Errorf("the instance was removed:\n%s%v", w.picture(), w.trace)
			}
			w.end("a")
			w.settle()
			w.reached(w.wants)
		})
	}
}
