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
//
// +kubebuilder:object:generate=true
type Fact struct {
	// Name is the name of the fact; empty where the field's name is sufficient.
	Name    string  `json:"name,omitempty"`
	Value   string  `json:"value"`
	Sources Sources `json:"sources"`
}

// Pod is one pod, identified by UID if a source has it.
//
// +kubebuilder:object:generate=true
type Pod struct {
	Namespace string  `json:"namespace,omitempty"`
	Name      string  `json:"name,omitempty"`
	UID       string  `json:"uid,omitempty"`
	Phase     string  `json:"phase,omitempty"`
	Node      *Fact   `json:"node,omitempty"`
	Sources   Sources `json:"sources"`
	// Waiting are the reasons why a pod that does not run waits: conditions, what containers wait for, and the latest events.
	Waiting []Fact `json:"waiting,omitempty"`
	// Why is the dominant reason why a pod waits for a node, as berth why gives it. Join does not set it.
	Why        string      `json:"why,omitempty"`
	Containers []Container `json:"containers"`
}

// Ref returns what identifies the pod.
func (p *Pod) Ref() Ref { return Ref{UID: p.UID, Namespace: p.Namespace, Name: p.Name} }

// Done reports whether the pod has ended.
func (p *Pod) Done() bool { return p.Phase == "Succeeded" || p.Phase == "Failed" }

// Container is one container: what it requested and what it got.
//
// +kubebuilder:object:generate=true
type Container struct {
	Name string `json:"name"`
	// Role is init, sidecar, app or ephemeral; empty when no source has it.
	Role Role `json:"role,omitempty"`
	// ID is the container's ID in the runtime, State its state.
	ID    string `json:"id,omitempty"`
	State string `json:"state,omitempty"`
	PIDs  []int  `json:"pids,omitempty"`
	// Asked are the device resources in its pod spec: name and count.
	Asked []Fact `json:"asked,omitempty"`
	// Claims are the ResourceClaims that it uses: NAMESPACE/NAME, and which requests.
	Claims []Fact `json:"claims,omitempty"`
	// Devices are the devices that it holds according to any source.
	Devices []Device `json:"devices"`
	// Nodes are device nodes that belong to no device above: control nodes, or nodes that it should not have.
	Nodes []NodeFact `json:"nodes,omitempty"`
	// CDINames, Env, Mounts and Annotations are those of the device plugin's response and of the container.
	CDINames    []Fact `json:"cdiNames,omitempty"`
	Env         []Fact `json:"env,omitempty"`
	Mounts      []Fact `json:"mounts,omitempty"`
	Annotations []Fact `json:"annotations,omitempty"`
}

// Device is a GPU or a MIG device with all that is known of it.
//
// +kubebuilder:object:generate=true
type Device struct {
	// UUID is the key by which all other sources are matched.
	UUID gpu.UUID `json:"uuid"`
	// Parent is the GPU of a MIG device; in JSON it is one of the facts.
	Parent gpu.UUID `json:"-"`
	// IDs are the kubelet's device IDs, if they differ from the UUID, as for replicas.
	IDs []string `json:"ids,omitempty"`
	// Resource is the resource under which it was requested.
	Resource string `json:"resource,omitempty"`
	// Claims are the ResourceClaims by which the container has it: NAMESPACE/NAME, and which requests.
	Claims []Fact `json:"claims,omitempty"`
	// AdminAccess is true when the container has it by a claim with admin access, which does not hold it.
	AdminAccess bool `json:"adminAccess,omitempty"`
	// Sources say that the container holds it or, outside a container, that it exists.
	Sources Sources `json:"sources"`
	// Facts are the device's own: index, product, pciBusID, numaNode and so on.
	Facts []Fact `json:"facts,omitempty"`
	// CDINames are the names of the device in a CDI spec.
	CDINames []Fact     `json:"cdiNames,omitempty"`
	Nodes    []NodeFact `json:"nodes,omitempty"`
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
//
// +kubebuilder:object:generate=true
type NodeFact struct {
	Node `json:",inline"`
	// Sources are those according to which the container has it.
	Sources Sources `json:"sources"`
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
//
// +kubebuilder:object:generate=true
type Disagreement struct {
	// Code is a stable name, such as DevicesDiffer.
	Code Code `json:"code"`
	// Message says in a sentence what the disagreement concerns and what it is, without the statements.
	Message   string   `json:"message"`
	Pod       Ref      `json:"pod,omitzero"`
	Container string   `json:"container,omitempty"`
	Device    gpu.UUID `json:"device,omitempty"`
	// Statements are the contradicting statements, at least two, in the order of the sources.
	Statements []Fact `json:"statements"`
}
