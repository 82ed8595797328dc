package cdi

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/hostpath"
	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"
)

// checker converts the inventory and the vendor's edits to those of the spec. It leaves out what does not exist on the
// host, and collects what it left out.
type checker struct {
	host     hostpath.View
	dev      string
	edits    VendorEdits
	problems []gpu.Cause
}

func (c *checker) problem(code, format string, args ...any) {
	c.problems = append(c.problems, gpu.Cause{Code: code, Message: fmt.Sprintf(format, args...)})
}

// unit is a GPU or a MIG device that a container can get.
type unit struct {
	uuid  string
	index string
	g     *gpu.GPU
	edits specs.ContainerEdits
	links []string
}

// devices returns each unit by UUID and by index, in the order of the snapshot, and then "all". An unhealthy GPU keeps
// its devices as long as it has its node: containers that hold it may be restarted. Other packages decide whether it is
// allocated.
func (c *checker) devices(snapshot *gpu.Snapshot) []specs.Device {
	units := c.units(snapshot)
	if len(units) == 0 {
		return nil
	}
	// UUIDs first, then the indices of GPUs that respond: another GPU may have the index of a lost one now.
	names := make([][2]string, len(units)) // by UUID, by index; "" for none
	owner := map[string]string{All: All}
	claim := func(i, kind int, name string) {
		id := units[i].uuid
		if err := parser.ValidateDeviceName(name); err != nil {
			c.problem("CDI_NAME_INVALID", "%s gets no CDI device %q: %v", id, name, err)
		} else if other, taken := owner[name]; taken {
			c.problem("CDI_NAME_TAKEN", "%s gets no CDI device %q: the name is that of %s", id, name, other)
		} else {
			owner[name], names[i][kind] = id, name
		}
	}
	for i := range units {
		claim(i, 0, units[i].uuid)
	}
	for _, gone := range []bool{false, true} {
		for i := range units {
			if (units[i].g.Health.State == gpu.Gone) == gone {
				claim(i, 1, units[i].index)
			}
		}
	}
	var devices []specs.Device
	for kind := range 2 {
		for i := range units {
			if name := names[i][kind]; name != "" {
				devices = append(devices, specs.Device{Name: name, ContainerEdits: units[i].edits})
			}
		}
	}
	if len(devices) == 0 {
		return nil
	}
	return append(devices, specs.Device{Name: All, ContainerEdits: c.all(units)})
}

// units returns the GPUs, or the MIG devices of a GPU in MIG mode: such a GPU cannot be used as a whole.
func (c *checker) units(snapshot *gpu.Snapshot) []unit {
	var units []unit
	add := func(p unit, nodes []gpu.DeviceNode) {
		if c.addNodes(&p.edits, nodes, p.uuid) {
			p.links = byPathLinks(p.g.PCI, p.edits.DeviceNodes)
			c.addLinks(&p.edits, p.links)
			units = append(units, p)
		}
	}
	for i := range snapshot.GPUs {
		g := &snapshot.GPUs[i]
		index := strconv.Itoa(g.Index)
		if !g.MIG.Enabled {
			add(unit{uuid: string(g.UUID), index: index, g: g}, g.Nodes)
			continue
		}
		for j := range g.MIG.Devices {
			mig := &g.MIG.Devices[j]
			p := unit{uuid: string(mig.UUID), index: fmt.Sprintf("%s:%d", index, mig.Index), g: g}
			add(p, c.edits.PartitionNodes(g, mig))
		}
	}
	return units
}

// all returns the edits of all units together, each node once, with one hook for all links.
func (c *checker) all(units []unit) specs.ContainerEdits {
	var edits specs.ContainerEdits
	var links []string
	for i := range units {
		for _, node := range units[i].edits.DeviceNodes {
			if !slices.ContainsFunc(edits.DeviceNodes, func(n *specs.DeviceNode) bool { return n.Path == node.Path }) {
				edits.DeviceNodes = append(edits.DeviceNodes, node)
			}
		}
		edits.AdditionalGIDs = append(edits.AdditionalGIDs, units[i].edits.AdditionalGIDs...)
		links = append(links, units[i].links...)
	}
	slices.Sort(edits.AdditionalGIDs)
	edits.AdditionalGIDs = slices.Compact(edits.AdditionalGIDs)
	slices.Sort(links)
	c.addLinks(&edits, slices.Compact(links))
	return edits
}

// addNodes adds nodes to the edits and reports whether all necessary ones exist: a GPU without its own node, or a MIG
// device without its capabilities, cannot be used; a missing DRM node, or a missing one that all GPUs share, is left
// out.
func (c *checker) addNodes(edits *specs.ContainerEdits, nodes []gpu.DeviceNode, owner string) bool {
	complete, compute := true, false
	for _, node := range nodes {
		out, gid, why := c.node(node)
		if why != "" {
			c.problem("CDI_NODE_MISSING", "%s: device node %s is left out of the CDI spec: %s", owner, node.Path, why)
			complete = complete && node.DRM()
			continue
		}
		compute = compute || !node.DRM()
		edits.DeviceNodes = append(edits.DeviceNodes, out)
		if gid != 0 && !slices.Contains(edits.AdditionalGIDs, gid) {
			edits.AdditionalGIDs = append(edits.AdditionalGIDs, gid)
		}
	}
	slices.Sort(edits.AdditionalGIDs)
	if len(nodes) == 0 {
		c.problem("CDI_NODE_MISSING", "%s: the inventory has no device nodes, so none are in the CDI spec", owner)
	}
	return complete && compute
}

// node describes a device node completely (type, major, minor), so that the runtime does not have to find it on the host: a GPU that
// disappears later must not keep containers with "all" from starting. gid is the group to join when not everyone may open the
// node.
func (c *checker) node(node gpu.DeviceNode) (out *specs.DeviceNode, gid uint32, why string) {
	local := node.HostPath
	if local == "" {
		local = path.Join(c.dev, node.Path)
	}
	info, err := c.host.Device(local)
	if err != nil {
		return nil, 0, err.Error()
	}
	out = &specs.DeviceNode{
		Path:  node.Path,
		Type:  "c",
		Major: int64(node.Major),
		Minor: int64(node.Minor),
		// No "m": no program in the container has to create a node that exists.
		Permissions: "rw",
	}
	if host := c.host.ToHost(local); host != node.Path {
		out.HostPath = host
	}
	if info.Char {
		if out.Major == 0 {
			out.Major, out.Minor = int64(info.Major), int64(info.Minor)
		}
		out.FileMode = &info.Mode
		if info.GID != 0 {
			out.GID = &info.GID
			if info.Mode&0o006 != 0o006 {
				gid = info.GID
			}
		}
	}
	if out.Major == 0 {
		return nil, 0, local + " is not a character device and the inventory does not know its major number"
	}
	return out, gid, ""
}

func (c *checker) addLinks(edits *specs.ContainerEdits, links []string) {
	if len(links) == 0 {
		return
	}
	if hook := c.edits.Links(links); hook != nil {
		edits.Hooks = append(edits.Hooks, hook)
	}
}

// byPathLinks returns the stable names of DRM nodes ("target::link"), by which Vulkan and EGL find the GPU.
func byPathLinks(address gpu.PCIAddress, nodes []*specs.DeviceNode) []string {
	var links []string
	for _, node := range nodes {
		base := path.Base(node.Path)
		kind := ""
		switch {
		case !strings.HasPrefix(node.Path, "/dev/dri/"):
			continue
		case strings.HasPrefix(base, "card"):
			kind = "card"
		case strings.HasPrefix(base, "render"):
			kind = "render"
		default:
			continue
		}
		links = append(links, fmt.Sprintf("../%s::/dev/dri/by-path/pci-%s-%s", base, address, kind))
	}
	return links
}

// common returns the edits of every container: the vendor's additions that exist on the host, with the device nodes
// that its GPUs share.
func (c *checker) common(found *specs.ContainerEdits, shared []gpu.DeviceNode) specs.ContainerEdits {
	edits := specs.ContainerEdits{Env: slices.Sorted(slices.Values(found.Env)), Mounts: c.mounts(found.Mounts)}
	edits.Env = slices.Compact(edits.Env)
	edits.Hooks = found.Hooks // in the vendor's order: links before the library cache
	c.addNodes(&edits, shared, "every container")
	return edits
}

// mounts returns the mounts whose host path exists, each container path once, sorted by container path.
func (c *checker) mounts(found []*specs.Mount) []*specs.Mount {
	var mounts []*specs.Mount
	seen := map[string]bool{}
	for _, m := range found {
		if seen[m.ContainerPath] {
			continue
		}
		if why := c.host.Missing(m.HostPath); why != "" {
			c.problem("CDI_PATH_MISSING", "driver file %s is left out of the CDI spec: %s", m.HostPath, why)
			continue
		}
		seen[m.ContainerPath] = true
		copied := *m
		copied.HostPath = c.host.ToHost(m.HostPath)
		mounts = append(mounts, &copied)
	}
	sortMounts(mounts)
	return mounts
}

func sortMounts(mounts []*specs.Mount) {
	slices.SortFunc(mounts, func(a, b *specs.Mount) int { return cmp.Compare(a.ContainerPath, b.ContainerPath) })
}
