package offer

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestOtherVendors: the settings are about the GPUs of one vendor; those of the others are advertised whole, as their own resource,
// which no device of the first may have.
func TestOtherVendors(t *testing.T) {
	snapshot := &gpu.Snapshot{GPUs: []gpu.GPU{
		{UUID: "GPU-a", Vendor: gpu.NVIDIA}, {UUID: "GPU-b", Vendor: gpu.NVIDIA, Index: 1}, {UUID: "EX-0", Vendor: "other"},
	}}
	settings := Settings{
		Vendor: gpu.NVIDIA, OtherVendors: map[string]string{"other": "other.example/gpu"},
		GPUs: []GPURule{{Select: GPUSelect{Index: []int{0}}, Sharing: Sharing{Mode: TimeSlicing, Replicas: 2}}},
	}
	units, problems := Resolve(snapshot, settings)
	want := []Unit{
		{Key: gpu.DeviceKey{GPU: "EX-0"}, Use: Use{Resource: "other.example/gpu"}},
		{Key: gpu.DeviceKey{GPU: "GPU-a"}, Use: Use{Resource: DefaultResource, Mode: TimeSlicing, Replicas: 2}},
		{Key: gpu.DeviceKey{GPU: "GPU-b"}, Use: Use{Resource: DefaultResource}},
	}
	if diff := cmp.Diff(want, units); diff != "" {
		t.Errorf("units (-want +got):\n%s", diff)
	}
	for _, p := range problems {
		if p.Code != MixedResource { // a shared and an unshared GPU
			t.Errorf("problem %+v", p)
		}
	}
	for resource, vendor := range map[string]string{"other.example/gpu": "other", DefaultResource: gpu.NVIDIA, "nvidia.com/shared": gpu.NVIDIA} {
		if got := settings.VendorOf(resource); got != vendor {
			t.Errorf("%s is of %q, want %q", resource, got, vendor)
		}
	}

	settings.GPUs[0].ResourceName = "other.example/gpu"
	units, problems = Resolve(snapshot, settings)
	if diff := cmp.Diff([]Unit{want[0], want[2]}, units); diff != "" {
		t.Errorf("units with a rule that takes the other's resource (-want +got):\n%s", diff)
	}
	if len(problems) != 1 || problems[0].Code != ResourceNameInvalid || !strings.Contains(problems[0].Message, "vendor other") {
		t.Errorf("problems %+v", problems)
	}
}
