package trace

import (
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Trace is the joined picture, or the part of it that a Query leads to.
type Trace struct {
	// Subject is the query as text; empty for the whole picture.
	Subject       string
	Disagreements []Disagreement
	// Pods are ordered by namespace, name and UID.
	Pods []Pod
	// Devices are all devices that any source lists, held or not, ordered by index. Select keeps only those of a query
	// for a GPU.
	Devices []Device
	// Claims are ordered by namespace, name and UID. Select keeps those that concern its pods and devices.
	Claims []Claim
	// Processes are ordered by PID.
	Processes []ProcessFact
	Read      []Source
	Unread    []Unread
}

// Fact is a value with its sources.
type Fact struct {
	Name    string
	Value   string
	Sources []Source
}

// Pod is one pod, identified by UID if a source has it.
type Pod struct {
	Ref     Ref
	Phase   string
	Node    Fact
	Sources []Source
	// Waiting are the reasons why a pod does not run.
	Waiting    []Fact
	Containers []Container
}

// Done reports whether the pod has ended.
func (p *Pod) Done() bool { return p.Phase == "Succeeded" || p.Phase == "Failed" }

// Container is one container: what it requested and what it got.
type Container struct {
	Name  string
	Role  Role
	ID    string
	State string
	PIDs  []int
	// Asked are resource names with counts.
	Asked []Fact
	// Claims are the ResourceClaims that it uses, with their requests.
	Claims  []Fact
	Devices []Device
	// Nodes belong to none of Devices: control nodes, or nodes of other GPUs.
	Nodes       []NodeFact
	CDINames    []Fact
	Env         []Fact
	Mounts      []Fact
	Annotations []Fact
}

// Device is a GPU or a MIG device with all that is known of it.
type Device struct {
	UUID gpu.UUID
	// Parent is the GPU of a MIG device.
	Parent gpu.UUID
	// IDs are the kubelet's IDs for it, if they differ from the UUID.
	IDs      []string
	Resource string
	// Claims are the ResourceClaims by which the container has it, with their requests.
	Claims []Fact
	// Admin is true when the container has it by admin access, so that it does not hold it.
	Admin bool
	// Sources say that the container holds it or, outside a container, that it exists.
	Sources  []Source
	Facts    []Fact
	CDINames []Fact
	Nodes    []NodeFact
}

// Keys returns the replicas of the device that the container has, or the device itself if there are none.
func (d *Device) Keys() []gpu.DeviceKey {
	key := gpu.DeviceKey{GPU: d.UUID}
	if d.Parent != "" {
		key = gpu.DeviceKey{GPU: d.Parent, MIG: d.UUID}
	}
	var keys []gpu.DeviceKey
	for _, id := range d.IDs {
		if n, ok := replicaNumber(id); ok {
			keys = append(keys, gpu.DeviceKey{GPU: key.GPU, MIG: key.MIG, Share: n + 1})
		}
	}
	if len(keys) == 0 {
		return []gpu.DeviceKey{key}
	}
	return keys
}

// replicaNumber returns n of the kubelet's replica ID UUID::n.
func replicaNumber(id string) (int, bool) {
	_, digits, _ := strings.Cut(id, replicaMark)
	n, err := strconv.Atoi(digits)
	return n, err == nil && n >= 0
}

// Fact returns the value of the fact with that name, or "" if there is none.
func (d *Device) Fact(name string) string {
	for _, fact := range d.Facts {
		if fact.Name == name {
			return fact.Value
		}
	}
	return ""
}

// NodeFact is a device node with its sources.
type NodeFact struct {
	Node
	Sources []Source
}

// Code is the stable name of a kind of disagreement.
type Code string

// The kinds of disagreements.
const (
	// DevicesDiffer: two sources assign different devices to one container.
	DevicesDiffer Code = "DevicesDiffer"
	// CountDiffers: a container holds more or fewer devices than it requested.
	CountDiffers Code = "CountDiffers"
	// TwoHolders: two containers of different pods hold one device that is not shared.
	TwoHolders Code = "TwoHolders"
	// NodeDiffers: two sources place one pod on different Kubernetes nodes.
	NodeDiffers Code = "NodeDiffers"
	// DeviceUnknown: a container was given a device that the hardware does not have.
	DeviceUnknown Code = "DeviceUnknown"
	// FactDiffers: two sources describe one device differently.
	FactDiffers Code = "FactDiffers"
	// DeviceNodeDiffers: two sources assign different numbers to one device node, or different nodes to one device.
	DeviceNodeDiffers Code = "DeviceNodeDiffers"
	// CDINameUnknown: a container was given a CDI name that no spec defines.
	CDINameUnknown Code = "CDINameUnknown"
	// MPSNotJoined: a container has a replica of a GPU that is shared by MPS, and is not connected to the GPU's daemon,
	// so no limit is enforced.
	MPSNotJoined Code = "MPSNotJoined"
	// MPSOtherGPU: a container is connected to the MPS daemon of a GPU that it does not hold.
	MPSOtherGPU Code = "MPSOtherGPU"
)

// Disagreement is one item about which the sources contradict each other.
type Disagreement struct {
	Code      Code
	Pod       Ref
	Container string
	Device    gpu.UUID
	// Statements are the contradicting statements, at least two, in the order of the sources.
	Statements []Fact
}
