package trace

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// DevicesOf turns a scan into evidence: one fact per card and per MIG device.
func DevicesOf(source Source, host string, snapshot *gpu.Snapshot) []DeviceFact {
	var facts []DeviceFact
	for i := range snapshot.GPUs {
		card := &snapshot.GPUs[i]
		fact := DeviceFact{
			Source: source, Host: host, UUID: card.UUID,
			Index: strconv.Itoa(card.Index), Minor: card.Minor, PCI: card.PCI.String(),
			Product: card.Product, Architecture: card.Architecture, Capability: card.ComputeCapability.String(),
			MemoryBytes: card.MemoryBytes, NUMANode: card.NUMANode,
			Health: HealthText(card.Health), Nodes: nodesOf(card.Nodes),
		}
		facts = append(facts, fact)
		for j := range card.MIG.Devices {
			facts = append(facts, migFact(fact, &card.MIG.Devices[j]))
		}
	}
	return facts
}

func migFact(card DeviceFact, device *gpu.MIGDevice) DeviceFact {
	fact := card
	fact.UUID, fact.Parent = device.UUID, card.UUID
	fact.Index = fmt.Sprintf("%s:%d", card.Index, device.Index)
	fact.Profile = device.Profile
	fact.Instance = InstanceFact{GI: device.GI, CI: device.CI, Start: device.Start, Size: device.Size}
	fact.MemoryBytes = device.MemoryBytes
	fact.Nodes = nodesOf(device.Nodes)
	if device.Health.State != "" {
		fact.Health = HealthText(device.Health)
	}
	return fact
}

func nodesOf(nodes []gpu.DeviceNode) []Node {
	var out []Node
	for _, node := range nodes {
		out = append(out, Node{Path: node.Path, Major: int64(node.Major), Minor: int64(node.Minor)})
	}
	return out
}

// HealthText is the verdict in a line: the state, with the codes of what stands against the device.
func HealthText(health gpu.Health) string {
	state := string(cmp.Or(health.State, gpu.Healthy))
	codes := make([]string, 0, len(health.Causes))
	for _, cause := range health.Causes {
		codes = append(codes, cause.Code)
	}
	if len(codes) == 0 {
		return state
	}
	return state + " (" + strings.Join(codes, ", ") + ")"
}
