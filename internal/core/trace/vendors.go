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

// RelevantEnv reports whether a variable concerns GPUs. Collectors drop all others, because a container's environment
// contains secrets.
func (v Vendors) RelevantEnv(name string) bool {
	return strings.HasPrefix(name, berthVariables) || slices.ContainsFunc(v, func(t gpu.Traits) bool { return beginsWith(name, t.Environment) })
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
				found = found || strings.Contains(mount.Path, part) || strings.Contains(mount.HostPath, part)
			}
		}
		if found {
			relevant = append(relevant, mount)
		}
	}
	return relevant
}

// isGPU reports whether a resource consists of GPUs, by its vendor or by the IDs of its devices.
func (v Vendors) isGPU(resource string, ids []string) bool {
	domain, _, _ := strings.Cut(resource, "/")
	return slices.ContainsFunc(v, func(t gpu.Traits) bool { return t.ResourcePrefix == domain }) || slices.ContainsFunc(ids, isUUID)
}

// minor returns N if the node is a GPU's own, such as /dev/nvidiaN: by its numbers if they are known, otherwise by its path.
func (v Vendors) minor(node Node) (int64, bool) {
	for _, t := range v {
		if node.Major >= 0 {
			if t.GPUMajor != 0 && node.Major == t.GPUMajor && node.Minor < t.ControlMinor {
				return node.Minor, true
			}
			continue
		}
		for _, prefix := range t.NodePrefixes {
			digits, ok := strings.CutPrefix(node.Path, prefix)
			if n, err := strconv.ParseInt(digits, 10, 32); ok && err == nil && n >= 0 {
				return n, true
			}
		}
	}
	return 0, false
}

// node returns the path of a GPU's own device node, or what it is by its minor.
func (v Vendors) node(fact DeviceFact) string {
	for _, node := range fact.Nodes {
		if minor, ok := v.minor(node); ok && minor == int64(fact.Minor) {
			return node.Path
		}
	}
	for _, t := range v {
		if t.GPUMajor != 0 && len(t.NodePrefixes) > 0 {
			return t.NodePrefixes[0] + strconv.Itoa(fact.Minor)
		}
	}
	return "a node with minor " + strconv.Itoa(fact.Minor)
}

// variables returns the names of the variables that tell a container its GPUs.
func (v Vendors) variables() (names []string) {
	for _, t := range v {
		names = append(names, t.VisibleDevices...)
	}
	return names
}

// mounted returns the devices that mounts name to a container runtime.
func (v Vendors) mounted(mounts []Mount) []string {
	var ids []string
	for _, mount := range mounts {
		for _, t := range v {
			id, ok := strings.CutPrefix(mount.Path, t.VisibleMounts+"/")
			if ok && t.VisibleMounts != "" && !strings.Contains(id, "/") {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

func beginsWith(text string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(text, prefix) })
}
