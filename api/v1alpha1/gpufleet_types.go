package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The kinds of the summaries of many GPUs.
const (
	KindGPUFleet     = "GPUFleet"
	KindGPUGroupList = "GPUGroupList"
)

// GPUFleet is what berth gpus --summary prints with -o json and -o yaml.
type GPUFleet struct {
	metav1.TypeMeta `json:",inline"`
	Nodes           int `json:"nodes"`
	GPUCounts       `json:",inline"`
	// Models are the products, that with the most GPUs first.
	Models []GPUGroup `json:"models"`
	// Resources are the names that devices are advertised as, that with the most devices first.
	Resources []GPUGroup `json:"resources"`
	// Namespaces are those whose pods and claims hold GPUs or request some, that which holds most first.
	Namespaces []GPUGroup `json:"namespaces"`
	// Problems are those of the GPUs, of their MIG devices and of the nodes, that with the most GPUs first.
	Problems []GPUFleetProblem `json:"problems"`
	// NotRead are the sources that were not read, with the reason.
	NotRead []TraceNotRead `json:"notRead,omitempty"`
}

// GPUCounts counts physical GPUs. A GPU that is held can be unhealthy too, so the sum of held, free and unhealthy can
// exceed gpus.
type GPUCounts struct {
	GPUs int `json:"gpus"`
	// Held are the GPUs that are held as a whole or in part.
	Held int `json:"held"`
	// Free are the healthy GPUs that are not held.
	Free      int `json:"free"`
	Unhealthy int `json:"unhealthy"`
}

// GPUGroupList is what berth gpus --group-by prints with -o json and -o yaml.
type GPUGroupList struct {
	metav1.TypeMeta `json:",inline"`
	// By is node, model, namespace or resource.
	By    string     `json:"by"`
	Items []GPUGroup `json:"items"`
	// NotRead are the sources that were not read, with the reason.
	NotRead []TraceNotRead `json:"notRead,omitempty"`
}

// GPUGroup is the GPUs of a node, of a model or of a resource, or those that a namespace holds.
type GPUGroup struct {
	// Name is empty for what belongs to none: a GPU that is not advertised, or a holder without a namespace.
	Name      string `json:"name"`
	Nodes     int    `json:"nodes"`
	GPUCounts `json:",inline"`
	// Devices counts what a container can be given.
	Devices GPUDeviceCounts `json:"devices"`
}

// GPUDeviceCounts counts what a container can be given: whole GPUs, MIG devices and replicas.
type GPUDeviceCounts struct {
	Total int `json:"total"`
	Held  int `json:"held"`
	// Free are the devices that can be allocated now.
	Free int `json:"free"`
	// Requested is how many the pods request that have not ended, those that wait included. It is absent for nodes and models, and
	// where pods were not read. Requests of ResourceClaims are not counted.
	Requested *int64 `json:"requested,omitempty"`
}

// GPUFleetProblem is a cause with the GPUs and nodes that it concerns.
type GPUFleetProblem struct {
	// Code is that of the cause, or the state of a device that has no cause.
	Code string `json:"code"`
	// GPUs is 0 for a problem of the node itself.
	GPUs  int `json:"gpus"`
	Nodes int `json:"nodes"`
	// Node is the first of the nodes by name, and Message what its problem says.
	Node    string `json:"node"`
	Message string `json:"message,omitempty"`
}
