package drasync

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/dra"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
	"github.com/berth-gpu/berth/internal/node/offer"
)

const (
	// source is the source of the problems of devices that cannot be published.
	source = "dra devices"
	// partitionable is the feature gate without which the API server drops shared counters.
	partitionable = "DRAPartitionableDevices"
	// twoAPIs is the source of the problem that a device plugin has what slices have.
	twoAPIs = "dra two apis"
)

func notServing(err error) bool { return errors.Is(err, dra.ErrNotServing) }

// slices returns what the node publishes now.
func (s *Syncer) slices(disabled []string) (resourceslice.Pool, error) {
	current := s.deps.Devices.Current()
	var wanted []gpu.UUID
	for _, device := range current {
		if device.Use.API == offer.DRA {
			wanted = append(wanted, device.Key.GPU)
		}
	}
	allowed := s.deps.Handover.Publish(wanted)
	served, draining := map[gpu.UUID]pool.Use{}, map[gpu.UUID]bool{}
	for _, device := range current {
		if device.Use.API == offer.DRA && allowed[device.Key.GPU] {
			served[device.Key.GPU] = pool.Use{DynamicMIG: device.Use.DynamicMIG}
			draining[device.Key.GPU] = draining[device.Key.GPU] || device.Draining != ""
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	result := pool.Build(s.deps.Hardware.Current(), pool.Settings{
		Driver: s.deps.DriverName, Node: s.deps.NodeName, GPUs: served, WholeOnly: slices.Contains(disabled, partitionable),
	}, s.last)
	result.AddDraining(draining)
	both, tainted := result.AddTwoAPIs(draining, s.deps.Handover.Counted, resourceOf)
	s.tainted.Store(int64(tainted))
	s.deps.Report(twoAPIs, both...)
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

// resourceOf returns the extended resource name of the default class that selects a device.
func resourceOf(device *resourceapi.Device) string {
	if profile := device.Attributes[pool.AttributeProfile].StringValue; profile != nil {
		return offer.MIGResource(*profile)
	}
	return offer.DefaultResource
}

// devices returns what the names of devices stand for, of all GPUs of the node: a claim can have a device that is not
// published any more. A name stands for a placement while the GPU is dynamic, and else for the MIG device that is there.
func (s *Syncer) devices() []dra.Device {
	snapshot, all := s.deps.Hardware.Current(), map[gpu.UUID]pool.Use{}
	for i := range snapshot.GPUs {
		all[snapshot.GPUs[i].UUID] = pool.Use{}
	}
	inForce := map[gpu.DeviceKey]offer.Placed{}
	for _, device := range s.deps.Devices.Current() {
		inForce[device.Key] = device
		if device.Use.DynamicMIG {
			all[device.Key.GPU] = pool.Use{DynamicMIG: true}
		}
	}
	named := pool.Build(snapshot, pool.Settings{Driver: s.deps.DriverName, Node: s.deps.NodeName, GPUs: all}, nil).Devices
	var list []dra.Device
	for _, name := range slices.Sorted(maps.Keys(named)) {
		stands := named[name]
		device := dra.Device{Name: name, Key: gpu.DeviceKey{GPU: stands.GPU, MIG: stands.MIG}, Profile: stands.Placed.Profile}
		unit := device.Key
		if all[stands.GPU].DynamicMIG {
			unit.MIG, device.Dynamic = "", true
			at := gpu.Placement{Start: stands.Placed.Start, Size: stands.Placed.Size}
			device.UUID, device.Key = existingDevice(snapshot.GPU(stands.GPU), device.Profile, at), gpu.Placed(stands.GPU, at)
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

// served returns the extended resource names of the devices that are allocated through DRA, sorted.
func (s *Syncer) served() []string {
	var names []string
	for _, device := range s.deps.Devices.Current() {
		if device.Use.API == offer.DRA {
			names = append(names, device.Use.Resource)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
