package offer

import (
	"cmp"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Device is one thing that can be given to a container.
type Device struct {
	// ID is the kubelet's name for the device: the UUID, or UUID::n for a replica.
	ID string
	// Key is the house's name for the same thing, the one that the ledger uses.
	Key gpu.DeviceKey
	// Mode is how the device is shared.
	Mode Mode
	// Index is what nvidia-smi -L counts: N for a GPU, N:M for a MIG device.
	Index string
	// Position is the card's place in the snapshot.
	Position int
	// NUMANode is the node of the card's PCI device, or gpu.NoNUMANode.
	NUMANode int
	// Health is the class of the device's health: gpu.Healthy, Degraded, Draining or Unhealthy.
	Health gpu.State
	// Reason says why Health is not Healthy, as a phrase for people; empty when it is.
	Reason string
}

// Offer is one resource of a node.
type Offer struct {
	// Resource is the full extended resource name, such as nvidia.com/gpu.
	Resource string
	// RefuseMany refuses a container that asks for more than one device, when that is so for
	// any unit of the resource: the kubelet chooses, so the strictest decides for all.
	RefuseMany bool
	// Devices are in the order of the cards' index, the MIG devices' and the replicas.
	Devices []Device
}

// Build computes the offers of a node from the units in force, ordered by resource name.
// A device that waits for its release is listed with the class Draining. A node without any unit has no offers: nothing is
// advertised before a driver is there. Snapshot and units are only read.
func Build(snapshot *gpu.Snapshot, units []Unit) []Offer {
	var offers []Offer
	cards := survey(snapshot, unheard)
	for i := range cards {
		c := &cards[i]
		for _, unit := range c.unitsOf(units) {
			at := slices.IndexFunc(offers, func(o Offer) bool { return o.Resource == unit.Use.Resource })
			if at < 0 {
				at = len(offers)
				offers = append(offers, Offer{Resource: unit.Use.Resource})
			}
			offers[at].RefuseMany = offers[at].RefuseMany || unit.Use.RefuseMany
			offers[at].Devices = c.appendDevices(offers[at].Devices, &unit)
		}
	}
	slices.SortFunc(offers, func(a, b Offer) int { return cmp.Compare(a.Resource, b.Resource) })
	return offers
}

// appendDevices adds the devices of a unit: one if it is unshared, otherwise its replicas.
// A MIG device of which nothing was said by itself is as healthy as its card.
func (c *card) appendDevices(devices []Device, unit *Unit) []Device {
	device := Device{Key: unit.Key, Mode: unit.Use.Mode, Index: c.index(), Position: c.position, NUMANode: c.NUMANode}
	verdict := c.Health
	for _, part := range c.parts {
		if part.UUID == unit.Key.MIG {
			device.Index = c.partIndex(part)
			if part.Health.State != "" {
				verdict = part.Health
			}
		}
	}
	device.Health, device.Reason = verdict.State.Class(), reason(verdict)
	if unit.Draining != "" && gpu.Draining.Worse(device.Health) {
		device.Health = gpu.Draining
	}
	if device.Reason != "" && unit.Draining != "" {
		device.Reason += "; "
	}
	device.Reason += unit.Draining
	if unit.Use.Mode == Whole {
		device.ID = DeviceID(device.Key)
		return append(devices, device)
	}
	devices = slices.Grow(devices, unit.Use.Replicas)
	for share := range unit.Use.Replicas {
		device.Key.Share = share + 1
		device.ID = DeviceID(device.Key)
		devices = append(devices, device)
	}
	return devices
}

// reason puts a verdict's causes into one phrase: "XID79: fell off the bus; …".
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
