package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/core/trace"
)

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
	Read    trace.Sources  `json:"read"`
	NotRead []TraceNotRead `json:"notRead,omitempty"`
}

// The parts of a Trace are those that internal/core/trace joins, where their fields are described.
type (
	// TraceSource is where something was read.
	TraceSource = trace.Source
	// TraceNotRead is a source that could not be read, and why.
	TraceNotRead = trace.Unread
	// TraceFact is a value with its sources.
	TraceFact = trace.Fact
	// TraceDisagreement is a fact on which two sources differ.
	TraceDisagreement = trace.Disagreement
	// TracePod is one pod.
	TracePod = trace.Pod
	// TraceContainer is one container of a pod with its requests and its devices.
	TraceContainer = trace.Container
	// TraceDevice is a GPU or a MIG device that a container has.
	TraceDevice = trace.Device
	// TraceClaim is a ResourceClaim.
	TraceClaim = trace.Claim
	// TraceClaimDevice is a device of a ResourceClaim.
	TraceClaimDevice = trace.ClaimedDevice
	// TraceNode is a device node.
	TraceNode = trace.NodeFact
)

// TraceProcess is a process of the node.
type TraceProcess struct {
	PID         int           `json:"pid"`
	ContainerID string        `json:"containerID,omitempty"`
	PodUID      string        `json:"podUID,omitempty"`
	Sources     trace.Sources `json:"sources"`
}
