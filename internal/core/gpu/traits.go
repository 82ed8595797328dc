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
	// NodePrefixes are how the paths of the vendor's device nodes begin, such as "/dev/nvidia". Nodes of the kernel's DRM
	// subsystem (DRMPrefix) are not among them: GPUs of every vendor have them.
	NodePrefixes []string
	// Majors are the names of the vendor's character devices in /proc/devices.
	Majors []string
	// CodeKinds are the kinds of error codes that the driver reports, such as "xid".
	CodeKinds []string
}

// DRMPrefix is how the paths of the device nodes of the kernel's DRM subsystem begin.
const DRMPrefix = "/dev/dri/"
