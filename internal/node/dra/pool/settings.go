package pool

import (
	"cmp"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
)

// DefaultDriver is the name of the DRA driver.
const DefaultDriver = "gpu.berth.dev"

// Settings are the operator's settings, with the names of the node.
type Settings struct {
	// Driver is the name of the DRA driver; empty means DefaultDriver. It is also the domain of attributes and taints.
	Driver string
	// Node is the name of the Node, and Pool that of its pool; empty means the Node's.
	Node string
	Pool string
	// Generation is that of the pool. It is 0 where the caller's library counts generations itself.
	Generation int64
	// GPUs are the GPUs that are allocated through DRA; others are not published.
	GPUs map[gpu.UUID]Use
	// WholeOnly leaves out the devices that need shared counters: the API server drops them (feature gate
	// DRAPartitionableDevices). Dynamic GPUs are then published whole.
	WholeOnly bool
	// EvictFrom is the health state from which on pods are evicted (NoExecute), such as gpu.NeedsReset; empty evicts none. Pods are
	// never evicted from a GPU that is Draining or better.
	EvictFrom gpu.State
}

// Use is how a GPU is published.
type Use struct {
	// DynamicMIG publishes the GPU and each of its possible MIG devices. Otherwise the GPU is published as it is partitioned now.
	DynamicMIG bool
}

func (s *Settings) driver() string { return cmp.Or(s.Driver, DefaultDriver) }

func (s *Settings) pool() string { return cmp.Or(s.Pool, s.Node) }

// Result is what a node publishes.
type Result struct {
	// Slices are in the order of their names; there is at least one, which is empty on a node without devices.
	Slices []resourceapi.ResourceSlice
	// Devices are the published devices by name.
	Devices map[string]Device
	// Refused are settings that a GPU cannot meet, in the order of the snapshot.
	Refused []Refusal
}

// Device is what the name of a device stands for.
type Device struct {
	GPU gpu.UUID
	// MIG is the UUID of a MIG device that exists; empty for a whole GPU and for a device of a dynamic GPU.
	MIG gpu.UUID
	// Placed is the placement of a MIG device; the zero value means the whole GPU.
	Placed mig.Placed
}

// Refusal says why a GPU, or a part of it, is not published as the settings want it, and what to do.
type Refusal struct {
	GPU    gpu.UUID
	Reason string
}
