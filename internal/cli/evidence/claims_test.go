package evidence

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/berth-gpu/berth/internal/core/trace"
)

// TestOurs: devices of Berth's driver are those of its default name, and those named by UUIDs, whatever the name of the driver is.
func TestOurs(t *testing.T) {
	const own = "gpu-2a5c3378-40cb-28cb-9611-4167e5155386"
	claim := &resourceapi.ResourceClaim{}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
		{Driver: "gpu.example.com", Device: own + "-1g10gb-6"}, {Driver: "gpu.nvidia.com", Device: "gpu-0"}, {Driver: "gpu.berth.dev", Device: "gpu-a"},
		{Driver: "nic.example.com", Device: "nic-2a5c3378-40cb-28cb-9611-4167e5155386"},
	}}}
	devices := claimFact(trace.Source{}, claim).Devices
	if len(devices) != 2 || devices[0].ID != own+"-1g10gb-6" || devices[1].ID != "gpu-a" {
		t.Errorf("the claim has %+v", devices)
	}
}
