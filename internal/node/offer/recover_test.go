package offer

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

func TestRecover(t *testing.T) {
	key := func(physical, part gpu.UUID, share int) gpu.DeviceKey {
		return gpu.DeviceKey{GPU: physical, MIG: part, Share: share}
	}
	hold := func(key gpu.DeviceKey, resource string) gpu.Holding {
		return gpu.Holding{Key: key, Holder: gpu.Holder{Kind: gpu.HolderPod, Resource: resource}}
	}
	tests := map[string]struct {
		held []gpu.Holding
		want []Unit
	}{
		"nothing is held": {},
		"a whole GPU":     {[]gpu.Holding{hold(key("a", "", 0), "x/gpu")}, []Unit{{Key: key("a", "", 0), Use: Use{Resource: "x/gpu"}}}},
		"a MIG device that does not exist yet": {
			[]gpu.Holding{{Key: gpu.Placed("a", gpu.Placement{Size: 4}), Holder: gpu.Holder{Kind: gpu.HolderClaim, ID: "c"}}}, nil,
		},
		"its resource is not known": {
			[]gpu.Holding{hold(key("a", "", 0), "")}, []Unit{{Key: key("a", "", 0), Use: Use{Resource: "x/default"}}},
		},
		"shares of a GPU": {
			[]gpu.Holding{hold(key("a", "", 3), "x/shared"), hold(key("a", "", 1), "")},
			[]Unit{{Key: key("a", "", 0), Use: Use{Resource: "x/shared", Mode: Unknown, Replicas: 3}}},
		},
		"a claim's GPU": {
			[]gpu.Holding{{Key: key("a", "", 0), Holder: gpu.Holder{Kind: gpu.HolderClaim, ID: "uid"}}},
			[]Unit{{Key: key("a", "", 0), Use: Use{API: DRA, Resource: "x/default"}}},
		},
		"shares of MIG devices are time-sliced": {
			[]gpu.Holding{hold(key("a", "m2", 0), "x/mig"), hold(key("a", "m1", 2), "x/mig")},
			[]Unit{
				{Key: key("a", "m1", 0), Use: Use{Resource: "x/mig", Mode: TimeSlicing, Replicas: 2}},
				{Key: key("a", "m2", 0), Use: Use{Resource: "x/mig"}},
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Recover(tc.held, "x/default")); diff != "" {
				t.Errorf("Recover (-want +got):\n%s", diff)
			}
		})
	}
}
