package fleet

import (
	"slices"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Free returns the GPUs of which a device can be allocated now. Of a partitioned one it returns those MIG devices only.
func Free(items []v1alpha1.GPUListItem) []v1alpha1.GPUListItem {
	known := map[string]bool{}
	for i := range items {
		known[items[i].Node] = known[items[i].Node] || Advertised(items[i].GPUDevice)
	}
	out := []v1alpha1.GPUListItem{}
	for i := range items {
		item := items[i]
		units := unitsOf(&item.GPUDevice, known[item.Node])
		if !slices.ContainsFunc(units, func(u deviceUnit) bool { return u.free > 0 }) {
			continue
		}
		var parts []v1alpha1.MIGDevice
		for k := range item.MIGDevices {
			if units[k].free > 0 {
				parts = append(parts, item.MIGDevices[k])
			}
		}
		item.MIGDevices = parts
		out = append(out, item)
	}
	return out
}

// Unhealthy returns the GPUs that are not healthy, degraded ones included, and those of which a MIG device is not. Of a healthy GPU it
// returns those MIG devices only.
func Unhealthy(items []v1alpha1.GPUListItem) []v1alpha1.GPUListItem {
	out := []v1alpha1.GPUListItem{}
	for i := range items {
		item := items[i]
		if ill(&item.Health) {
			out = append(out, item)
			continue
		}
		var parts []v1alpha1.MIGDevice
		for k := range item.MIGDevices {
			if health := item.MIGDevices[k].Health; health != nil && ill(health) {
				parts = append(parts, item.MIGDevices[k])
			}
		}
		if len(parts) > 0 {
			item.MIGDevices = parts
			out = append(out, item)
		}
	}
	return out
}

func ill(health *v1alpha1.DeviceHealth) bool {
	return health.State != string(gpu.Healthy) && health.State != "" || len(health.Causes) > 0
}
