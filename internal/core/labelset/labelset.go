// Package labelset has the values that labels about GPUs are computed from, and the rules of the API server for their keys
// and values. It is what internal/node/labels and the packages of vendors that compute labels have in common.
//
// It guarantees that whatever text goes in, Value, Short and Suffixed return one that the API server accepts.
package labelset

import (
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Input is what the labels about one vendor's GPUs are computed from.
type Input struct {
	// Snapshot has the GPUs of that vendor only, at least one.
	Snapshot *gpu.Snapshot
	// Uses say how devices are advertised. A device that is not advertised is not among them.
	Uses map[gpu.DeviceKey]Use
	// ResourceName is the resource of a GPU that is not shared.
	ResourceName string
	// MIGStrategy is "none", "single" or "mixed"; "" means mixed.
	MIGStrategy string
	// MPS is true when a device is shared by MPS.
	MPS  bool
	Host Host
	// Timestamp is when the agent started; zero for no label about it.
	Timestamp time.Time
}

// Use is how a device is advertised.
type Use struct {
	Resource string
	// Sharing is the strategy: SharingNone, SharingTime or SharingMPS. It is "" while it is unknown.
	Sharing  string
	Replicas int
}

// The sharing strategies, in the words of the labels.
const (
	SharingNone = "none"
	SharingTime = "time-slicing"
	SharingMPS  = "mps"
)

// Host has the facts that no driver reports.
type Host struct {
	// Machine is the DMI product name.
	Machine string
	// Classes are the PCI classes of the GPUs, such as 0x030200.
	Classes map[gpu.UUID]uint32
	// VGPU is nil where it could not be read.
	VGPU *VGPU
}

// VGPU says whether a GPU is virtual: a part of a hypervisor's GPU.
type VGPU struct {
	Present bool
	// DriverVersion and DriverBranch are those of the hypervisor's driver.
	DriverVersion string
	DriverBranch  string
}
