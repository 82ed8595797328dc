package pool

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestTwoAPIs: exactly those devices are tainted whose GPU the kubelet counts, or whose resource name it counts while their GPU stays.
func TestTwoAPIs(t *testing.T) {
	type ids = map[gpu.UUID]bool
	type names = map[string]bool
	for name, test := range map[string]struct {
		gpus      ids
		resources names
		draining  ids
		want      []string
		message   string
	}{
		"nothing":                 {},
		"another resource":        {resources: names{"example.com/gpu": true}},
		"one GPU":                 {gpus: ids{"GPU-a": true}, resources: names{"example.com/gpu": true}, want: []string{"gpu-a", "mig-a"}, message: "counts GPU-a for"},
		"one name":                {resources: names{"whole": true}, want: []string{"gpu-a", "gpu-b"}, message: "counts whole for"},
		"both":                    {gpus: ids{"GPU-b": true}, resources: names{"mig": true}, want: []string{"mig-a", "gpu-b"}, message: "counts GPU-b, mig for"},
		"a name while one leaves": {resources: names{"whole": true}, draining: ids{"GPU-a": true}, want: []string{"gpu-b"}, message: "counts whole for"},
		"a GPU that leaves":       {gpus: ids{"GPU-a": true}, draining: ids{"GPU-a": true}, want: []string{"gpu-a", "mig-a"}, message: "counts GPU-a for"},
	} {
		t.Run(name, func(t *testing.T) {
			result := Result{Devices: map[string]Device{"gpu-a": {GPU: "GPU-a"}, "mig-a": {GPU: "GPU-a"}, "gpu-b": {GPU: "GPU-b"}}, Slices: make([]resourceapi.ResourceSlice, 2)}
			result.Slices[0].Spec.Driver, result.Slices[1].Spec.Driver = "gpu.example.com", "gpu.example.com"
			result.Slices[0].Spec.Devices = []resourceapi.Device{{Name: "gpu-a"}, {Name: "mig-a"}}
			result.Slices[1].Spec.Devices = []resourceapi.Device{{Name: "gpu-b"}}
			problem, n := result.AddTwoAPIs(test.draining, func() (ids, names) { return test.gpus, test.resources }, func(d *resourceapi.Device) string {
				return map[bool]string{true: "mig", false: "whole"}[strings.HasPrefix(d.Name, "mig")]
			})
			var tainted []string
			result.each(func(_ string, d *resourceapi.Device) {
				if len(d.Taints) == 1 && d.Taints[0].Key == "gpu.example.com/two-apis" && d.Taints[0].Effect == resourceapi.DeviceTaintEffectNoSchedule {
					tainted = append(tainted, d.Name)
				}
			})
			if diff := cmp.Diff(test.want, tainted); diff != "" || n != len(test.want) {
				t.Errorf("%d tainted (-want +got):\n%s", n, diff)
			}
			if (len(problem) == 1) != (len(test.want) > 0) || len(problem) == 1 && !strings.Contains(problem[0].Message, test.message) {
				t.Errorf("the problem is %v, want %q", problem, test.message)
			}
		})
	}
}
