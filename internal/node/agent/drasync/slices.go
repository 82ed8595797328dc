package drasync

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/allocatable"
	"github.com/berth-gpu/berth/internal/node/dra"
	"github.com/berth-gpu/berth/internal/node/dra/claims"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
	"github.com/berth-gpu/berth/internal/node/offer"
)

const (
	// source is the source of the problems of devices that cannot be published.
	source = "dra devices"
	// partitionable is the feature gate without which the API server drops shared counters.
	partitionable = "DRAPartitionableDevices"
	// taintDraining is the taint of a device that goes back to the device plugin, in the domain of the driver.
	taintDraining = pool.DefaultDriver + "/draining"
)

func notServing(err error) bool { return errors.Is(err, dra.ErrNotServing) }

// slices returns what the node publishes now.
func (s *Syncer) slices(disabled []string) (resourceslice.Pool, error) {
	served, draining := map[gpu.UUID]pool.Use{}, map[gpu.UUID]bool{}
	for _, device := range s.deps.Devices.Current() {
		if device.Use.API == offer.DRA {
			served[device.Key.GPU] = pool.Use{DynamicMIG: device.Use.DynamicMIG}
			draining[device.Key.GPU] = draining[device.Key.GPU] || device.Draining != ""
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	result := pool.Build(s.deps.Hardware.Current(), pool.Settings{
		Node: s.deps.NodeName, GPUs: served, WholeOnly: slices.Contains(disabled, partitionable),
	}, s.last)
	addDraining(&result, draining)
	if err := pool.Validate(result.Slices); err != nil {
		return resourceslice.Pool{}, fmt.Errorf("compute slices: %w", err)
	}
	s.last = result.Slices
	var problems []gpu.Cause
	for _, refused := range result.Refused {
		problems = append(problems, gpu.Cause{Code: "DRA_DEVICE_REFUSED", Message: fmt.Sprintf("GPU %s: %s", refused.GPU, refused.Reason)})
	}
	s.deps.Report(source, problems...)
	published := resourceslice.Pool{}
	for i := range result.Slices {
		spec := &result.Slices[i].Spec
		published.Slices = append(published.Slices, resourceslice.Slice{Devices: spec.Devices, SharedCounters: spec.SharedCounters})
	}
	return published, nil
}

// addDraining taints the devices of the GPUs that go back to the device plugin.
func addDraining(result *pool.Result, draining map[gpu.UUID]bool) {
	for i := range result.Slices {
		devices := result.Slices[i].Spec.Devices
		for k := range devices {
			if draining[result.Devices[devices[k].Name].GPU] {
				devices[k].Taints = append(devices[k].Taints,
					resourceapi.DeviceTaint{Key: taintDraining, Effect: resourceapi.DeviceTaintEffectNoSchedule})
			}
		}
	}
}

// devices returns what the names of devices stand for, of all GPUs of the node: a claim can have a device that is not
// published any more. A name stands for a placement while the GPU is dynamic, and else for the MIG device that is there.
func (s *Syncer) devices() []dra.Device {
	snapshot, all := s.deps.Hardware.Current(), map[gpu.UUID]pool.Use{}
	for i := range snapshot.GPUs {
		all[snapshot.GPUs[i].UUID] = pool.Use{}
	}
	inForce := map[gpu.DeviceKey]allocatable.Device{}
	for _, device := range s.deps.Devices.Current() {
		inForce[device.Key] = device
		if device.Use.DynamicMIG {
			all[device.Key.GPU] = pool.Use{DynamicMIG: true}
		}
	}
	named := pool.Build(snapshot, pool.Settings{Node: s.deps.NodeName, GPUs: all}, nil).Devices
	var list []dra.Device
	for _, name := range slices.Sorted(maps.Keys(named)) {
		stands := named[name]
		device := dra.Device{Name: name, Key: gpu.DeviceKey{GPU: stands.GPU, MIG: stands.MIG}, Profile: stands.Placed.Profile}
		unit := device.Key
		if all[stands.GPU].DynamicMIG {
			unit.MIG, device.Dynamic = "", true
			at := gpu.Placement{Start: stands.Placed.Start, Size: stands.Placed.Size}
			device.UUID, device.Key = claims.Existing(snapshot.GPU(stands.GPU), device.Profile, at), gpu.Placed(stands.GPU, at)
		}
		switch now, known := inForce[unit]; {
		case !known:
			device.NotReady = "the node does not offer it now"
		case now.Use.API != offer.DRA:
			device.Health, device.Reason = now.Health, now.Reason
			device.NotReady = "the node allocates it through the device plugin now"
		default:
			device.Health, device.Reason = now.Health, now.Reason
		}
		list = append(list, device)
	}
	return list
}
