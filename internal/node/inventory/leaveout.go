package inventory

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// codeLeftOut is the fault of a GPU that is not shown, since its identity is not its own.
const codeLeftOut = "GPU_LEFT_OUT"

// leaveOut removes the GPUs from a scan whose identity cannot be true, and adds a fault for each: a UUID that has not the form of one, and
// a UUID, a PCI address or a device node that two GPUs have. Of these neither is kept, since a pod that was given the one could get the
// other; only a GPU that is listed twice stays, once. The scan's slices are replaced, not changed.
func leaveOut(scan *gpu.Snapshot) {
	why := make([]string, len(scan.GPUs))
	for i := range scan.GPUs {
		why[i] = withoutIdentity(&scan.GPUs[i])
	}
	for i := range scan.GPUs {
		for j := range i {
			one, other := &scan.GPUs[i], &scan.GPUs[j]
			switch both := shared(one, other); {
			case why[i] != "" && why[j] != "" || both == "":
			case one.UUID == other.UUID && one.PCI == other.PCI && one.PCI != (gpu.PCIAddress{}):
				why[i] = fmt.Sprintf("it is GPU %d, listed again", other.Index)
			default:
				why[i], why[j] = fmt.Sprintf("it has %s of GPU %d", both, other.Index), fmt.Sprintf("it has %s of GPU %d", both, one.Index)
			}
		}
	}
	if !slices.ContainsFunc(why, func(text string) bool { return text != "" }) {
		return
	}
	kept := gpu.Snapshot{Vendors: scan.Vendors, Faults: slices.Clone(scan.Faults)}
	var from []int
	for i, text := range why {
		g := &scan.GPUs[i]
		if text == "" {
			from = append(from, i)
			kept.GPUs = append(kept.GPUs, *g)
			continue
		}
		kept.Faults = append(kept.Faults, gpu.Cause{Code: codeLeftOut, Message: fmt.Sprintf("GPU %d (%.60q at %s) is left out: %s", g.Index, g.UUID, g.PCI, text)})
	}
	kept.Topology = gpu.NewTopology(len(from))
	for i := range from {
		for j := range from {
			kept.Topology[i][j] = link(scan, from[i], from[j])
		}
	}
	*scan = kept
}

// withoutIdentity returns why a GPU cannot be told from others by its UUIDs; "" when it can. UUIDs become parts of paths, labels and names.
func withoutIdentity(g *gpu.GPU) string {
	seen := map[gpu.UUID]bool{}
	for _, id := range uuids(g) {
		switch strange := func(r rune) bool { return r <= ' ' || r > '~' }; {
		case id == "":
			return "it has no UUID"
		case len(id) > maxUUID || strings.ContainsFunc(string(id), strange):
			return fmt.Sprintf("%.40q is no UUID", id)
		case seen[id]:
			return fmt.Sprintf("it has the UUID %s twice", id)
		}
		seen[id] = true
	}
	return ""
}

// uuids returns the UUIDs of a GPU and of its partitions.
func uuids(g *gpu.GPU) []gpu.UUID {
	all := []gpu.UUID{g.UUID}
	for i := range g.MIG.Devices {
		all = append(all, g.MIG.Devices[i].UUID)
	}
	return all
}

// shared returns what two GPUs have in common that only one can have; "" for nothing.
func shared(one, other *gpu.GPU) string {
	for _, id := range uuids(one) {
		if slices.Contains(uuids(other), id) {
			return "the UUID " + string(id)
		}
	}
	if one.PCI == other.PCI && one.PCI != (gpu.PCIAddress{}) {
		return "the PCI address " + one.PCI.String()
	}
	for _, node := range one.Nodes {
		if slices.ContainsFunc(other.Nodes, func(n gpu.DeviceNode) bool { return n.Path == node.Path }) {
			return "the device node " + node.Path
		}
	}
	return ""
}
