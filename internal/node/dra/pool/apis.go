package pool

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// The names of taints, in the domain of the driver.
const (
	// taintDraining is the taint of a device that goes back to the device plugin.
	taintDraining = "/draining"
	// taintTwoAPIs is the taint of a device that a device plugin has too.
	taintTwoAPIs = "/two-apis"
)

// AddDraining taints the devices of the GPUs that go back to the device plugin.
func (r *Result) AddDraining(draining map[gpu.UUID]bool) {
	r.each(func(driver string, device *resourceapi.Device) {
		if draining[r.Devices[device.Name].GPU] {
			device.Taints = append(device.Taints, resourceapi.DeviceTaint{Key: driver + taintDraining, Effect: resourceapi.DeviceTaintEffectNoSchedule})
		}
	})
}

// AddTwoAPIs taints the devices that the kubelet counts for a device plugin too, by GPU or by the resource name of their class, and
// returns the problem and how many devices it has tainted. The name of a GPU that goes back to the device plugin may be counted already:
// no claim gets that GPU any more.
func (r *Result) AddTwoAPIs(draining map[gpu.UUID]bool, counted func() (gpus map[gpu.UUID]bool, resources map[string]bool), resourceOf func(*resourceapi.Device) string) (problem []gpu.Cause, tainted int) {
	gpus, resources := counted()
	var both []string
	var taint string
	r.each(func(driver string, device *resourceapi.Device) {
		id, resource := r.Devices[device.Name].GPU, resourceOf(device)
		switch {
		case gpus[id]:
			both = append(both, string(id))
		case resources[resource] && !draining[id]:
			both = append(both, resource)
		default:
			return
		}
		tainted++
		taint = driver + taintTwoAPIs
		device.Taints = append(device.Taints, resourceapi.DeviceTaint{Key: taint, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	})
	if tainted == 0 {
		return nil, 0
	}
	slices.Sort(both)
	return []gpu.Cause{{Code: "DRA_TWO_APIS", Message: fmt.Sprintf(
		"the kubelet counts %s for a device plugin, and ResourceSlices of this node have them too; remove the other device plugin from the node (%d devices have the taint %s until then)",
		strings.Join(slices.Compact(both), ", "), tainted, taint)}}, tainted
}

// each calls do for each device, with the name of the driver.
func (r *Result) each(do func(driver string, device *resourceapi.Device)) {
	for i := range r.Slices {
		for k := range r.Slices[i].Spec.Devices {
			do(r.Slices[i].Spec.Driver, &r.Slices[i].Spec.Devices[k])
		}
	}
}
