package pool

import (
	"cmp"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// former is the pool as it is published.
type former struct {
	devices [][]resourceapi.Device
	sets    [][]resourceapi.CounterSet
	// at are the slices with devices of each GPU, as positions in devices.
	at map[gpu.UUID][]int
	// islands are the names of the GPUs' islands.
	islands map[gpu.UUID]string
}

// ofPool returns the slices of the newest generation of a pool, in the order of their names.
func ofPool(list []resourceapi.ResourceSlice, driver, pool string) []resourceapi.ResourceSlice {
	var some []resourceapi.ResourceSlice
	for i := range list {
		spec := &list[i].Spec
		if spec.Driver != driver || spec.Pool.Name != pool {
			continue
		}
		if len(some) > 0 && some[0].Spec.Pool.Generation < spec.Pool.Generation {
			some = nil
		}
		if len(some) == 0 || some[0].Spec.Pool.Generation == spec.Pool.Generation {
			some = append(some, list[i])
		}
	}
	slices.SortFunc(some, func(a, b resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	return some
}

// formerOf reads published slices. Slices that Build does not make, such as counters before devices, give an empty result, so that
// all slices are made again.
func formerOf(list []resourceapi.ResourceSlice) *former {
	f := &former{at: map[gpu.UUID][]int{}, islands: map[gpu.UUID]string{}}
	for i := range list {
		spec := &list[i].Spec
		if len(spec.SharedCounters) > 0 {
			f.sets = append(f.sets, spec.SharedCounters)
			continue
		}
		if len(f.sets) > 0 {
			return &former{islands: f.islands}
		}
		for k := range spec.Devices {
			f.add(&spec.Devices[k], len(f.devices))
		}
		f.devices = append(f.devices, spec.Devices)
	}
	return f
}

// GPUs returns the GPUs of all devices in slices, sorted.
func GPUs(list ...resourceapi.ResourceSlice) []gpu.UUID {
	var all []gpu.UUID
	for i := range list {
		for k := range list[i].Spec.Devices {
			all = append(all, gpuOf(&list[i].Spec.Devices[k]))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// gpuOf returns the GPU that a device is, or is a part of.
func gpuOf(device *resourceapi.Device) gpu.UUID {
	return gpu.UUID(cmp.Or(text(device, AttributeParentUUID), text(device, AttributeUUID)))
}

// add records the GPU of a device.
func (f *former) add(device *resourceapi.Device, slice int) {
	id := gpuOf(device)
	if at := f.at[id]; len(at) == 0 || at[len(at)-1] != slice {
		f.at[id] = append(at, slice)
	}
	if island := text(device, AttributeIsland); island != "" {
		f.islands[id] = island
	}
}

// text returns the value of an attribute, or an empty string.
func text(device *resourceapi.Device, name resourceapi.QualifiedName) string {
	if value := device.Attributes[name].StringValue; value != nil {
		return *value
	}
	return ""
}
