package migapply

import (
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestClaimOfAPlacement: while a claim holds a placement, in which a MIG device is about to be made, no layout is applied that
// could take its slices: neither one that only adds instances, nor one that removes some, nor the end of MIG.
func TestClaimOfAPlacement(t *testing.T) {
	placed := gpu.Placed("GPU-0", gpu.Placement{Start: 0, Size: 1})
	claim := gpu.Holder{Kind: gpu.HolderClaim, ID: "4711", Namespace: "ml", Name: "train"}
	for name, layout := range map[string]string{"adds": "7x1g.10gb", "removes": "1x7g.80gb", "ends": "off"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, t.TempDir(), 1)
			w.be("GPU-0", "5x1g.10gb")
			if err := w.book.Acquire(claim, []gpu.DeviceKey{placed}); err != nil {
				t.Fatal(err)
			}
			w.want("GPU-0", layout, "")
			got := state(t, w.reconcile(), "GPU-0")
			if got.State != Waiting || !strings.Contains(got.Message, "ResourceClaim ml/train") {
				t.Errorf("beside a claim: %+v", got)
			}
			if now := w.gpuOf("GPU-0"); len(now.instances) != 5 || !now.enabled {
				t.Errorf("the layout was applied:\n%s", w.picture())
			}
			if err := w.book.Release(claim, nil); err != nil {
				t.Fatal(err)
			}
			w.reconcile()
			w.reached(w.wants)
		})
	}
}
