package trace

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Vendors are the vendors whose names can occur in evidence.
type Vendors []gpu.Traits

// With returns the vendors together with those of more whose names are not among them.
func (v Vendors) With(more []gpu.Traits) Vendors {
	all := slices.Clone(v)
	for _, t := range more {
		if !slices.ContainsFunc(all, func(other gpu.Traits) bool { return other.Name == t.Name }) {
			all = append(all, t)
		}
	}
	return all
}

// RelevantEnv reports whether a variable concerns GPUs. Collectors drop all others, because a container's environment
// contains secrets.
func (v Vendors) RelevantEnv(name string) bool {
	return strings.HasPrefix(name, berthVariables) || slices.ContainsFunc(v, func(t gpu.Traits) bool { return t.Concerns(name) })
}

// RelevantNode reports whether a device node concerns GPUs.
func (v Vendors) RelevantNode(node Node) bool {
	return strings.HasPrefix(node.Path, gpu.DRMPrefix) || slices.ContainsFunc(v, func(t gpu.Traits) bool {
		return beginsWith(node.Path, t.NodePrefixes) || t.GPUMajor != 0 && node.Major == t.GPUMajor
	})
}

// RelevantMounts returns the mounts that concern GPUs. Shared memory does when it belongs to an MPS daemon.
func (v Vendors) RelevantMounts(mounts []Mount) []Mount {
	beside := map[string]bool{}
	for _, mount := range mounts {
		if pipesOf(mount.Path) != "" {
			beside[path.Dir(mount.HostPath)] = true
		}
	}
	var relevant []Mount
	for _, mount := range mounts {
		found := mount.Path == mpsShm && beside[path.Dir(mount.HostPath)]
		for _, t := range v {
			for _, part := range t.Mounts {
				found = found || part != "" && (strings.Contains(mount.Path, part) || strings.Contains(mount.HostPath, part))
			}
		}
		if found {
			relevant = append(relevant, mount)
		}
	}
	return relevant
}

// ofResource returns the vendor of a resource or of a CDI name by its domain, such as that of nvidia.com/gpu; "" for none.
func (v Vendors) ofResource(name string) string {
	domain, _, _ := strings.Cut(name, "/")
	for _, t := range v {
		if t.ResourcePrefix == domain && domain != "" {
			return t.Name
		}
	}
	return ""
}

// ofDevice returns the vendor of a device by how its UUID begins, or of a node that stands for one by its path; "" for none.
func (v Vendors) ofDevice(id gpu.UUID) string {
	for _, t := range v {
		if beginsWith(string(id), []string{t.UUIDPrefix, t.PartitionPrefix}) || beginsWith(string(id), t.NodePrefixes) {
			return t.Name
		}
	}
	return ""
}

// isUUID reports whether an ID identifies a device by itself.
func (v Vendors) isUUID(id string) bool {
	return slices.ContainsFunc(v, func(t gpu.Traits) bool { return beginsWith(id, []string{t.UUIDPrefix, t.PartitionPrefix}) })
}

// isGPU reports whether an ID is the UUID of a GPU, not of a partition.
func (v Vendors) isGPU(id string) bool {
	return slices.ContainsFunc(v, func(t gpu.Traits) bool { return beginsWith(id, []string{t.UUIDPrefix}) })
}

// ownNode is a device node of one GPU: its vendor and N of, for example, /dev/nvidiaN.
type ownNode struct {
	vendor string
	minor  int64
}

// own returns which GPU a node opens by itself, such as /dev/nvidiaN: by its numbers if they are known, otherwise by its path.
func (v Vendors) own(node Node) (ownNode, bool) {
	for _, t := range v {
		if node.Major >= 0 {
			if t.GPUMajor != 0 && node.Major == t.GPUMajor && node.Minor < t.ControlMinor {
				return ownNode{t.Name, node.Minor}, true
			}
		} else if n, ok := numberOf(t, node.Path); ok {
			return ownNode{t.Name, n}, true
		}
	}
	return ownNode{}, false
}

// ownByPath reports whether the path of a node is that of a GPU's own, of a vendor whose nodes have no fixed major number.
func (v Vendors) ownByPath(node Node) bool {
	return slices.ContainsFunc(v, func(t gpu.Traits) bool {
		_, ok := numberOf(t, node.Path)
		return ok && t.GPUMajor == 0
	})
}

// numberOf returns N of a path that is a prefix of the vendor's device nodes and a number.
func numberOf(t gpu.Traits, path string) (int64, bool) {
	for _, prefix := range t.NodePrefixes {
		digits, ok := strings.CutPrefix(path, prefix)
		if n, err := strconv.ParseInt(digits, 10, 32); ok && err == nil && n >= 0 {
			return n, true
		}
	}
	return 0, false
}

// node returns the path of a GPU's own device node, or what it is by its minor.
func (v Vendors) node(vendor string, fact DeviceFact) string {
	for _, node := range fact.Nodes {
		if own, ok := v.own(node); ok && own.minor == int64(fact.Minor) || v.ownByPath(node) {
			return node.Path
		}
	}
	for _, t := range v {
		if t.GPUMajor != 0 && len(t.NodePrefixes) > 0 && (vendor == "" || vendor == t.Name) {
			return t.NodePrefixes[0] + strconv.Itoa(fact.Minor)
		}
	}
	return "a node with minor " + strconv.Itoa(fact.Minor)
}

// mounted returns the devices that mounts name to the container runtime of a vendor.
func mounted(t gpu.Traits, mounts []Mount) []string {
	var ids []string
	for _, mount := range mounts {
		id, ok := strings.CutPrefix(mount.Path, t.VisibleMounts+"/")
		if ok && t.VisibleMounts != "" && !strings.Contains(id, "/") {
			ids = append(ids, id)
		}
	}
	return ids
}

func beginsWith(text string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return prefix != "" && strings.HasPrefix(text, prefix) })
}
