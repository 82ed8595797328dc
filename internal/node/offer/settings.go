package offer

import "github.com/berth-gpu/berth/internal/core/gpu"

// DefaultResource is the extended resource name of a whole GPU.
const DefaultResource = "nvidia.com/gpu"

// The values of Settings.MIGStrategy.
const (
	// MIGNone offers a GPU with MIG enabled whole.
	MIGNone = "none"
	// MIGSingle offers the MIG devices as Settings.ResourceName. It needs all GPUs to be alike:
	// each with MIG enabled, each with MIG devices, all of one profile. Where no GPU has MIG
	// enabled it is the same as MIGNone, and where some have and the rest of it is not met it is the same as
	// MIGMixed, with a problem: a name of its own is true of every device, whereas the common
	// name would promise a whole GPU or a slice, nobody could say which.
	MIGSingle = "single"
	// MIGMixed offers each MIG device as nvidia.com/mig-PROFILE.
	MIGMixed = "mixed"
)

// Settings are what an operator chooses. The zero value offers every GPU as
// DefaultResource and every MIG device as nvidia.com/mig-PROFILE.
type Settings struct {
	// ResourceName is the name for whole GPUs; empty means DefaultResource.
	ResourceName string
	// MIGStrategy is one of the three; anything else means MIGMixed.
	MIGStrategy string
	// GPUs decide about cards and MIGDevices about MIG devices, the first rule that selects one.
	// One that no rule selects is given out unshared under its default name.
	GPUs       []GPURule
	MIGDevices []MIGRule
	// Changing are the GPUs that are being partitioned anew, as Settle's pending. By what is
	// left of them meanwhile nothing is judged: not whether MIGSingle is met, which would rename
	// the devices of all others for a moment, nor whether they are empty.
	Changing map[gpu.UUID]string
}

// GPURule is what to do with the cards that it selects.
type GPURule struct {
	Select GPUSelect
	// Exclude never offers the card nor its MIG devices.
	Exclude bool
	// ResourceName is what the whole card is offered as; empty means the settings' name.
	ResourceName string
	// Sharing is how the whole card is shared.
	Sharing Sharing
}

// GPUSelect selects cards: each list that is not empty must have an entry that matches.
type GPUSelect struct {
	Index []int
	UUID  []gpu.UUID
	// Model are product names, in which * stands for anything.
	Model []string
	// Count takes the first so many, by index, of those that the rest selects and no
	// earlier rule has; 0 takes all.
	Count int
}

// MIGRule is what to do with the MIG devices that it selects.
type MIGRule struct {
	Select MIGSelect
	// ResourceName is what the device is offered as; empty means what the strategy says.
	ResourceName string
	// Sharing may not be MPS, and has no time slice: both belong to whole cards.
	Sharing Sharing
}

// MIGSelect selects MIG devices: each list that is not empty must have an entry that matches.
type MIGSelect struct {
	// GPU are the indices of cards, Index the N:M of devices.
	GPU   []int
	Index []string
	// UUID are MIG-…, or in the form of old drivers MIG-GPU-<uuid>/<gi>/<ci>.
	UUID []gpu.UUID
	// Profile are names such as 1g.10gb, in which * stands for anything.
	Profile []string
	// NamedAsGPU selects only while the hardware meets MIGSingle.
	NamedAsGPU bool
	// Count is as in GPUSelect.
	Count int
}

// Sharing is how many containers share a device, and how. The zero value shares nothing.
type Sharing struct {
	Mode Mode
	// Replicas is 1 or more.
	Replicas int
	// ResourceName is what the shares are offered as; empty means as the unshared device would
	// be, with .shared added if Rename.
	ResourceName string
	Rename       bool
	// RefuseMany refuses a container that asks for more than one share.
	RefuseMany bool
	// TimeSlice is short, medium or long; empty and "default" are the driver's default.
	TimeSlice string
	// PinnedMemoryMiB bounds each client of MPS; 0 is the card's memory divided by the
	// replicas, -1 is no bound.
	PinnedMemoryMiB int64
	// ActiveThreadPercentage bounds each client of MPS; 0 is 100 divided by the replicas.
	ActiveThreadPercentage int
	SingleUser             bool
}

// The codes of the problems that Resolve finds.
const (
	// UUIDUnusable: a device has no UUID, or one that another device has too.
	UUIDUnusable = "UUID_UNUSABLE"
	// MIGEmpty: a GPU has MIG enabled and no MIG device.
	MIGEmpty = "MIG_EMPTY"
	// MIGNotSingle: the hardware does not meet MIGSingle.
	MIGNotSingle = "MIG_NOT_SINGLE"
	// MIGPartialCompute: a MIG device is not the whole of its GPU instance.
	MIGPartialCompute = "MIG_PARTIAL_COMPUTE"
	// MIGProfileUnknown: a MIG device cannot be named, since the driver does not say its profile.
	MIGProfileUnknown = "MIG_PROFILE_UNKNOWN"
	// MPSOnMIG: MPS is wanted on a GPU with MIG enabled, or on a MIG device.
	MPSOnMIG = "MPS_ON_MIG"
	// MPSTooManyReplicas: more replicas than an MPS server has clients.
	MPSTooManyReplicas = "MPS_TOO_MANY_REPLICAS"
	// MPSMemoryUnknown: there is no memory to divide.
	MPSMemoryUnknown = "MPS_MEMORY_UNKNOWN"
	// SharingInvalid: a sharing that means nothing, such as one with no replicas.
	SharingInvalid = "SHARING_INVALID"
	// SharingNotApplied: a rule shares the whole of a card that is not offered whole.
	SharingNotApplied = "SHARING_NOT_APPLIED"
	// TimeSliceOnMIG: a time slice is wanted for a MIG device.
	TimeSliceOnMIG = "TIME_SLICE_ON_MIG"
	// ResourceNameInvalid: the kubelet would refuse the name.
	ResourceNameInvalid = "RESOURCE_NAME_INVALID"
	// MixedResource: one resource has devices of unlike kinds.
	MixedResource = "MIXED_RESOURCE"
	// RuleDeviceUnknown: a rule names an index or a UUID that the node does not have.
	RuleDeviceUnknown = "RULE_DEVICE_UNKNOWN"
	// RuleUnused: a rule decides about no device of this node. That is no fault where one
	// file serves unlike nodes.
	RuleUnused = "RULE_UNUSED"
)
