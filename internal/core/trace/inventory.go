package trace

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// DevicesOf converts a scan to evidence: one fact per GPU and per MIG device.
func DevicesOf(source Source, host string, snapshot *gpu.Snapshot) []DeviceFact {
	var facts []DeviceFact
	for i := range snapshot.GPUs {
		device := &snapshot.GPUs[i]
		fact := DeviceFact{
			Source: source, Host: host, UUID: device.UUID, Vendor: device.Vendor,
			Index: strconv.Itoa(device.Index), Minor: device.Minor, PCI: device.PCI.String(),
			Product: device.Product, Architecture: device.Architecture, Capability: device.ComputeCapability.String(),
			MemoryBytes: device.MemoryBytes, NUMANode: device.NUMANode,
			Health: HealthText(device.Health), Nodes: nodesOf(device.Nodes),
		}
		facts = append(facts, fact)
		for j := range device.MIG.Devices {
			facts = append(facts, migFact(fact, &device.MIG.Devices[j]))
		}
	}
	return facts
}

func migFact(g DeviceFact, device *gpu.MIGDevice) DeviceFact {
	fact := g
	fact.UUID, fact.Parent = device.UUID, g.UUID
	fact.Index = fmt.Sprintf("%s:%d", g.Index, device.Index)
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

// HealthText returns the health in one line: the state, with the codes of the problems.
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
