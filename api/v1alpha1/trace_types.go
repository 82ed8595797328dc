package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Trace is what berth trace prints with -o json and -o yaml: the way from a pod to
// its silicon or back, each fact with where it was read.
type Trace struct {
	metav1.TypeMeta `json:",inline"`
	// Subject is what was asked for: "pod default/demo", a GPU's UUID, "pid 4711".
	Subject string `json:"subject"`
	// Disagreements are where two sources do not say the same; empty is good news.
	Disagreements []TraceDisagreement `json:"disagreements"`
	// Pods are the pods that the subject leads to.
	Pods []TracePod `json:"pods"`
	// Devices are the devices that the subject names, with or without a holder; only
	// for a trace that starts at a GPU.
	Devices []TraceDevice `json:"devices,omitempty"`
	// Process is where a trace of a pid starts.
	Process *TraceProcess `json:"process,omitempty"`
	// Read are the sources that were read, NotRead those that were not, with the reason.
	Read    []TraceSource  `json:"read"`
	NotRead []TraceNotRead `json:"notRead,omitempty"`
}

// TraceSource is where something was read.
type TraceSource struct {
	// Kind is the sort of place, such as "checkpoint" or "container".
	Kind string `json:"kind"`
	// Path is the file, socket, object or call.
	Path string `json:"path,omitempty"`
	// Field is the part of it, where one place says a thing in more than one way.
	Field string `json:"field,omitempty"`
}

// TraceNotRead is a source that could not be read, and why.
type TraceNotRead struct {
	TraceSource `json:",inline"`
	Why         string `json:"why"`
}

// TraceFact is a value with the places that say so.
type TraceFact struct {
	// Name is what the value is of; empty where the field's name says it.
	Name    string        `json:"name,omitempty"`
	Value   string        `json:"value"`
	Sources []TraceSource `json:"sources"`
}

// TraceDisagreement is one thing of which two sources say two things.
type TraceDisagreement struct {
	// Code is a stable name, such as DevicesDiffer.
	Code string `json:"code"`
	// Message is the sentence for people.
	Message string `json:"message"`
	// Pod is NAMESPACE/NAME, or the UID where no source knows the name.
	Pod       string `json:"pod,omitempty"`
	Container string `json:"container,omitempty"`
	Device    string `json:"device,omitempty"`
	// Statements are what the sources say, each with its sources; at least two.
	Statements []TraceFact `json:"statements"`
}

// TracePod is one pod.
type TracePod struct {
	Namespace string        `json:"namespace,omitempty"`
	Name      string        `json:"name,omitempty"`
	UID       string        `json:"uid,omitempty"`
	Phase     string        `json:"phase,omitempty"`
	Node      *TraceFact    `json:"node,omitempty"`
	Sources   []TraceSource `json:"sources"`
	// Waiting are the reasons why a pod that does not run waits: conditions, what containers
	// wait for, and the latest events.
	Waiting    []TraceFact      `json:"waiting,omitempty"`
	Containers []TraceContainer `json:"containers"`
}

// TraceContainer is one container of a pod with what it asked for and what it got.
type TraceContainer struct {
	Name string `json:"name"`
	// Role is init, sidecar, app or ephemeral; empty when no source says.
	Role string `json:"role,omitempty"`
	// ID is the runtime's name of the container, State what it does.
	ID    string `json:"id,omitempty"`
	State string `json:"state,omitempty"`
	PIDs  []int  `json:"pids,omitempty"`
	// Asked are the resources in its pod spec that are devices: name and count.
	Asked []TraceFact `json:"asked,omitempty"`
	// Devices are the devices that any source says it holds.
	Devices []TraceDevice `json:"devices"`
	// Nodes are device nodes that belong to no device above: control nodes, or
	// nodes that it should not have.
	Nodes []TraceNode `json:"nodes,omitempty"`
	// CDINames, Env, Mounts and Annotations are what the device plugin answered and
	// what the container has.
	CDINames    []TraceFact `json:"cdiNames,omitempty"`
	Env         []TraceFact `json:"env,omitempty"`
	Mounts      []TraceFact `json:"mounts,omitempty"`
	Annotations []TraceFact `json:"annotations,omitempty"`
}

// TraceDevice is a GPU or a MIG device in a container's hands.
type TraceDevice struct {
	// UUID is what every other source is matched by.
	UUID string `json:"uuid"`
	// IDs are the names that the kubelet gives it; they differ from the UUID for
	// replicas.
	IDs []string `json:"ids,omitempty"`
	// Resource is the name that it was asked for by.
	Resource string `json:"resource,omitempty"`
	// Sources are those that say that the container holds it.
	Sources []TraceSource `json:"sources"`
	// Facts are the device's own: index, product, pciBusID, numaNode and so on.
	Facts []TraceFact `json:"facts,omitempty"`
	// CDINames are the names of the device in a CDI spec.
	CDINames []TraceFact `json:"cdiNames,omitempty"`
	Nodes    []TraceNode `json:"nodes,omitempty"`
}

// TraceNode is a device node.
type TraceNode struct {
	Path string `json:"path"`
	// Major and Minor are its numbers; both -1 when no source says.
	Major int64 `json:"major"`
	Minor int64 `json:"minor"`
	// Sources are those that say that the container has it.
	Sources []TraceSource `json:"sources"`
}

// TraceProcess is a process of the node.
type TraceProcess struct {
	PID         int           `json:"pid"`
	ContainerID string        `json:"containerID,omitempty"`
	PodUID      string        `json:"podUID,omitempty"`
	Sources     []TraceSource `json:"sources"`
}
