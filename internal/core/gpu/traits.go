package gpu

// NVIDIA is the name of the vendor of NVIDIA's GPUs.
const NVIDIA = "nvidia"

// Traits are the names of a vendor as plain data, for packages that work with the GPUs of any vendor.
type Traits struct {
	// Name is the key of the vendor, such as "nvidia": lower case, without spaces.
	Name string
	// Title is the name in text for people, such as "NVIDIA".
	Title string
	// Library is the file of the driver's management library, such as "libnvidia-ml.so.1"; empty for none.
	Library string
	// ResourcePrefix is the domain of the resources of Kubernetes that the GPUs are advertised as, such as "nvidia.com".
	ResourcePrefix string
	// VisibleDevices are the environment variables that tell a container its GPUs, such as NVIDIA_VISIBLE_DEVICES.
	VisibleDevices []string
	// VisibleMounts is the folder in which a mount per device names the GPUs of a container to the vendor's container runtime, such
	// as "/var/run/nvidia-container-devices".
	VisibleMounts string
	// Features are environment variables by which the vendor's container runtime adds device nodes of the host.
	Features FeatureVariables
	// Environment are how the names of variables begin that are about GPUs; Assigning, of those that name devices or a daemon.
	Environment, Assigning []string
	// Mounts are parts of the paths of mounts that are about GPUs, such as "nvidia".
	Mounts []string
	// NodePrefixes are how the paths of the vendor's device nodes begin, such as "/dev/nvidia". Nodes of the kernel's DRM
	// subsystem (DRMPrefix) are not among them: GPUs of every vendor have them.
	NodePrefixes []string
	// NodeFolders are folders of device nodes below /dev, such as "nvidia-caps".
	NodeFolders []string
	// GPUMajor is the fixed major number of the GPUs' own device nodes, whose minor is that of the GPU; 0 for none. Minors from
	// ControlMinor up are other nodes.
	GPUMajor, ControlMinor int64
	// IMEXNodes is how the path of a device node of an IMEX channel begins; its number follows.
	IMEXNodes string
	// Majors are the names of the vendor's character devices in /proc/devices.
	Majors []string
	// CodeKinds are the kinds of error codes that the driver reports, such as "xid".
	CodeKinds []string
}

// FeatureVariables are the names of environment variables; "" for a feature that the vendor does not have.
type FeatureVariables struct{ GDS, GDRCopy, MOFED, IMEXChannels string }

// DRMPrefix is how the paths of the device nodes of the kernel's DRM subsystem begin.
const DRMPrefix = "/dev/dri/"
