package offer

import (
	"cmp"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Device is what the kubelet can give to a container: a unit that is not shared, or a replica of one.
type Device struct {
	// ID is the kubelet's name for the device: the UUID, or UUID::n for a replica.
	ID string
	// Key is the key of the same device in the ledger.
	Key gpu.DeviceKey
	// Mode is how the device is shared.
	Mode Mode
	// Index is the index that nvidia-smi -L shows: N for a GPU, N:M for a MIG device.
	Index string
	// Position is the GPU's position in the snapshot.
	Position int
	// NUMANode is the node of the GPU's PCI device, or gpu.NoNUMANode.
	NUMANode int
	// Health is the class of the device's health: gpu.Healthy, Degraded, Draining or Unhealthy.
	Health gpu.State
	// Reason says why Health is not Healthy, as readable text; it is empty for a Healthy device.
	Reason string
	// Injection is what a container gets with the device. The replicas of a unit share it, so it must not be changed.
	Injection Injection `json:"-"`
}

// Injection is what a container gets with a device in addition to the device's own CDI device. A front end uses either
// the CDI names or the other fields.
type Injection struct {
	// CDIDevices are the qualified names of further CDI devices.
	CDIDevices []string
	Envs       map[string]string
	Mounts     []Mount
}

// Mount is a directory of the host in a container.
type Mount struct {
	HostPath      string
	ContainerPath string
}

// Offer is one resource of a node.
type Offer struct {
	// Resource is the full extended resource name, such as nvidia.com/gpu.
	Resource string
	// RefuseMany refuses a container that requests more than one device. It is set when any unit of the resource has
	// it, because the kubelet chooses the devices.
	RefuseMany bool
	// Devices are in the order of the GPUs' index, the MIG devices' and the replicas.
	Devices []Device
}

// Placed is a unit in force with its position on the node, its health, and what containers need to use it.
type Placed struct {
	Unit
	// NotInjectable is true while the container runtime cannot inject the device, such as one that was just found.
	NotInjectable bool `json:"-"`
	// NotReady is the reason why containers cannot use the device now; empty when they can.
	NotReady string `json:"-"`
	// Index, Position, NUMANode, Health, Reason and Injection are as in Device.
	Index     string
	Position  int
	NUMANode  int
	Health    gpu.State
	Reason    string
	Injection Injection `json:"-"`
}

// Place returns the units that the snapshot has, in the order of the GPUs' index, then the MIG devices'. Snapshot and
// units are only read.
func Place(snapshot *gpu.Snapshot, units []Unit) []Placed {
	var placed []Placed
	gpus := listNamed(snapshot, ignoreUnnamed)
	for i := range gpus {
		c := &gpus[i]
		for _, unit := range c.unitsOf(units) {
			placed = append(placed, c.place(unit))
		}
	}
	return placed
}

// place adds position and health to a unit. A MIG device without its own verdict has the health of its GPU. A unit that
// waits for its release is draining.
func (c *namedGPU) place(unit Unit) Placed {
	placed := Placed{Unit: unit, Index: c.index(), Position: c.position, NUMANode: c.NUMANode}
	verdict := c.Health
	for _, part := range c.parts {
		if part.UUID == unit.Key.MIG {
			placed.Index = c.partIndex(part)
			if part.Health.State != "" {
				verdict = part.Health
			}
		}
	}
	placed.Health, placed.Reason = verdict.State.Class(), reason(verdict)
	if unit.Draining != "" && gpu.Draining.Worse(placed.Health) {
		placed.Health = gpu.Draining
	}
	if placed.Reason != "" && unit.Draining != "" {
		placed.Reason += "; "
	}
	placed.Reason += unit.Draining
	return placed
}

// List returns the kubelet's view of units: its devices by resource, ordered by the resource's name. Devices of DRA are not in it, nor
// devices that cannot be injected: a new device is in the inventory before it is in the CDI spec. A device that is not ready is listed as
// unhealthy. Without units the list is empty: nothing is advertised before a driver is loaded.
func List(placed []Placed) []Offer {
	var offers []Offer
	for _, unit := range placed {
		if unit.Use.API != DevicePlugin || unit.NotInjectable {
			continue
		}
		if unit.NotReady != "" && unit.Health.Allocatable() {
			unit.Health, unit.Reason = gpu.Unhealthy, unit.NotReady
		}
		at := slices.IndexFunc(offers, func(o Offer) bool { return o.Resource == unit.Use.Resource })
		if at < 0 {
			at = len(offers)
			offers = append(offers, Offer{Resource: unit.Use.Resource})
		}
		offers[at].RefuseMany = offers[at].RefuseMany || unit.Use.RefuseMany
		offers[at].Devices = unit.appendDevices(offers[at].Devices)
	}
	slices.SortFunc(offers, func(a, b Offer) int { return cmp.Compare(a.Resource, b.Resource) })
	return offers
}

// Build returns the kubelet's view of the units in force, without their injection.
func Build(snapshot *gpu.Snapshot, units []Unit) []Offer { return List(Place(snapshot, units)) }

// Keys returns the keys under which the unit can be allocated: its own, or those of its replicas.
func (p *Placed) Keys() []gpu.DeviceKey {
	var keys []gpu.DeviceKey
	for _, device := range p.appendDevices(nil) {
		keys = append(keys, device.Key)
	}
	return keys
}

// appendDevices adds the devices of a unit: one if it is not shared, otherwise its replicas.
func (p *Placed) appendDevices(devices []Device) []Device {
	device := Device{
		Key: p.Key, Mode: p.Use.Mode, Index: p.Index, Position: p.Position, NUMANode: p.NUMANode,
		Health: p.Health, Reason: p.Reason, Injection: p.Injection,
	}
	if p.Use.Mode == Whole {
		device.ID = DeviceID(device.Key)
		return append(devices, device)
	}
	devices = slices.Grow(devices, p.Use.Replicas)
	for share := range p.Use.Replicas {
		device.Key.Share = share + 1
		device.ID = DeviceID(device.Key)
		devices = append(devices, device)
	}
	return devices
}

// reason joins a verdict's causes: "XID79: fell off the bus; …".
func reason(health gpu.Health) string {
	if health.State.Class() == gpu.Healthy {
		return ""
	}
	if len(health.Causes) == 0 {
		return string(health.State)
	}
	parts := make([]string, 0, len(health.Causes))
	for _, cause := range health.Causes {
		part := cause.Code
		if cause.Message != "" {
			part += ": " + cause.Message
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; ")
}
