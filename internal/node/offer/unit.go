package offer

import (
	"fmt"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Mode is how containers share a device.
type Mode string

// The modes.
const (
	// Whole gives a device to one container at a time.
	Whole       Mode = ""
	TimeSlicing Mode = "timeSlicing"
	MPS         Mode = "mps"
	// Unknown is the mode of a GPU with replicas that are in use while the record of its mode is lost. It is never
	// wanted, and a GPU has it only until its holders have gone.
	Unknown Mode = "unknown"
)

// Use is as what a device is given out. Two uses that are equal need no change; with another
// resource or mode a device has to be free before it can be given out anew.
type Use struct {
	// Resource is the full extended resource name.
	Resource string `json:"resource"`
	Mode     Mode   `json:"mode,omitempty"`
	// Replicas are 0 for Whole and 1 or more otherwise.
	Replicas int `json:"replicas,omitempty"`
	// RefuseMany refuses a container that asks for more than one share.
	RefuseMany bool `json:"refuseMany,omitempty"`
	// TimeSlice is short, medium or long; empty is the driver's default.
	TimeSlice string `json:"timeSlice,omitempty"`
	// PinnedMemoryMiB (-1 for no limit) and ActiveThreadPercentage bound each client of MPS;
	// SingleUser refuses clients of a second UID.
	PinnedMemoryMiB        int64 `json:"pinnedMemoryMiB,omitempty"`
	ActiveThreadPercentage int   `json:"activeThreadPercentage,omitempty"`
	SingleUser             bool  `json:"singleUser,omitempty"`
}

// Unit is a GPU or a MIG device with its use.
type Unit struct {
	// Key has no share.
	Key gpu.DeviceKey `json:"key"`
	Use Use           `json:"use"`
	// Draining says why nothing more of the device is given out, and what it waits for;
	// empty for one that is in normal use.
	Draining string `json:"draining,omitempty"`
}

// String says the use to people: "nvidia.com/gpu.shared (time-sliced x4)".
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
		how = "shared, it is not known how"
	}
	return u.Resource + " (" + how + ")"
}

// MPSUnits are the units that need an MPS daemon, draining ones too: the daemon's end would
// be that of its clients.
func MPSUnits(units []Unit) []Unit {
	var some []Unit
	for _, unit := range units {
		if unit.Use.Mode == MPS {
			some = append(some, unit)
		}
	}
	return some
}

// TimeSlice is the time slice that a GPU is to have.
type TimeSlice struct {
	GPU gpu.UUID
	// Slice is short, medium or long.
	Slice string
}

// TimeSlices are the GPUs that are to have another time slice than the driver's default, in
// the order of units. All others are to have the default.
func TimeSlices(units []Unit) []TimeSlice {
	var wanted []TimeSlice
	for _, unit := range units {
		if unit.Use.Mode == TimeSlicing && unit.Use.TimeSlice != "" {
			wanted = append(wanted, TimeSlice{GPU: unit.Key.GPU, Slice: unit.Use.TimeSlice})
		}
	}
	return wanted
}
