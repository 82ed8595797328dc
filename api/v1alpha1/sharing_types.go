package v1alpha1

// GPURule configures the GPUs that it selects.
type GPURule struct {
	Select GPUSelector `json:"select,omitzero"`
	// Exclude neither advertises the GPU and its MIG devices nor changes anything on it.
	Exclude bool `json:"exclude,omitempty"`
	// ResourceName is what the whole GPU is advertised as. Default: the file's.
	ResourceName string `json:"resourceName,omitempty"`
	// MIG is the wanted partition; if absent, the GPU is not changed. The node's label nvidia.com/mig.config takes
	// precedence for the GPUs that its layout names.
	MIG *MIGSettings `json:"mig,omitempty"`
	// Sharing is how the whole GPU is shared; if absent, it is allocated to one container at a time.
	Sharing *Sharing `json:"sharing,omitempty"`
	// Allocation says through which API of Kubernetes the GPU and its MIG devices are allocated; if absent, through the
	// device plugin.
	Allocation *Allocation `json:"allocation,omitempty"`
	// DynamicMIG creates the GPU's MIG devices when claims need them and removes them afterwards; the whole GPU can be claimed
	// too. It needs allocation.api dra. No MIG layout can name the GPU. Where a change of the MIG mode takes a reset (A100,
	// A30), no claim changes the mode: turn MIG on before.
	DynamicMIG bool `json:"dynamicMIG,omitempty"`
}

// Allocation is how devices are allocated.
type Allocation struct {
	// API is device-plugin (extended resources such as nvidia.com/gpu, listed in the Node's status), dra (ResourceSlices
	// and ResourceClaims) or auto: the agent chooses once for the node, dra when no pod holds one of these GPUs and the
	// cluster has the DeviceClass of Berth, else device-plugin. The choice ends when no rule has auto any more. A device
	// that is held changes when its holders have ended. Default device-plugin.
	API AllocationAPI `json:"api,omitempty"`
}

// AllocationAPI is an API of Kubernetes that allocates devices.
// +kubebuilder:validation:Enum=device-plugin;dra;auto
type AllocationAPI string

// The APIs.
const (
	AllocationDevicePlugin AllocationAPI = "device-plugin"
	AllocationDRA          AllocationAPI = "dra"
	AllocationAuto         AllocationAPI = "auto"
)

// GPUSelector selects GPUs: each list that is given must have an entry that matches.
// An empty selector selects all.
type GPUSelector struct {
	// Index are NVML's numbers, from 0.
	Index []int `json:"index,omitempty"`
	// UUID are full UUIDs, GPU-….
	UUID []string `json:"uuid,omitempty"`
	// Model are product names as nvidia-smi prints them, in which * stands for anything.
	Model []string `json:"model,omitempty"`
	// Count limits the rule to the first devices that the other fields select and no earlier rule selects; 0 means all.
	// +kubebuilder:validation:Minimum=0
	Count int `json:"count,omitempty"`
}

// MIGDeviceRule configures the MIG devices that it selects.
type MIGDeviceRule struct {
	Select MIGDeviceSelector `json:"select,omitzero"`
	// ResourceName is what the MIG device is advertised as. Default: the name according to MIGStrategy.
	ResourceName string `json:"resourceName,omitempty"`
	// Sharing may only be by time-slicing: MPS does not run on MIG devices here.
	Sharing *Sharing `json:"sharing,omitempty"`
}

// MIGDeviceSelector selects MIG devices: each list that is given must have an entry that
// matches. An empty selector selects all.
type MIGDeviceSelector struct {
	// GPU are the indices of the GPUs, from 0.
	GPU []int `json:"gpu,omitempty"`
	// Index are N:M, the GPU's index and the MIG device's.
	Index []string `json:"index,omitempty"`
	// UUID are full UUIDs, MIG-….
	UUID []string `json:"uuid,omitempty"`
	// Profile are names such as 1g.10gb, in which * stands for anything.
	Profile []string `json:"profile,omitempty"`
	// NamedAsGPU selects MIG devices only while the node's hardware meets migStrategy single, so that they are
	// advertised under the name of the GPUs.
	NamedAsGPU bool `json:"namedAsGPU,omitempty"`
	// Count limits the rule to the first devices that the other fields select and no earlier rule selects; 0 means all.
	// +kubebuilder:validation:Minimum=0
	Count int `json:"count,omitempty"`
}

// SharingMode says how containers share a device.
type SharingMode string

// The modes.
const (
	// SharingTimeSlicing lets the driver switch between the containers' processes;
	// memory is not limited and nothing is isolated.
	SharingTimeSlicing SharingMode = "timeSlicing"
	// SharingMPS runs them at the same time under NVIDIA's Multi-Process Service, with
	// limits of memory and threads per client process.
	SharingMPS SharingMode = "mps"
)

// Sharing is how many containers share a device, and how.
type Sharing struct {
	Mode SharingMode `json:"mode"`
	// Replicas is the number of replicas that are advertised, 1 or more.
	// +kubebuilder:validation:Minimum=1
	Replicas int `json:"replicas"`
	// ResourceName is the resource of the replicas. Default: that of the unshared device, with .shared added when
	// RenameByDefault.
	ResourceName string `json:"resourceName,omitempty"`
	// RenameByDefault adds .shared to the name of replicas that have no ResourceName.
	RenameByDefault bool `json:"renameByDefault,omitempty"`
	// FailRequestsGreaterThanOne refuses a container that requests more than one replica. Default false for
	// timeSlicing, true for mps.
	FailRequestsGreaterThanOne *bool `json:"failRequestsGreaterThanOne,omitempty"`
	// TimeSlice is how long a process runs before the next: default, short, medium or
	// long (nvidia-smi compute-policy --set-timeslice). For timeSlicing of whole GPUs.
	TimeSlice TimeSlice `json:"timeSlice,omitempty"`
	// MPS are the limits of mode mps.
	MPS *MPSLimits `json:"mps,omitempty"`
}

// TimeSlice is the length of a time slice.
type TimeSlice string

// The lengths of nvidia-smi compute-policy.
const (
	TimeSliceDefault TimeSlice = "default"
	TimeSliceShort   TimeSlice = "short"
	TimeSliceMedium  TimeSlice = "medium"
	TimeSliceLong    TimeSlice = "long"
)

// MPSLimits bound each client process of an MPS daemon.
type MPSLimits struct {
	// PinnedMemoryMiB is the most device memory a client process may have. Default: the
	// GPU's divided by the replicas; -1 for no limit.
	// +kubebuilder:validation:Minimum=-1
	PinnedMemoryMiB int64 `json:"pinnedMemoryMiB,omitempty"`
	// ActiveThreadPercentage is the share of the multiprocessors that a client process
	// may use, 1 to 100. Default: 100 divided by the replicas.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	ActiveThreadPercentage int `json:"activeThreadPercentage,omitempty"`
	// SingleUser lets the clients of a second UID wait while those of a first run. Default
	// false: they run together (nvidia-cuda-mps-control -multiuser-server).
	SingleUser bool `json:"singleUser,omitempty"`
}

// ClaimMPSLimits bound each client process of an MPS daemon: those that a claim asks for, and those that are in force.
type ClaimMPSLimits struct {
	// PinnedMemoryMiB is the most device memory that a client process may have; -1, the default of a claim, for no limit.
	PinnedMemoryMiB int64 `json:"pinnedMemoryMiB,omitempty"`
	// ActiveThreadPercentage is the share of the multiprocessors that a client process may use, 1 to 100. The default of a claim is 100.
	ActiveThreadPercentage int `json:"activeThreadPercentage,omitempty"`
	// SingleUser lets the clients of a second UID wait while those of a first run. Default false: they run together.
	SingleUser bool `json:"singleUser,omitempty"`
}

// MIGSettings is the wanted partition of a GPU: a named layout, or devices.
type MIGSettings struct {
	// Layout is a name of MIGLayouts, of the ConfigMap, or of a layout that is derived from the hardware.
	Layout string `json:"layout,omitempty"`
	// Devices are numbers of MIG devices by profile, such as {"1g.10gb": 7}.
	Devices map[string]int `json:"devices,omitempty"`
}

// MIGLayoutEntry is one entry of a layout of mig-parted: the last that names a GPU decides.
type MIGLayoutEntry struct {
	// DeviceFilter are PCI IDs 0xDDDDVVVV of models, such as 0x233010DE, or with the subsystem 0xDDDDVVVV:0xSSSSVVVV;
	// empty means any.
	DeviceFilter StringOrList `json:"device-filter,omitempty"`
	// Devices are all, or indices.
	Devices AllOrIndices `json:"devices"`
	// MIGEnabled is whether the GPU is to be partitioned.
	MIGEnabled bool `json:"mig-enabled"`
	// MIGDevices are numbers of MIG devices by profile; required, though it may be
	// empty, when MIGEnabled.
	MIGDevices map[string]int `json:"mig-devices,omitzero"`
}
