package gpu

import (
	"slices"
	"strings"
)

// NVIDIA is the name of the vendor of NVIDIA's GPUs.
const NVIDIA = "nvidia"

// Traits are the names of a vendor as plain data, for packages that work with the GPUs of any vendor.
type Traits struct {
	// Name is the key of the vendor, such as "nvidia": lower case, without spaces.
	Name string `json:"name"`
	// Title is the name in text for people, such as "NVIDIA".
	Title string `json:"title"`
	// Library is the file of the driver's management library, such as "libnvidia-ml.so.1"; empty for none.
	Library string `json:"library,omitempty"`
	// ResourcePrefix is the domain of the resources of Kubernetes that the GPUs are advertised as, such as "nvidia.com".
	ResourcePrefix string `json:"resourcePrefix"`
	// UUIDPrefix is how the UUIDs of GPUs begin, such as "GPU-", and PartitionPrefix those of partitions, such as "MIG-"; empty
	// where they have nothing in common.
	UUIDPrefix      string `json:"uuidPrefix,omitempty"`
	PartitionPrefix string `json:"partitionPrefix,omitempty"`
	// VisibleDevices are the environment variables that tell a container its GPUs, such as NVIDIA_VISIBLE_DEVICES.
	VisibleDevices []string `json:"visibleDevices,omitempty"`
	// VisibleMounts is the folder in which a mount per device names the GPUs of a container to the vendor's container runtime, such
	// as "/var/run/nvidia-container-devices".
	VisibleMounts string `json:"visibleMounts,omitempty"`
	// Features are environment variables by which the vendor's container runtime adds device nodes of the host.
	Features FeatureVariables `json:"features,omitzero"`
	// Environment are how the names of variables begin that are about GPUs; Assigning, of those that name devices or a daemon.
	Environment []string `json:"environment,omitempty"`
	Assigning   []string `json:"assigning,omitempty"`
	// Mounts are parts of the paths of mounts that are about GPUs, such as "nvidia".
	Mounts []string `json:"mounts,omitempty"`
	// NodePrefixes are how the paths of the vendor's device nodes begin, such as "/dev/nvidia". Nodes of the kernel's DRM
	// subsystem (DRMPrefix) are not among them: GPUs of every vendor have them.
	NodePrefixes []string `json:"nodePrefixes,omitempty"`
	// NodeFolders are folders of device nodes below /dev, such as "nvidia-caps".
	NodeFolders []string `json:"nodeFolders,omitempty"`
	// GPUMajor is the fixed major number of the GPUs' own device nodes, whose minor is that of the GPU; 0 for none. Minors from
	// ControlMinor up are other nodes.
	GPUMajor     int64 `json:"gpuMajor,omitempty"`
	ControlMinor int64 `json:"controlMinor,omitempty"`
	// IMEXNodes is how the path of a device node of an IMEX channel begins; its number follows.
	IMEXNodes string `json:"imexNodes,omitempty"`
	// Majors are the names of the vendor's character devices in /proc/devices.
	Majors []string `json:"majors,omitempty"`
	// CodeKinds are the kinds of error codes that the driver reports, such as "xid".
	CodeKinds []string `json:"codeKinds,omitempty"`
	// TimeoutCode is the problem code of a driver that hangs; empty for CodeTimeout.
	TimeoutCode string `json:"timeoutCode,omitempty"`
	// DCGM is true when the vendor's own exporter is dcgm-exporter, whose metrics the agent's page can have too.
	DCGM bool `json:"dcgm,omitempty"`
	// Files are those of the driver on a node, which berth doctor checks.
	Files DriverFiles `json:"-"`
}

// Concerns reports whether an environment variable is about GPUs.
func (t *Traits) Concerns(variable string) bool {
	return begins(variable, t.Environment) || t.Assigns(variable)
}

// Assigns reports whether an environment variable names devices or a daemon.
func (t *Traits) Assigns(variable string) bool {
	return begins(variable, t.Assigning) || slices.Contains(t.VisibleDevices, variable)
}

// begins reports whether a text begins with one of the prefixes. An empty prefix matches nothing.
func begins(text string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return prefix != "" && strings.HasPrefix(text, prefix) })
}

// FeatureVariables are the names of environment variables; "" for a feature that the vendor does not have.
type FeatureVariables struct {
	GDS          string `json:"gds,omitempty"`
	GDRCopy      string `json:"gdrCopy,omitempty"`
	MOFED        string `json:"mofed,omitempty"`
	IMEXChannels string `json:"imexChannels,omitempty"`
}

// CodeTimeout is the problem code of a driver that hangs, of a vendor without a code of its own for it.
const CodeTimeout = "HARDWARE_TIMEOUT"

// DRMPrefix is how the paths of the device nodes of the kernel's DRM subsystem begin.
const DRMPrefix = "/dev/dri/"
