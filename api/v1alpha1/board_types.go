package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// KindBoard is the kind of Board.
const KindBoard = "Board"

// Board is what the page of berth web shows: where the GPUs are, which pods wait, and what is wrong.
type Board struct {
	metav1.TypeMeta `json:",inline"`
	// Time is when the API server was read.
	Time metav1.Time `json:"time"`
	// Filter is which part of the cluster is shown.
	Filter BoardFilter `json:"filter,omitzero"`
	// Totals counts the GPUs of all nodes that the filter selects.
	Totals GPUSummary `json:"totals"`
	// Nodes are those that are shown one by one, by name.
	Nodes []BoardNode `json:"nodes"`
	// Groups are the nodes that are counted instead, where there are too many for one page, by model.
	Groups []BoardGroup `json:"groups,omitempty"`
	// Waiting are the pods with GPUs and the gangs that wait for a node and that the filter selects, the oldest first; MoreWaiting is how
	// many more there are.
	Waiting     []BoardWaiting `json:"waiting"`
	MoreWaiting int            `json:"moreWaiting,omitempty"`
	// WaitingTime is when the reasons were evaluated; absent while they are for the first time.
	WaitingTime *metav1.Time `json:"waitingTime,omitempty"`
	// Problems are those of GPUs and nodes, the most severe first.
	Problems []BoardProblem `json:"problems"`
	// Namespaces says what the pods of each hold, by name.
	Namespaces []BoardNamespace `json:"namespaces"`
	// Notes say what could not be read, and what is left out.
	Notes []string `json:"notes,omitempty"`
}

// BoardFilter selects a part of the cluster. Empty fields select everything.
type BoardFilter struct {
	Node      string `json:"node,omitempty"`
	Model     string `json:"model,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	// All shows each node, also where there are many.
	All bool `json:"all,omitempty"`
}

// BoardNode is one node.
type BoardNode struct {
	Name   string     `json:"name"`
	Driver string     `json:"driver,omitempty"`
	Counts GPUSummary `json:"counts"`
	// State is that of the gate, and WaitsFor what keeps the node from accepting pods with GPUs.
	State    string `json:"state,omitempty"`
	WaitsFor string `json:"waitsFor,omitempty"`
	// Away says why the node's facts may be old: its agent or the node itself does not respond.
	Away string `json:"away,omitempty"`
	// Cordoned is true for a node that accepts no new pods.
	Cordoned bool `json:"cordoned,omitempty"`
	// Written is when the agent wrote the node's facts the last time, which it does when one of them changes.
	Written *metav1.Time `json:"written,omitempty"`
	// Measured is when the memory and the activity were measured; absent where they are not read.
	Measured *metav1.Time `json:"measured,omitempty"`
	// GPUs are in an order in which linked ones are next to one another, by NUMA node.
	GPUs []BoardGPU `json:"gpus"`
}

// BoardGPU is one GPU.
type BoardGPU struct {
	UUID    string `json:"uuid"`
	Vendor  string `json:"vendor,omitempty"`
	Index   int    `json:"index"`
	Product string `json:"product"`
	// NUMANode is -1 where it is not known.
	NUMANode int `json:"numaNode"`
	// Linked is true where NVLinks connect the GPU with the one before, Border where the one before is on another NUMA node.
	Linked bool         `json:"linked,omitempty"`
	Border bool         `json:"border,omitempty"`
	Health DeviceHealth `json:"health"`
	// Slices is the number of memory slices of a GPU with MIG devices, in which their start and size are.
	Slices      int `json:"slices,omitempty"`
	BoardDevice `json:",inline"`
	// Parts are the MIG devices by their start.
	Parts []BoardPart `json:"parts,omitempty"`
}

// BoardPart is one MIG device.
type BoardPart struct {
	UUID        string `json:"uuid"`
	Profile     string `json:"profile"`
	Start       int    `json:"start"`
	Size        int    `json:"size"`
	State       string `json:"state"`
	BoardDevice `json:",inline"`
}

// BoardDevice is what a GPU and a MIG device have in common.
type BoardDevice struct {
	// Resource is the name by which pods request it; absent for a device that is not advertised.
	Resource string `json:"resource,omitempty"`
	// Replicas is how many containers may share it; 0 for a device that is not shared.
	Replicas int           `json:"replicas,omitempty"`
	Holders  []BoardHolder `json:"holders,omitempty"`
	// Draining says why it is not allocated to further pods.
	Draining string `json:"draining,omitempty"`
	// MemoryBytes is its memory, MemoryUsedBytes the part that is used; absent where they are not known.
	MemoryBytes     int64  `json:"memoryBytes,omitempty"`
	MemoryUsedBytes *int64 `json:"memoryUsedBytes,omitempty"`
	// Idle is true for a device that is held, and that computed nothing when it was measured.
	Idle bool `json:"idle,omitempty"`
}

// BoardHolder is who holds a device.
type BoardHolder struct {
	// Kind is that of Holder.
	Kind string `json:"kind"`
	// Namespace and Name are those of the pod or the ResourceClaim; absent where the user may not list the pods of the namespace.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Hidden is true where they are absent for that reason.
	Hidden bool `json:"hidden,omitempty"`
	// Share is the number of the replica, from 1; 0 for a device that is not shared.
	Share int `json:"share,omitempty"`
	// Since is when the pod was bound to the node.
	Since *metav1.Time `json:"since,omitempty"`
}

// BoardGroup counts nodes.
type BoardGroup struct {
	Model  string     `json:"model"`
	Nodes  int        `json:"nodes"`
	Away   int        `json:"away,omitempty"`
	Counts GPUSummary `json:"counts"`
	// Free is how many nodes have how many free GPUs, the largest number of GPUs first.
	Free []BoardFree `json:"free,omitempty"`
}

// BoardFree counts the nodes with a number of free GPUs.
type BoardFree struct {
	GPUs  int `json:"gpus"`
	Nodes int `json:"nodes"`
}

// BoardWaiting is a pod, or a gang, that waits for a node.
type BoardWaiting struct {
	Namespace string `json:"namespace"`
	// Name is that of the pod, or of the gang.
	Name string `json:"name"`
	// Pod is a pod to ask about: the pod itself, or a member of the gang.
	Pod   string      `json:"pod"`
	Gang  bool        `json:"gang,omitempty"`
	Pods  int         `json:"pods"`
	Since metav1.Time `json:"since"`
	// Sentence is the reason, Change the smallest change with which it would run; both are absent while they are evaluated.
	Sentence string `json:"sentence,omitempty"`
	Change   string `json:"change,omitempty"`
}

// BoardProblem is something that is wrong.
type BoardProblem struct {
	Code     string `json:"code"`
	Severity string `json:"severity"`
	// Node is absent for a problem of many nodes.
	Node string `json:"node,omitempty"`
	// GPU is the UUID of the GPU; absent for a problem of the node.
	GPU     string       `json:"gpu,omitempty"`
	Message string       `json:"message"`
	Fix     string       `json:"fix,omitempty"`
	Since   *metav1.Time `json:"since,omitempty"`
}

// BoardNamespace says what the pods of a namespace hold.
type BoardNamespace struct {
	// Name is absent for the namespaces together whose pods the user may not list.
	Name string `json:"name,omitempty"`
	// GPUs are whole GPUs, Parts MIG devices, Shares replicas of either.
	GPUs   int `json:"gpus"`
	Parts  int `json:"parts,omitempty"`
	Shares int `json:"shares,omitempty"`
	// Idle counts those of the three that computed nothing; absent where one of them was not measured.
	Idle *int `json:"idle,omitempty"`
	Pods int  `json:"pods"`
}
