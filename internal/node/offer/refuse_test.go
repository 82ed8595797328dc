package offer

import (
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestRefuse checks that settings are refused only for a device that is advertised now and would not be under them.
func TestRefuse(t *testing.T) {
	old, volta := newGPU(0, "GPU-0", 0), newGPU(1, "GPU-1", 0)
	old.ComputeCapability, volta.ComputeCapability = gpu.Version{Major: 6}, gpu.Version{Major: 7}
	old.MemoryBytes, volta.MemoryBytes = 16<<30, 16<<30
	snapshot := &gpu.Snapshot{GPUs: []gpu.GPU{old, volta}}
	share := func(mode Mode, replicas int, index ...int) Settings {
		return Settings{GPUs: []GPURule{{Select: GPUSelect{Index: index}, Sharing: Sharing{Mode: mode, Replicas: replicas}}}}
	}
	tests := map[string]struct {
		inForce Settings
		next    Settings
		want    string
	}{
		"more clients than the older GPU has": {
			share(TimeSlicing, 20), share(MPS, 20),
			"GPU 0 would not be offered (rule gpus[0]): an MPS server of compute capability 6.0 has at most 16 clients",
		},
		"as many as it has":             {share(TimeSlicing, 20), share(MPS, 16), ""},
		"the older GPU is left alone":   {share(TimeSlicing, 20), share(MPS, 20, 1), ""},
		"it was not offered before too": {share(MPS, 17), share(MPS, 20), ""},
		"a GPU that is excluded":        {share(TimeSlicing, 2), Settings{GPUs: []GPURule{{Exclude: true}}}, ""},
		"more than the kubelet takes":   {Settings{}, share(TimeSlicing, MaxReplicas+1), "GPU 1 would not be offered"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := Refuse(snapshot, tc.inForce, tc.next)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Refuse returned %v, want %q", err, tc.want)
			}
		})
	}
}
