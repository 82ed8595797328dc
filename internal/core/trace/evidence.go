package trace

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Kind is a kind of source.
type Kind string

// The kinds of sources, in the order in which a request passes through a cluster.
const (
	PodSpec       Kind = "pod spec"      // the pod's spec in the API
	PodStatus     Kind = "pod status"    // allocatedResourcesStatus (KEP-4680), conditions, what containers wait for
	Events        Kind = "events"        // the events about a pod
	ResourceClaim Kind = "ResourceClaim" // status.allocation of a ResourceClaim in the API
	Directory     Kind = "pod dir"       // names of the kubelet's own pod and log directories
	Checkpoint    Kind = "checkpoint"    // kubelet_internal_checkpoint
	AllocResp     Kind = "AllocResp"     // the device plugin's answer, kept in the checkpoint
	ClaimRecord   Kind = "claim record"  // the kubelet's dra_manager_state
	PodResources  Kind = "PodResources"  // the kubelet's podresources/v1 socket
	Ledger        Kind = "ledger"        // the agent's record of holdings
	GPUNode       Kind = "GPUNode"       // gpunodes.berth.dev
	CDISpec       Kind = "CDI spec"      // files below /etc/cdi and /var/run/cdi
	OCISpec       Kind = "OCI spec"      // the config.json that the runtime was started with
	Process       Kind = "container"     // /proc of a process in the container
	Hardware      Kind = "NVML"          // the hardware inventory
)

// rank orders kinds in the order of a request.
func (k Kind) rank() int {
	order := [...]Kind{PodSpec, PodStatus, Events, ResourceClaim, Directory, Checkpoint, AllocResp, ClaimRecord, PodResources, Ledger, GPUNode,
		CDISpec, OCISpec, Process, Hardware}
	for i, kind := range order {
		if kind == k {
			return i
		}
	}
	return len(order)
}

// Source is where a fact was read.
//
// +kubebuilder:object:generate=true
type Source struct {
	Kind Kind `json:"kind"`
	// Path is the file, the socket, the object or the call.
	Path string `json:"path,omitempty"`
	// Field is the part of the source, if one source states something in more than one way.
	Field string `json:"field,omitempty"`
}

// Sources are where a fact was read. In JSON there is a list also of none.
type Sources []Source

// MarshalJSON returns a list, which may be empty.
func (s Sources) MarshalJSON() ([]byte, error) {
	if s == nil {
		return []byte("[]"), nil
	}
	return json.Marshal([]Source(s))
}

// compareSources orders sources in the order of a request, then by path.
func compareSources(a, b Source) int {
	if c := a.Kind.rank() - b.Kind.rank(); c != 0 {
		return c
	}
	if c := strings.Compare(string(a.Kind), string(b.Kind)); c != 0 {
		return c
	}
	if c := strings.Compare(a.Path, b.Path); c != 0 {
		return c
	}
	return strings.Compare(a.Field, b.Field)
}

func sortSources(sources []Source) []Source {
	slices.SortFunc(sources, compareSources)
	return slices.Compact(sources)
}

// Unread is a source that was not read, with the reason.
//
// +kubebuilder:object:generate=true
type Unread struct {
	Source `json:",inline"`
	Why    string `json:"why"`
}

// Partial is a source that lists the GPUs of one vendor only, so that it says nothing about those of another.
type Partial struct {
	Source Source
	Vendor string
}

// Evidence is everything that was collected. The order within each list has no meaning.
type Evidence struct {
	// Host is the Kubernetes node whose own files were read; empty when none were read or its name is unknown.
	Host string
	// Read lists the sources that were read completely, so that the absence of a statement is known too.
	Read []Source
	// Partial are those of Read that list the GPUs of one vendor only.
	Partial []Partial
	// Withheld are those of Read of which holders were left out, so that they say nothing by not naming one.
	Withheld    []Source
	Unread      []Unread
	Pods        []PodFact
	Waits       []WaitFact
	Assignments []AssignmentFact
	Answers     []AnswerFact
	Claims      []ClaimFact
	Uses        []UseFact
	Containers  []ContainerFact
	Processes   []ProcessFact
	CDI         []CDIFact
	Devices     []DeviceFact
}

// Ref identifies a pod. The checkpoint has only UIDs, PodResources only names. In JSON it is its String.
//
// +kubebuilder:object:generate=true
type Ref struct {
	UID       string
	Namespace string
	Name      string
}

func (r Ref) named() bool { return r.Name != "" }

// String returns namespace/name, or the UID if the name is unknown.
func (r Ref) String() string {
	if r.named() {
		return r.Namespace + "/" + r.Name
	}
	return r.UID
}

// MarshalText returns the String.
func (r Ref) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads namespace/name, or a UID.
func (r *Ref) UnmarshalText(text []byte) error {
	namespace, name, named := strings.Cut(string(text), "/")
	if *r = (Ref{Namespace: namespace, Name: name}); !named {
		*r = Ref{UID: namespace}
	}
	return nil
}

// Role is a container's role in its pod.
type Role string

// The roles. A sidecar is an init container with restart policy Always.
const (
	RoleInit    Role = "init"
	RoleSidecar Role = "sidecar"
	RoleApp     Role = "app"
)

// The states of a container.
const (
	StateRunning    = "running"
	StateTerminated = "terminated"
	StateWaiting    = "waiting"
)

// PodFact is what one source says about a pod.
type PodFact struct {
	Source Source
	Ref    Ref
	// Node is the node that the pod is scheduled to; empty when the source does not say.
	Node string
	// Phase is Pending, Running, Succeeded or Failed; empty when the source does not say.
	Phase      string
	Containers []PodContainer
}

// WaitFact is a reason why a pod does not run, as one source gives it.
type WaitFact struct {
	Source Source
	Pod    Ref
	// Order is the position among the reasons of its source; reasons of several sources are in the order of the
	// sources.
	Order int
	// Name is the condition, the container or the event that has the reason.
	Name string
	Text string
}

// PodContainer is a container in a pod's spec and status.
type PodContainer struct {
	Name  string
	Role  Role
	State string
	// Asked are the requested resources that are devices, with their counts.
	Asked []Ask
}

// Ask is a requested number of devices.
type Ask struct {
	Resource string
	Count    int64
}

// AssignmentFact says that a container holds devices.
type AssignmentFact struct {
	Source    Source
	Pod       Ref
	Container string
	Resource  string
	// IDs are the source's own names: UUIDs, UUID::n for replicas, or indices.
	IDs []string
}

// EnvVar is one environment variable.
type EnvVar struct {
	Name  string
	Value string
}

// Mount is a host path in a container.
type Mount struct {
	HostPath string
	Path     string
}

// Node is a device node. Both numbers are Unknown if a source has only the path.
//
// +kubebuilder:object:generate=true
type Node struct {
	Path  string `json:"path"`
	Major int64  `json:"major"`
	Minor int64  `json:"minor"`
}

// Unknown is the number of a device node that a source does not state.
const Unknown = -1

// AnswerFact is the device plugin's answer to Allocate.
type AnswerFact struct {
	Source      Source
	Pod         Ref
	Container   string
	Resource    string
	Env         []EnvVar
	Mounts      []Mount
	Nodes       []Node
	CDINames    []string
	Annotations []EnvVar
}

// ContainerFact is what a container has, from its OCI spec or from a process in it.
type ContainerFact struct {
	Source Source
	// ID is the container ID of the runtime.
	ID        string
	Pod       Ref
	Container string
	State     string
	PIDs      []int
	// Privileged containers have every device node of the host, so their nodes do not show what they were given.
	Privileged bool
	Env        []EnvVar
	Nodes      []Node
	// Mounts are those that concern GPUs.
	Mounts []Mount
	// NoNodes and NoEnv are true when the source cannot see device nodes or the environment.
	NoNodes bool
	NoEnv   bool
}

// ProcessFact assigns a process to a container.
type ProcessFact struct {
	Source      Source
	PID         int
	ContainerID string
	PodUID      string
}

// CDIFact is one device of a CDI spec.
type CDIFact struct {
	Source Source
	// Name is vendor/class=device.
	Name  string
	Nodes []Node
	Env   []EnvVar
}

// DeviceFact is what one source says about a GPU or a MIG device. Empty strings and Unknown numbers are values that the
// source does not state.
type DeviceFact struct {
	Source Source
	// Host is the Kubernetes node, if the source states it.
	Host string
	UUID gpu.UUID
	// PoolName is the name of the device in a ResourceSlice; empty when it has none.
	PoolName string
	// Vendor is the name of the GPU's vendor; empty when the source does not state it.
	Vendor string
	// Parent is the GPU of a MIG device.
	Parent       gpu.UUID
	Index        string // N, or N:M for a MIG device
	Minor        int    // N of /dev/nvidiaN; that of the GPU for a MIG device
	PCI          string
	Product      string
	Architecture string
	Capability   string
	MemoryBytes  uint64
	NUMANode     int // -1: the kernel does not say
	Profile      string
	// Instance is the placement of a MIG device on its GPU.
	Instance InstanceFact
	// Sharing is how containers share the device.
	Sharing SharingFact
	Health  string
	// Nodes are the device nodes that open only this device.
	Nodes []Node
}

// InstanceFact is the placement of a MIG device on its GPU. The zero value, which has no Size, means unknown.
type InstanceFact struct {
	GI int
	CI int
	// Start and Size are in memory slices.
	Start int
	Size  int
}

// The sharing modes, as GPUNode objects write them.
const (
	ModeTimeSlicing = "timeSlicing"
	ModeMPS         = "mps"
)

// SharingFact says how containers share a device. An empty Mode means not shared or unknown.
type SharingFact struct {
	Mode     string
	Replicas int
	// TimeSlice is empty for the driver's default.
	TimeSlice string
	// MPS is what the MPS daemon enforces for each client process; a value that is not positive means no limit.
	MPS gpu.MPSLimits
	// Draining is the reason why the device is not allocated to new pods.
	Draining string
}
