package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Trace is what berth trace prints with -o json and -o yaml: the path from a pod to its devices or back, each fact with
// its source.
type Trace struct {
	metav1.TypeMeta `json:",inline"`
	// Subject is the subject of the command: "pod default/demo", a GPU's UUID, "pid 4711".
	Subject string `json:"subject"`
	// Disagreements are the facts on which two sources differ; empty when there are none.
	Disagreements []TraceDisagreement `json:"disagreements"`
	// Pods are the pods that the subject leads to.
	Pods []TracePod `json:"pods"`
	// Claims are the ResourceClaims of these pods and devices.
	Claims []TraceClaim `json:"claims,omitempty"`
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
	// Field is the part of the source, where a source has a fact in more than one form.
	Field string `json:"field,omitempty"`
}

// TraceNotRead is a source that could not be read, and why.
type TraceNotRead struct {
	TraceSource `json:",inline"`
	Why         string `json:"why"`
}

// TraceFact is a value with its sources.
type TraceFact struct {
	// Name is the name of the fact; empty where the field's name is sufficient.
	Name    string        `json:"name,omitempty"`
	Value   string        `json:"value"`
	Sources []TraceSource `json:"sources"`
}

// TraceDisagreement is a fact on which two sources differ.
type TraceDisagreement struct {
	// Code is a stable name, such as DevicesDiffer.
	Code string `json:"code"`
	// Message is a readable sentence.
	Message string `json:"message"`
	// Pod is NAMESPACE/NAME, or the UID where no source knows the name.
	Pod       string `json:"pod,omitempty"`
	Container string `json:"container,omitempty"`
	Device    string `json:"device,omitempty"`
	// Statements are the different values, each with its sources; at least two.
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
	Waiting []TraceFact `json:"waiting,omitempty"`
	// Why is the dominant reason why a pod waits for a node, as berth why gives it.
	Why        string           `json:"why,omitempty"`
	Containers []TraceContainer `json:"containers"`
}

// TraceContainer is one container of a pod with its requests and its devices.
type TraceContainer struct {
	Name string `json:"name"`
	// Role is init, sidecar, app or ephemeral; empty when no source has it.
	Role string `json:"role,omitempty"`
	// ID is the container's ID in the runtime, State its state.
	ID    string `json:"id,omitempty"`
	State string `json:"state,omitempty"`
	PIDs  []int  `json:"pids,omitempty"`
	// Asked are the device resources in its pod spec: name and count.
	Asked []TraceFact `json:"asked,omitempty"`
	// Claims are the ResourceClaims that it uses: NAMESPACE/NAME, and which requests.
	Claims []TraceFact `json:"claims,omitempty"`
	// Devices are the devices that it holds according to any source.
	Devices []TraceDevice `json:"devices"`
	// Nodes are device nodes that belong to no device above: control nodes, or
	// nodes that it should not have.
	Nodes []TraceNode `json:"nodes,omitempty"`
	// CDINames, Env, Mounts and Annotations are those of the device plugin's response and of the container.
	CDINames    []TraceFact `json:"cdiNames,omitempty"`
	Env         []TraceFact `json:"env,omitempty"`
	Mounts      []TraceFact `json:"mounts,omitempty"`
	Annotations []TraceFact `json:"annotations,omitempty"`
}

// TraceDevice is a GPU or a MIG device that a container has.
type TraceDevice struct {
	// UUID is the key by which all other sources are matched.
	UUID string `json:"uuid"`
	// IDs are the kubelet's device IDs; they differ from the UUID for replicas.
	IDs []string `json:"ids,omitempty"`
	// Resource is the resource under which it was requested.
	Resource string `json:"resource,omitempty"`
	// Claims are the ResourceClaims by which the container has it: NAMESPACE/NAME, and which requests.
	Claims []TraceFact `json:"claims,omitempty"`
	// AdminAccess is true when the container has it by a claim with admin access, which does not hold it.
	AdminAccess bool `json:"adminAccess,omitempty"`
	// Sources are those according to which the container holds it.
	Sources []TraceSource `json:"sources"`
	// Facts are the device's own: index, product, pciBusID, numaNode and so on.
	Facts []TraceFact `json:"facts,omitempty"`
	// CDINames are the names of the device in a CDI spec.
	CDINames []TraceFact `json:"cdiNames,omitempty"`
	Nodes    []TraceNode `json:"nodes,omitempty"`
}

// TraceClaim is a ResourceClaim.
type TraceClaim struct {
	Namespace string        `json:"namespace,omitempty"`
	Name      string        `json:"name,omitempty"`
	UID       string        `json:"uid,omitempty"`
	Sources   []TraceSource `json:"sources"`
	// Pods are those that use it: NAMESPACE/NAME, or the UID where no source knows the name.
	Pods []string `json:"pods,omitempty"`
	// Devices are those of Berth's driver that it has according to any source.
	Devices []TraceClaimDevice `json:"devices,omitempty"`
}

// TraceClaimDevice is a device of a ResourceClaim.
type TraceClaimDevice struct {
	UUID string `json:"uuid"`
	// Requests are those of the claim's requests that it is for.
	Requests []string `json:"requests,omitempty"`
	// AdminAccess is true for a device that the claim does not hold.
	AdminAccess bool          `json:"adminAccess,omitempty"`
	Sources     []TraceSource `json:"sources"`
}

// TraceNode is a device node.
type TraceNode struct {
	Path string `json:"path"`
	// Major and Minor are its numbers; both -1 when no source has them.
	Major int64 `json:"major"`
	Minor int64 `json:"minor"`
	// Sources are those according to which the container has it.
	Sources []TraceSource `json:"sources"`
}

// TraceProcess is a process of the node.
type TraceProcess struct {
	PID         int           `json:"pid"`
	ContainerID string        `json:"containerID,omitempty"`
	PodUID      string        `json:"podUID,omitempty"`
	Sources     []TraceSource `json:"sources"`
}
