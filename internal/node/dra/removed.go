package dra

import (
	"fmt"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
)

// RemovedDevice describes a device that a claim holds and whose GPU is not on the node any more. It has no name when it is a MIG device
// that did not exist yet, or of which it is not known where on the GPU it was.
func RemovedDevice(h *gpu.Holding, poolName string) StatusDevice {
	device := StatusDevice{
		Pool: poolName, UUID: h.Key.Device(), Profile: h.Profile, Since: h.Since, Health: gpu.Gone,
		Reason: fmt.Sprintf("GPU %s is not on this node any more: it was removed, or the driver does not list it; delete the pods of the claim, and the claim, to get another GPU", h.Key.GPU),
	}
	if !h.Key.Whole() {
		device.Parent = h.Key.GPU
	}
	if h.Key.Whole() || h.Key.MIG != "" && h.Profile != "" && h.Placement.Known() {
		device.Name = pool.DeviceName(h.Key.GPU, mig.Placed{Profile: h.Profile, Start: h.Placement.Start, Size: h.Placement.Size})
	}
	return device
}

// removed returns a problem for each device whose GPU is not on the node any more.
func removed(claims []StatusClaim) (problems []gpu.Cause) {
	for i := range claims {
		for k := range claims[i].Devices {
			if device := &claims[i].Devices[k]; device.Health == gpu.Gone {
				problems = append(problems, gpu.Cause{Code: "DRA_GPU_REMOVED", Message: fmt.Sprintf("claim %s/%s: %s", claims[i].Namespace, claims[i].Name, device.Reason)})
			}
		}
	}
	return problems
}
