package offer

import "github.com/berth-gpu/berth/internal/core/gpu"

// DefaultResource is the extended resource name of a whole GPU.
const DefaultResource = "nvidia.com/gpu"

// The values of Settings.MIGStrategy.
const (
	// MIGNone advertises a GPU with MIG enabled as a whole.
	MIGNone = "none"
	// MIGSingle advertises the MIG devices as Settings.ResourceName. It requires that all GPUs are alike: each has MIG
	// enabled and MIG devices, all of one profile. Where no GPU has MIG enabled it is the same as MIGNone. Where some
	// have and the other conditions are not met, it is the same as MIGMixed, with a problem: a profile's own name is
	// correct for every device, whereas under the common name a pod could get either a whole GPU or a slice.
	MIGSingle = "single"
	// MIGMixed advertises each MIG device as nvidia.com/mig-PROFILE.
	MIGMixed = "mixed"
)

// Settings are the operator's settings. The zero value advertises every GPU as DefaultResource and every MIG device as
// nvidia.com/mig-PROFILE.
type Settings struct {
	// ResourceName is the name for whole GPUs; empty means DefaultResource.
	ResourceName string
	// MIGStrategy is one of the three; anything else means MIGMixed.
	MIGStrategy string
	// GPUs decide about GPUs and MIGDevices about MIG devices, the first rule that selects one. A device that no rule
	// selects is advertised unshared under its default name.
	GPUs       []GPURule
	MIGDevices []MIGRule
	// Vendor is the name of the vendor whose GPUs the settings above are about.
	Vendor string
	// OtherVendors are the resources of the vendors whose GPUs the settings above are not about, by the vendor's name. Their
	// GPUs are advertised whole and unshared.
	OtherVendors map[string]string
	// Changing are the GPUs that are being repartitioned, as Settle's pending. Their present MIG devices are ignored:
	// for MIGSingle, which would otherwise rename the devices of all other GPUs for a moment, and for the problem that
	// a GPU has none.
	Changing map[gpu.UUID]string
	// Repartitioned are the GPUs whose MIG layout is not the one that they are to have. Where one of their present MIG devices
	// and a device of the other API have one resource name, it is not advertised.
	Repartitioned map[gpu.UUID]bool
}

// VendorOf returns the name of the vendor whose devices are advertised as a resource: a resource has devices of one vendor only.
func (s *Settings) VendorOf(resource string) string {
	for name, other := range s.OtherVendors {
		if other == resource {
			return name
		}
	}
	return s.Vendor
}

// GPURule configures the GPUs that it selects.
type GPURule struct {
	Select GPUSelect
	// Exclude advertises neither the GPU nor its MIG devices.
	Exclude bool
	// ResourceName is the resource of the whole GPU; empty means the settings' name.
	ResourceName string
	// Sharing is how the whole GPU is shared.
	Sharing Sharing
	// API allocates the GPU, and its MIG devices. With DRA there is neither a ResourceName nor a Sharing: DeviceClasses and
	// claims have them.
	API API
	// DynamicMIG allocates the whole GPU and MIG devices that are created for claims; only with DRA.
	DynamicMIG bool
}

// GPUSelect selects GPUs: each list that is not empty must have an entry that matches. Its fields are those of the configuration's
// selector, which is converted to it.
type GPUSelect struct {
	Index []int
	UUID  []string
	// Model are product names, in which * stands for anything.
	Model []string
	// Count limits the rule to the first GPUs, by index, that the other fields select and no earlier rule has; 0 means
	// all.
	Count int
}

// MIGRule configures the MIG devices that it selects.
type MIGRule struct {
	Select MIGSelect
	// ResourceName is the resource of the device; empty means the name according to the strategy.
	ResourceName string
	// Sharing may not be MPS and has no time slice: both apply to whole GPUs.
	Sharing Sharing
}

// MIGSelect selects MIG devices: each list that is not empty must have an entry that matches. It is converted as GPUSelect is.
type MIGSelect struct {
	// GPU are the indices of GPUs, Index the N:M of devices.
	GPU   []int
	Index []string
	// UUID are MIG-…, or in the form of old drivers MIG-GPU-<uuid>/<gi>/<ci>.
	UUID []string
	// Profile are names such as 1g.10gb, in which * stands for anything.
	Profile []string
	// NamedAsGPU selects only while the hardware meets MIGSingle.
	NamedAsGPU bool
	// Count is as in GPUSelect.
	Count int
}

// Sharing says how many containers share a device, and how. The zero value means that it is not shared.
type Sharing struct {
	Mode Mode
	// Replicas is 1 or more.
	Replicas int
	// ResourceName is the resource of the replicas; empty means that of the unshared device, with .shared added if
	// Rename.
	ResourceName string
	Rename       bool
	// RefuseMany refuses a container that requests more than one replica.
	RefuseMany bool
	// TimeSlice is short, medium or long; empty and "default" are the driver's default.
	TimeSlice string
	// MPS are the limits of mode MPS; 0 is the GPU's memory, or 100 %, divided by the replicas.
	MPS gpu.MPSLimits
}

// The codes of the problems that Resolve finds.
const (
	// UUIDUnusable: a device has no UUID, or the UUID of another device.
	UUIDUnusable = "UUID_UNUSABLE"
	// MIGEmpty: a GPU has MIG enabled and no MIG device.
	MIGEmpty = "MIG_EMPTY"
	// MIGNotSingle: the hardware does not meet MIGSingle.
	MIGNotSingle = "MIG_NOT_SINGLE"
	// MIGPartialCompute: a MIG device is not the whole of its GPU instance.
	MIGPartialCompute = "MIG_PARTIAL_COMPUTE"
	// MIGProfileUnknown: a MIG device cannot be named, because the driver does not report its profile.
	MIGProfileUnknown = "MIG_PROFILE_UNKNOWN"
	// MPSOnMIG: MPS is wanted on a GPU with MIG enabled, or on a MIG device.
	MPSOnMIG = "MPS_ON_MIG"
	// MPSTooManyReplicas: more replicas than an MPS server has clients.
	MPSTooManyReplicas = "MPS_TOO_MANY_REPLICAS"
	// MPSMemoryUnknown: there is no memory to divide.
	MPSMemoryUnknown = "MPS_MEMORY_UNKNOWN"
	// SharingInvalid: an invalid sharing, such as one without replicas.
	SharingInvalid = "SHARING_INVALID"
	// SharingNotApplied: a rule shares the whole of a GPU that is not advertised as a whole.
	SharingNotApplied = "SHARING_NOT_APPLIED"
	// TimeSliceOnMIG: a time slice is wanted for a MIG device.
	TimeSliceOnMIG = "TIME_SLICE_ON_MIG"
	// ResourceNameInvalid: the kubelet would refuse the name.
	ResourceNameInvalid = "RESOURCE_NAME_INVALID"
	// MixedResource: one resource has devices of different kinds.
	MixedResource = "MIXED_RESOURCE"
	// ResourceTwoAPIs: a resource would be served by the device plugin and by DRA.
	ResourceTwoAPIs = "RESOURCE_TWO_APIS"
	// RuleDeviceUnknown: a rule names an index or a UUID that the node does not have.
	RuleDeviceUnknown = "RULE_DEVICE_UNKNOWN"
	// RuleUnused: a rule decides about no device of this node. That is expected where one file serves different nodes.
	RuleUnused = "RULE_UNUSED"
)
