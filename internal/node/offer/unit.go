package offer

import (
	"fmt"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Mode is how containers share a device.
type Mode string

// The modes.
const (
	// Whole means that one container at a time uses the device.
	Whole       Mode = ""
	TimeSlicing Mode = "timeSlicing"
	MPS         Mode = "mps"
	// Unknown is the mode of a GPU whose replicas are in use while the record of its mode is lost. It is never wanted,
	// and ends when the GPU is released.
	Unknown Mode = "unknown"
)

// API is the API of Kubernetes through which a device is allocated.
type API string

// The APIs. A device is allocated through one of them at a time.
const (
	// DevicePlugin is the kubelet's API of extended resources.
	DevicePlugin API = ""
	// DRA is Dynamic Resource Allocation: ResourceSlices and ResourceClaims.
	DRA API = "dra"
)

// Use says how a device is advertised. Equal uses need no change; a device must be released before its API, resource or
// mode can change.
type Use struct {
	API API `json:"api,omitempty"`
	// DynamicMIG means that claims get the whole GPU, or MIG devices that are created for them: the unit is the whole GPU, also
	// while it has MIG devices.
	DynamicMIG bool `json:"dynamicMIG,omitempty"`
	// Resource is the full extended resource name. With DRA it is the name that a DeviceClass maps to the device.
	Resource string `json:"resource"`
	Mode     Mode   `json:"mode,omitempty"`
	// Replicas are 0 for Whole and 1 or more otherwise.
	Replicas int `json:"replicas,omitempty"`
	// RefuseMany refuses a container that requests more than one replica.
	RefuseMany bool `json:"refuseMany,omitempty"`
	// TimeSlice is short, medium or long; empty is the driver's default.
	TimeSlice string `json:"timeSlice,omitempty"`
	// The limits of mode MPS.
	gpu.MPSLimits
}

// Unit is a GPU or a MIG device with its use.
type Unit struct {
	// Key has no replica.
	Key gpu.DeviceKey `json:"key"`
	Use Use           `json:"use"`
	// Draining says why the device is not allocated any more and what it waits for; it is empty for a device in normal
	// use.
	Draining string `json:"draining,omitempty"`
}

// String returns the use as readable text: "nvidia.com/gpu.shared (time-sliced x4)".
func (u Use) String() string {
	how := "unshared"
	switch u.Mode {
	case TimeSlicing:
		how = fmt.Sprintf("time-sliced x%d", u.Replicas)
	case MPS:
		how = fmt.Sprintf("MPS x%d", u.Replicas)
		if u.SingleUser {
			how += ", one user"
		}
	case Unknown:
		how = "shared, mode unknown"
	}
	switch {
	case u.DynamicMIG:
		return "allocated through DRA with MIG devices on demand"
	case u.API == DRA:
		return "allocated through DRA"
	}
	return u.Resource + " (" + how + ")"
}

// MPSUnits returns the units that need an MPS daemon, including draining ones, because the end of the daemon would end
// its clients.
func MPSUnits(units []Unit) []Unit {
	var some []Unit
	for _, unit := range units {
		if unit.Use.Mode == MPS {
			some = append(some, unit)
		}
	}
	return some
}

// TimeSlice is the wanted time slice of a GPU.
type TimeSlice struct {
	GPU gpu.UUID
	// Slice is short, medium or long.
	Slice string
}

// TimeSlices returns the GPUs whose time slice differs from the driver's default, in the order of units. All others get
// the default.
func TimeSlices(units []Unit) []TimeSlice {
	var wanted []TimeSlice
	for _, unit := range units {
		if unit.Use.Mode == TimeSlicing && unit.Use.TimeSlice != "" {
			wanted = append(wanted, TimeSlice{GPU: unit.Key.GPU, Slice: unit.Use.TimeSlice})
		}
	}
	return wanted
}
