package inventory

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

const (
	// codeRefused is the fault of a scan with invalid content.
	codeRefused = "SCAN_REFUSED"
	// maxGPUs bounds how many GPUs one vendor may report; the largest machines have 16.
	maxGPUs = 1024
	// maxUUID and maxLinks bound the length of a UUID and the links between two GPUs.
	maxUUID, maxLinks = 128, 255
)

// refusal is the error of a scan with invalid content.
type refusal struct{ why string }

func (r *refusal) Error() string { return "the result of the scan was refused: " + r.why }

// refuse returns why the result of a vendor's scan is invalid; "" when it is valid. owner names the other vendor that a
// GPU belongs to; "" for none. A scan is refused as a whole, because the rest of it is not reliable either. GPUs that only lack an identity
// of their own are left out before.
func refuse(scan *gpu.Snapshot, traits gpu.Traits, owner func(gpu.UUID) string) string {
	if len(scan.GPUs) > maxGPUs {
		return fmt.Sprintf("%d GPUs, more than %d", len(scan.GPUs), maxGPUs)
	}
	if len(scan.Vendors) != 1 || scan.Vendors[0].Name != traits.Name {
		return fmt.Sprintf("it does not name %q as its only vendor", traits.Name)
	}
	c := &check{traits: traits, owner: owner}
	c.nodes("shared device nodes", scan.Vendors[0].Shared)
	for i := range scan.GPUs {
		c.gpu(&scan.GPUs[i])
	}
	c.topology(scan)
	return c.why
}

// check finds the first invalid value.
type check struct {
	traits gpu.Traits
	owner  func(gpu.UUID) string
	why    string
}

func (c *check) fail(format string, args ...any) {
	if c.why == "" {
		c.why = fmt.Sprintf(format, args...)
	}
}

func (c *check) gpu(g *gpu.GPU) {
	for _, id := range uuids(g) {
		if owner := c.owner(id); owner != "" {
			c.fail("%s is a GPU of %s", id, owner)
		}
	}
	if g.Vendor != c.traits.Name {
		c.fail("%s is of the vendor %q, not %q", g.UUID, g.Vendor, c.traits.Name)
	}
	if g.Index < 0 {
		c.fail("%s has the index %d", g.UUID, g.Index)
	}
	c.nodes(string(g.UUID), g.Nodes)
	for i := range g.MIG.Devices {
		c.nodes(string(g.MIG.Devices[i].UUID), g.MIG.Devices[i].Nodes)
	}
}

// nodes checks that device nodes are the vendor's, because containers get them.
func (c *check) nodes(of string, nodes []gpu.DeviceNode) {
	for _, node := range nodes {
		ours := func(prefix string) bool { return strings.HasPrefix(node.Path, prefix) }
		if path.Clean(node.Path) != node.Path || !ours(gpu.DRMPrefix) && !slices.ContainsFunc(c.traits.NodePrefixes, ours) {
			c.fail("%s: %q is no device node of %s", of, node.Path, c.traits.Title)
		}
	}
}

// topology checks that the links are a symmetric matrix in range; missing cells mean no links.
func (c *check) topology(scan *gpu.Snapshot) {
	if len(scan.Topology) > len(scan.GPUs) {
		c.fail("the topology has %d rows for %d GPUs", len(scan.Topology), len(scan.GPUs))
		return
	}
	for i := range scan.Topology {
		for j := range i + 1 {
			one := link(scan, i, j)
			if one != link(scan, j, i) || one.Count < 0 || one.Count > maxLinks || one.Path < 0 || one.Path > gpu.PathSystem {
				c.fail("the link between GPUs %d and %d is %+v and back %+v", i, j, one, link(scan, j, i))
			}
		}
	}
}
