package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GPUNode reports the GPUs of one node: their health, how they are connected, and which pod holds
// which of them. Its name is the name of the node.
//
// The agent is the only writer and the object contains no desired state, so there is no spec, and
// no status subresource either: each write replaces the whole object. It has no values that change
// all the time (no temperature, no utilization, no time of the last scan). It names the pods of all
// tenants: everyone who may read it sees them.
//
// +kubebuilder:object:root=true
// +kubebuilder:metadata:annotations="berth.dev/schema-version=7"
// +kubebuilder:resource:scope=Cluster,shortName=gpun,categories=berth
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.gate.state`,description="How far the node is on its way to accepting pods with GPUs."
// +kubebuilder:printcolumn:name="GPUs",type=integer,JSONPath=`.status.summary.gpus`,description="GPUs that the last scan found."
// +kubebuilder:printcolumn:name="Held",type=integer,JSONPath=`.status.summary.held`,description="GPUs that are held, as a whole or in part."
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.summary.free`,description="Healthy GPUs that are not held."
// +kubebuilder:printcolumn:name="Unhealthy",type=integer,JSONPath=`.status.summary.unhealthy`,description="GPUs that are not advertised as healthy."
// +kubebuilder:printcolumn:name="Model",type=string,JSONPath=`.status.summary.model`
// +kubebuilder:printcolumn:name="Driver",type=string,JSONPath=`.status.driver.version`
// +kubebuilder:printcolumn:name="Agent",type=string,JSONPath=`.status.agentVersion`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GPUNode struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// +optional
	Status GPUNodeStatus `json:"status,omitzero"`
}

// GPUNodeList is a list of GPUNode.
//
// +kubebuilder:object:root=true
type GPUNodeList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []GPUNode `json:"items"`
}

// GPUNodeStatus is the observed state of the GPUs of one node.
type GPUNodeStatus struct {
	// AgentVersion is the version of the berth-agent that wrote the object.
	// +optional
	AgentVersion string `json:"agentVersion,omitempty"`
	// Driver is the driver of the GPUs; absent when none responds. On a node with GPUs of several
	// vendors it is the one that supports CUDA.
	// +optional
	Driver GPUDriver `json:"driver,omitzero"`
	// Drivers are those of all vendors, on a node with GPUs of several.
	// +optional
	// +listType=map
	// +listMapKey=vendor
	Drivers []VendorDriver `json:"drivers,omitempty"`
	// Summary counts the GPUs below.
	// +optional
	Summary GPUSummary `json:"summary,omitzero"`
	// Devices are the physical GPUs in the order of their index.
	// +optional
	// +listType=atomic
	Devices []GPUDevice `json:"devices,omitempty"`
	// Topology is the matrix of nvidia-smi topo -m, one row per entry of devices,
	// cells separated by spaces: X (the GPU itself), NV# (number of NVLinks), PIX, PXB, PHB,
	// NODE, SYS, or ? where the driver does not report the link.
	// +optional
	// +listType=atomic
	Topology []string `json:"topology,omitempty"`
	// PCITopology is the same matrix with the PCIe path of each pair of GPUs, also where NVLinks
	// connect them: X, PSB, PIX, PXB, PHB, NODE, SYS or ?. It is absent where no NVLinks connect
	// any GPUs, since topology says the same then, and in an object of an agent that does not
	// publish it yet.
	//
	// Row I of both matrices is the GPU at position I of devices. The device plugin chooses GPUs
	// by the links, the NUMA nodes and the order of the very list that devices is made of: a GPU
	// that is excluded, lost (Gone) or in MIG mode keeps its position and its row. So who makes
	// the same choice among the same positions gets the GPUs that the device plugin prefers.
	// When a GPU is added or removed for good, positions change, and both matrices with them.
	// A reader must not rely on the matrices having a row for each of devices: topology is absent
	// while the links are not known, and then the device plugin takes GPUs in the order of devices.
	// +optional
	// +listType=atomic
	PCITopology []string `json:"pciTopology,omitempty"`
	// Problems are those that concern no single GPU of the list: no driver, or a GPU that could
	// not be read.
	// +optional
	// +listType=atomic
	Problems []Cause `json:"problems,omitempty"`
	// Kubelet is how the node's kubelet is configured, as far as the agent can read it.
	// +optional
	Kubelet KubeletStatus `json:"kubelet,omitzero"`
	// Config says which configuration is in force.
	// +optional
	Config GPUConfigStatus `json:"config,omitzero"`
	// Gate is the state of the validation gate; absent where the gate is off.
	// +optional
	Gate *GateStatus `json:"gate,omitempty"`
	// Conditions are ConfigAccepted (False while the newest configuration is refused and
	// an older one stays in force) and MIGApplied (False while a layout waits or failed).
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// KubeletStatus is the part of the kubelet's configuration that decides which GPUs a pod gets.
type KubeletStatus struct {
	// TopologyManagerPolicy is the policy that the running kubelet has: none, best-effort,
	// restricted or single-numa-node. With none, a pod gets the GPUs that the device plugin
	// prefers; with another policy the kubelet may restrict the choice to GPUs of some NUMA nodes
	// first. It is absent while the agent does not know it, which says nothing about the policy.
	// +optional
	TopologyManagerPolicy string `json:"topologyManagerPolicy,omitempty"`
}

// GPUConfigStatus is the configuration that the agent applies.
type GPUConfigStatus struct {
	// Source is where it was read: a file's path, or NAMESPACE/NAME/KEY of a ConfigMap.
	// +optional
	Source string `json:"source,omitempty"`
	// MIGLayout is the layout that the node's label asks for.
	// +optional
	MIGLayout string `json:"migLayout,omitempty"`
	// MIGConfigMap is NAMESPACE/NAME of the ConfigMap that defines layouts.
	// +optional
	MIGConfigMap string `json:"migConfigMap,omitempty"`
	// SharedDevicesAllocationPolicy says from which GPU a pod gets a replica: distributed from the
	// one of which least is in use, packed from the one of which most is.
	// +optional
	SharedDevicesAllocationPolicy SharePolicy `json:"sharedDevicesAllocationPolicy,omitempty"`
}

// GPUDriver is a driver and the CUDA version that it supports.
type GPUDriver struct {
	Version string `json:"version"`
	// CUDAVersion is major.minor.
	// +optional
	CUDAVersion string `json:"cudaVersion,omitempty"`
}

// VendorDriver is the driver of one vendor.
type VendorDriver struct {
	// Vendor is the vendor's name, such as nvidia.
	Vendor    string `json:"vendor"`
	GPUDriver `json:",inline"`
}

// GPUSummary counts the GPUs of a node. A GPU that is held can be unhealthy too, so the
// sum of held, free and unhealthy can exceed gpus.
type GPUSummary struct {
	GPUs      int `json:"gpus"`
	Held      int `json:"held"`
	Free      int `json:"free"`
	Unhealthy int `json:"unhealthy"`
	// Model is the product of all GPUs, or "7x A, 1x B" where they differ.
	// +optional
	Model string `json:"model,omitempty"`
}

// GPUDevice is one physical GPU.
type GPUDevice struct {
	UUID string `json:"uuid"`
	// Vendor is the name of the vendor, on a node with GPUs of several: each vendor's indices
	// begin at 0.
	// +optional
	Vendor string `json:"vendor,omitempty"`
	// Index is the vendor's number (NVML's), which changes when a GPU is lost; the UUID does not.
	Index int `json:"index"`
	// Minor is N of /dev/nvidiaN.
	Minor int `json:"minor"`
	// PCIBusID is in the kernel's form, 0000:1b:00.0.
	PCIBusID string `json:"pciBusID"`
	Product  string `json:"product"`
	// +optional
	Architecture string `json:"architecture,omitempty"`
	// ComputeCapability is major.minor.
	// +optional
	ComputeCapability string `json:"computeCapability,omitempty"`
	// MemoryBytes is absent where the GPU does not report it, for example when it is lost.
	// +optional
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	// NUMANode is -1 where the kernel does not report it.
	NUMANode int `json:"numaNode"`
	// Clique is the multi-node NVLink domain that the GPU has joined,
	// CLUSTER-UUID.CLIQUE-ID.
	// +optional
	Clique string       `json:"clique,omitempty"`
	Health DeviceHealth `json:"health"`
	// MIGEnabled is true when MIG mode is on, even when the GPU has no MIG
	// device yet.
	// +optional
	MIGEnabled bool `json:"migEnabled,omitempty"`
	// MIGModeNeedsReset is true where a change of the MIG mode needs a reset of the GPU.
	// +optional
	MIGModeNeedsReset bool `json:"migModeNeedsReset,omitempty"`
	// DeviceID is the PCI device and vendor ID, 0xDDDDVVVV, by which layouts filter.
	// +optional
	DeviceID string `json:"deviceID,omitempty"`
	// SubsystemID is the PCI subsystem device and vendor ID, 0xSSSSVVVV, by which layouts can filter too.
	// +optional
	SubsystemID string `json:"subsystemID,omitempty"`
	// +optional
	// +listType=atomic
	MIGDevices []MIGDevice `json:"migDevices,omitempty"`
	// Excluded is true for a GPU that the configuration excludes: it is not advertised and not changed.
	// +optional
	Excluded bool `json:"excluded,omitempty"`
	// MIGProfiles are the MIG profiles that the driver reports for the GPU.
	// +optional
	// +listType=atomic
	MIGProfiles []MIGProfile `json:"migProfiles,omitempty"`
	// Offered is how the GPU is advertised; absent for one that is not.
	// +optional
	Offered *DeviceOffer `json:"offered,omitempty"`
	// Holders are those of the GPU and of its replicas. The holders of its MIG devices are listed
	// at the MIG devices.
	// +optional
	// +listType=atomic
	Holders []Holder `json:"holders,omitempty"`
}

// MIGDevice is a GPU instance with its compute instance.
type MIGDevice struct {
	UUID string `json:"uuid"`
	// Profile is the name that NVIDIA's tools print, such as 1g.10gb.
	Profile string `json:"profile"`
	// Index is M of the MIG device index N:M.
	Index int `json:"index"`
	GI    int `json:"gi"`
	CI    int `json:"ci"`
	// Start and Size are the placement in memory slices.
	Start       int   `json:"start"`
	Size        int   `json:"size"`
	MemoryBytes int64 `json:"memoryBytes"`
	// Health is that of this MIG device, and includes faults of the whole GPU.
	// +optional
	Health *DeviceHealth `json:"health,omitempty"`
	// Offered is how the MIG device is advertised; absent for one that is not.
	// +optional
	Offered *DeviceOffer `json:"offered,omitempty"`
	// +optional
	// +listType=atomic
	Holders []Holder `json:"holders,omitempty"`
}

// MIGProfile is one kind of GPU instance that a GPU supports.
type MIGProfile struct {
	Name          string `json:"name"`
	ComputeSlices int    `json:"computeSlices"`
	// Size is in memory slices; Starts are the possible first slices.
	Size int `json:"size"`
	// +listType=atomic
	Starts []int `json:"starts"`
	Max    int   `json:"max"`
}

// DeviceOffer is how a device is advertised.
type DeviceOffer struct {
	// Resource is the name that pods request.
	Resource string `json:"resource"`
	// Sharing is timeSlicing or mps; absent for a device that is not shared, and unknown while
	// replicas are in use for which the agent has no record of the mode.
	// +optional
	Sharing string `json:"sharing,omitempty"`
	// Replicas is the number of containers that may share the device.
	// +optional
	Replicas int `json:"replicas,omitempty"`
	// TimeSlice is the length of a time slice, when it is not the driver's default.
	// +optional
	TimeSlice string `json:"timeSlice,omitempty"`
	// The limits of a device with sharing mps.
	ClaimMPSLimits `json:",inline"`
	// API is dra for a device that is allocated through ResourceClaims; absent for one that the device plugin advertises.
	// +optional
	API string `json:"api,omitempty"`
	// RefusesMany is true when a request for more than one of the resource is refused.
	// +optional
	RefusesMany bool `json:"refusesMany,omitempty"`
	// Draining says why the device is not allocated to further pods, and what it waits for.
	// +optional
	Draining string `json:"draining,omitempty"`
}

// DeviceHealth is the health of a GPU or a MIG device, with the evidence for it.
type DeviceHealth struct {
	// State is Healthy, Degraded (still allocated, with a warning), Draining (not allocated to new pods;
	// running ones keep it until it can be reset), Unhealthy (not allocated until the causes are gone),
	// NeedsReset or NeedsReboot (not allocated until that is done), or Gone (does not respond at all).
	// +kubebuilder:validation:Enum=Healthy;Degraded;Draining;Unhealthy;NeedsReset;NeedsReboot;Gone
	State string `json:"state"`
	// +optional
	// +listType=atomic
	Causes []Cause `json:"causes,omitempty"`
	// Recovery is the recovery action that the driver reports, such as GPUReset.
	// +optional
	Recovery string `json:"recovery,omitempty"`
}

// Cause is one reason for a problem.
type Cause struct {
	// Code is a stable name, such as XID79 or GPU_LOST.
	Code    string `json:"code"`
	Message string `json:"message"`
	// Since is when it was first seen.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// Recover says what removes the cause.
	// +optional
	Recover string `json:"recover,omitempty"`
}

// HolderPod is a pod that uses a ResourceClaim.
type HolderPod struct {
	// Name is absent while only the UID is known.
	// +optional
	Name string `json:"name,omitempty"`
	UID  string `json:"uid"`
}

// Holder is who holds a device.
type Holder struct {
	// Kind is Pod, Claim (a ResourceClaim), Maintenance, or Orphan (a pod with a container that uses the
	// device although the kubelet does not list it).
	Kind string `json:"kind"`
	// ID is the UID of the ResourceClaim, or names the maintenance.
	// +optional
	ID string `json:"id,omitempty"`
	// Namespace is that of the pod or the ResourceClaim.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Pod is the name of the pod; absent for a ResourceClaim.
	// +optional
	Pod string `json:"pod,omitempty"`
	// Claim is the name of the ResourceClaim.
	// +optional
	Claim string `json:"claim,omitempty"`
	// +optional
	PodUID string `json:"podUID,omitempty"`
	// +optional
	Container string `json:"container,omitempty"`
	// Resource is the name that the pod requested, such as nvidia.com/gpu.
	// +optional
	Resource string `json:"resource,omitempty"`
	// Requests are the names of the ResourceClaim's requests for which it has the device, sorted.
	// +optional
	// +listType=atomic
	Requests []string `json:"requests,omitempty"`
	// Sharing is how the containers of the ResourceClaim share the GPU; absent for the driver's time slice, for a MIG device, and while
	// it is not known.
	// +optional
	Sharing *ClaimSharing `json:"sharing,omitempty"`
	// Pods are the pods that use the ResourceClaim, in its namespace: the first 16 by name and UID.
	// +optional
	// +listType=atomic
	Pods []HolderPod `json:"pods,omitempty"`
	// MorePods is how many pods use the ResourceClaim besides Pods.
	// +optional
	MorePods int `json:"morePods,omitempty"`
	// Share is the number of the replica, from 1; absent for a device that is not
	// shared.
	// +optional
	Share int `json:"share,omitempty"`
}
