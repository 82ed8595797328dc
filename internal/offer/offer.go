package offer

import (
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/gpu"
)

// DefaultResource is the extended resource name of a whole GPU.
const DefaultResource = "nvidia.com/gpu"

// Device is one thing that can be given to a container.
type Device struct {
	// ID is the kubelet's name for the device: the UUID, or UUID::n for a replica.
	ID string
	// Key is the house's name for the same thing, the one that the ledger uses.
	Key gpu.DeviceKey
	// Index is what nvidia-smi -L counts: N for a GPU, N:M for a MIG device.
	Index string
	// NUMANode is the node of the card's PCI device, or gpu.NoNUMANode.
	NUMANode int
	// Healthy tells whether the device may be given out.
	Healthy bool
	// Reason says why it is not healthy, as a phrase for people; empty when it is.
	Reason string
}

// Offer is one resource of a node.
type Offer struct {
	// Resource is the full extended resource name, such as nvidia.com/gpu.
	Resource string
	// Devices are in the order of the cards' index.
	Devices []Device
}

// Settings are what an operator chooses. The zero value offers every GPU as DefaultResource.
type Settings struct {
	// ResourceName is the name for whole GPUs; empty means DefaultResource.
	ResourceName string
	// Exclude are cards that are never offered.
	Exclude []gpu.UUID
}

// Build computes the offers of a node, ordered by resource name. A node without
// any device to offer has no offers: nothing is advertised before a driver is there.
// The snapshot is only read.
func Build(snapshot *gpu.Snapshot, settings Settings) []Offer {
	if snapshot == nil {
		return nil
	}
	devices := wholeGPUs(snapshot.GPUs, settings.Exclude)
	if len(devices) == 0 {
		return nil
	}
	resource := settings.ResourceName
	if resource == "" {
		resource = DefaultResource
	}
	return []Offer{{Resource: resource, Devices: devices}}
}

// wholeGPUs offers one device per card. A card without a UUID cannot be named, and a
// second card with the same UUID cannot be told from the first; neither is offered.
func wholeGPUs(cards []gpu.GPU, exclude []gpu.UUID) []Device {
	order := make([]int, 0, len(cards))
	for i := range cards {
		id := cards[i].UUID
		seen := func(j int) bool { return cards[j].UUID == id }
		if id == "" || slices.Contains(exclude, id) || slices.ContainsFunc(order, seen) {
			continue
		}
		order = append(order, i)
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if c := cards[a].Index - cards[b].Index; c != 0 {
			return c
		}
		return strings.Compare(string(cards[a].UUID), string(cards[b].UUID))
	})
	devices := make([]Device, 0, len(order))
	for _, i := range order {
		card := &cards[i]
		key := gpu.DeviceKey{GPU: card.UUID}
		devices = append(devices, Device{
			ID:       DeviceID(key),
			Key:      key,
			Index:    strconv.Itoa(card.Index),
			NUMANode: card.NUMANode,
			Healthy:  card.Health.OK(),
			Reason:   reason(card.Health),
		})
	}
	return devices
}

// reason puts a verdict's causes into one phrase: "XID79: fell off the bus; …".
func reason(health gpu.Health) string {
	if health.OK() {
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
