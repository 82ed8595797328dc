package nvidia

import (
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// pair names two PCI devices in the order of their addresses.
type pair struct {
	low  gpu.PCIAddress
	high gpu.PCIAddress
}

func pairOf(a, b gpu.PCIAddress) pair {
	if comparePCI(a, b) > 0 {
		a, b = b, a
	}
	return pair{a, b}
}

// topologyNode is what the topology depends on, of one GPU.
type topologyNode struct {
	uuid    gpu.UUID
	pci     gpu.PCIAddress
	answers bool
	numa    int
	clique  gpu.Clique
	links   linkCounts
}

func (n topologyNode) equal(m topologyNode) bool {
	return n.uuid == m.uuid && n.pci == m.pci && n.answers == m.answers && n.numa == m.numa &&
		n.clique == m.clique && n.links.equal(m.links)
}

// cachedTopology is a topology with its inputs.
type cachedTopology struct {
	nodes    []topologyNode
	topology gpu.Topology
}

// topology returns the matrix of links. It is computed when its inputs have changed; snapshots share it.
func (a *Adapter) topology(gpus []*scannedGPU) gpu.Topology {
	nodes := make([]topologyNode, len(gpus))
	for i, c := range gpus {
		nodes[i] = topologyNode{
			uuid: c.gpu.UUID, pci: c.gpu.PCI, answers: c.device != nil,
			numa: c.gpu.NUMANode, clique: c.gpu.Clique, links: c.links,
		}
	}
	if a.last.topology != nil && slices.EqualFunc(a.last.nodes, nodes, topologyNode.equal) {
		return a.last.topology
	}
	topology := gpu.NewTopology(len(gpus))
	final := true
	for i := range gpus {
		for j := range i {
			link := gpu.Link{}
			if link.Count, link.Switched = linksBetween(nodes[i], nodes[j]); link.Count > 0 {
				link.Kind = gpu.LinkNVLink
			}
			path, sure := a.path(gpus[i], gpus[j])
			link.Path = path
			final = final && sure
			topology.Set(i, j, link)
		}
	}
	a.last = cachedTopology{}
	if final {
		a.last = cachedTopology{nodes, topology}
	}
	return topology
}

// path returns the PCIe path between two GPUs: from NVML, read once, otherwise from sysfs. sure is false after a transient
// error of NVML.
func (a *Adapter) path(x, y *scannedGPU) (path gpu.PCIPath, sure bool) {
	key := pairOf(x.gpu.PCI, y.gpu.PCI)
	if path, ok := a.paths[key]; ok {
		return path, true
	}
	guess := commonAncestor(a.sys.pciChain(x.gpu.PCI), a.sys.pciChain(y.gpu.PCI), x.gpu.NUMANode, y.gpu.NUMANode)
	if x.device == nil || y.device == nil {
		return guess, true // read again when both answer, which is an input of the cached topology
	}
	a.at(x.gpu.UUID, "nvmlDeviceGetTopologyCommonAncestor")
	level, ret := x.device.GetTopologyCommonAncestor(y.device)
	switch {
	case ret == nvml.SUCCESS && pathOf(level) != gpu.PathUnknown:
		path = pathOf(level)
	case ret == nvml.SUCCESS || unsupported(ret):
		path = guess
		if before, ok := a.formerPaths[key]; ok {
			path = before // a value that the driver has had is no guess
		}
	default:
		if before, ok := a.formerPaths[key]; ok {
			guess = before
		}
		d := missingAnswer{why: failure{call: "nvmlDeviceGetTopologyCommonAncestor", ret: ret}, kept: true}
		x.gpu.Health.Causes = append(withoutReadFailures(x.gpu.Health.Causes), readFailures(append(x.missingAnswers, d))...)
		return guess, false
	}
	a.paths[key] = path
	return path, true
}

func pathOf(level nvml.GpuTopologyLevel) gpu.PCIPath {
	switch level {
	case nvml.TOPOLOGY_INTERNAL:
		return gpu.PathSameBoard
	case nvml.TOPOLOGY_SINGLE:
		return gpu.PathSingleSwitch
	case nvml.TOPOLOGY_MULTIPLE:
		return gpu.PathMultiSwitch
	case nvml.TOPOLOGY_HOSTBRIDGE:
		return gpu.PathHostBridge
	case nvml.TOPOLOGY_NODE:
		return gpu.PathSameNUMA
	case nvml.TOPOLOGY_SYSTEM:
		return gpu.PathSystem
	}
	return gpu.PathUnknown
}

// pciChain returns the devices from the host bridge down to a device, as in [pci0000:16 0000:16:01.0 0000:17:00.0]; nil when
// sysfs does not have it.
func (t tree) pciChain(address gpu.PCIAddress) []string {
	steps := strings.Split(t.readlink(pciFolder(address)), "/")
	at := slices.IndexFunc(steps, func(step string) bool { return strings.HasPrefix(step, "pci") && strings.Contains(step, ":") })
	if at < 0 {
		return nil
	}
	return steps[at:]
}

// pcieRoot returns the PCIe root complex of a device, such as pci0000:16; empty when sysfs does not have the device.
func (t tree) pcieRoot(address gpu.PCIAddress) string {
	if chain := t.pciChain(address); len(chain) > 0 {
		return chain[0]
	}
	return ""
}

// commonAncestor compares two chains as NVML does. Without a common host bridge the NUMA nodes decide; where those are unknown
// too, the result is the largest distance.
func commonAncestor(x, y []string, numaX, numaY int) gpu.PCIPath {
	shared := 0
	for shared < min(len(x), len(y)) && x[shared] == y[shared] {
		shared++
	}
	switch {
	case shared == 0 && numaX == numaY && numaX != gpu.NoNUMANode:
		return gpu.PathSameNUMA
	case shared == 0:
		return gpu.PathSystem
	case shared == 1:
		return gpu.PathHostBridge
	case max(len(x), len(y))-shared <= 2: // a port of the shared switch, then the device
		return gpu.PathSingleSwitch
	}
	return gpu.PathMultiSwitch
}
