package pool

import (
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
)

// TestIsDeviceName recognizes the names of all devices, and no others.
func TestIsDeviceName(t *testing.T) {
	const id gpu.UUID = "GPU-2A5C3378-40cb-28cb-9611-4167e5155386"
	for _, name := range []string{
		DeviceName(id, mig.Placed{}), DeviceName(id, mig.Placed{Profile: "1g.10gb+me", Start: 6}), DeviceName(id, mig.Placed{Profile: "1g.24gb-me"}),
	} {
		if !IsDeviceName(name) {
			t.Errorf("%s is not a name", name)
		}
	}
	for _, name := range []string{
		"", "gpu-", "gpu-0", "gpu-0-mig-1g10gb-0", "nic-2a5c3378-40cb-28cb-9611-4167e5155386", "2a5c3378-40cb-28cb-9611-4167e5155386",
		"gpu-2a5c3378-40cb-28cb-9611-4167e515538", "gpu-2a5c3378-40cb-28cb-9611-4167e51553860", "gpu-2a5c3378-40cb-28cb-9611-4167e515538g",
		"gpu-2a5c337-840cb-28cb-9611-4167e5155386", "gpu-2a5c3378-40cb-28cb-9611-4167e515-386",
	} {
		if IsDeviceName(name) {
			t.Errorf("%s is a name", name)
		}
	}
}
