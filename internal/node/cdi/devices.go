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

// checker turns what the inventory and nvcdi say into edits, leaving out what is not
// on the host, and collects what it left out.
type checker struct {
	host     hostpath.View
	dev      string
	edits    VendorEdits
	problems []gpu.Cause
}

func (c *checker) problem(code, format string, args ...any) {
	c.problems = append(c.problems, gpu.Cause{Code: code, Message: fmt.Sprintf(format, args...)})
}

// piece is what a container can be given: a GPU or a MIG device.
type piece struct {
	uuid  string
	index string
	card  *gpu.GPU
	edits specs.ContainerEdits
	links []string
}

// devices lists each piece by UUID and by index, sorted as they are in the
// snapshot, and then "all". A GPU that is unhealthy keeps its devices as long as it has
// its node: containers that hold it may be restarted, and whether it is given out is
// not decided here.
func (c *checker) devices(snapshot *gpu.Snapshot) []specs.Device {
	pieces := c.pieces(snapshot)
	if len(pieces) == 0 {
		return nil
	}
	// UUIDs first, then the indices of GPUs that answer: the index of a lost card may
	// by now be that of another.
	names := make([][2]string, len(pieces)) // by UUID, by index; "" for none
	owner := map[string]string{All: All}
	claim := func(i, kind int, name string) {
		id := pieces[i].uuid
		if err := parser.ValidateDeviceName(name); err != nil {
			c.problem("CDI_NAME_INVALID", "%s gets no CDI device %q: %v", id, name, err)
		} else if other, taken := owner[name]; taken {
			c.problem("CDI_NAME_TAKEN", "%s gets no CDI device %q: the name is that of %s", id, name, other)
		} else {
			owner[name], names[i][kind] = id, name
		}
	}
	for i := range pieces {
		claim(i, 0, pieces[i].uuid)
	}
	for _, gone := range []bool{false, true} {
		for i := range pieces {
			if (pieces[i].card.Health.State == gpu.Gone) == gone {
				claim(i, 1, pieces[i].index)
			}
		}
	}
	var devices []specs.Device
	for kind := range 2 {
		for i := range pieces {
			if name := names[i][kind]; name != "" {
				devices = append(devices, specs.Device{Name: name, ContainerEdits: pieces[i].edits})
			}
		}
	}
	if len(devices) == 0 {
		return nil
	}
	return append(devices, specs.Device{Name: All, ContainerEdits: c.all(pieces)})
}

// pieces are the GPUs, or of a GPU in MIG mode its MIG devices: such a GPU
// cannot be used as a whole.
func (c *checker) pieces(snapshot *gpu.Snapshot) []piece {
	var pieces []piece
	add := func(p piece, nodes []gpu.DeviceNode) {
		if c.addNodes(&p.edits, nodes, p.uuid) {
			p.links = byPathLinks(p.card.PCI, p.edits.DeviceNodes)
			c.addLinks(&p.edits, p.links)
			pieces = append(pieces, p)
		}
	}
	for i := range snapshot.GPUs {
		card := &snapshot.GPUs[i]
		index := strconv.Itoa(card.Index)
		if !card.MIG.Enabled {
			add(piece{uuid: string(card.UUID), index: index, card: card}, card.Nodes)
			continue
		}
		for j := range card.MIG.Devices {
			mig := &card.MIG.Devices[j]
			p := piece{uuid: string(mig.UUID), index: fmt.Sprintf("%s:%d", index, mig.Index), card: card}
			add(p, c.edits.PartitionNodes(card, mig))
		}
	}
	return pieces
}

// all joins the pieces, each node once, with one hook for all links.
func (c *checker) all(pieces []piece) specs.ContainerEdits {
	var edits specs.ContainerEdits
	var links []string
	for i := range pieces {
		for _, node := range pieces[i].edits.DeviceNodes {
			if !slices.ContainsFunc(edits.DeviceNodes, func(n *specs.DeviceNode) bool { return n.Path == node.Path }) {
				edits.DeviceNodes = append(edits.DeviceNodes, node)
			}
		}
		edits.AdditionalGIDs = append(edits.AdditionalGIDs, pieces[i].edits.AdditionalGIDs...)
		links = append(links, pieces[i].links...)
	}
	slices.Sort(edits.AdditionalGIDs)
	edits.AdditionalGIDs = slices.Compact(edits.AdditionalGIDs)
	slices.Sort(links)
	c.addLinks(&edits, slices.Compact(links))
	return edits
}

// addNodes adds nodes to the edits and tells whether all that matter are there: a
// GPU without its /dev/nvidiaN, or a MIG device without its capabilities, is
// no device at all; a missing DRM or control node is only left out.
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

// node describes a device node in full (type, major, minor), so that the runtime does
// not have to find it on the host: a card that vanishes later must not stop
// containers with "all". gid is the group to join when the node is not open to everyone.
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
		// No "m": nothing in the container has to make a node that it was given.
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

// byPathLinks are the stable names of DRM nodes ("target::link"), by which Vulkan and EGL
// find the card.
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

// common returns the edits of every container: what the vendor adds, less what is not on the host, with the device nodes that
// its GPUs share.
func (c *checker) common(found *specs.ContainerEdits, shared []gpu.DeviceNode) specs.ContainerEdits {
	edits := specs.ContainerEdits{Env: slices.Sorted(slices.Values(found.Env)), Mounts: c.mounts(found.Mounts)}
	edits.Env = slices.Compact(edits.Env)
	edits.Hooks = found.Hooks // in the vendor's order: links before the library cache
	c.addNodes(&edits, shared, "every container")
	return edits
}

// mounts keeps the mounts whose host path exists, each container path once, sorted
// by container path.
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
