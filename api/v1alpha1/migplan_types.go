package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// KindMIGPlan is the kind of MIGPlan.
const KindMIGPlan = "MIGPlan"

// MIGPlan is what berth mig plan prints with -o json and -o yaml: the steps that partition a node's GPUs according to a
// layout.
type MIGPlan struct {
	metav1.TypeMeta `json:",inline"`
	// Node is empty for hardware that is no node's.
	Node   string `json:"node,omitempty"`
	Layout string `json:"layout"`
	// LayoutSource is where the layout is defined: a file, NAMESPACE/NAME/KEY of a
	// ConfigMap, or "hardware" for one that follows from the GPUs.
	LayoutSource string       `json:"layoutSource"`
	State        MIGPlanState `json:"state"`
	// GPUs are those that the layout names, in the order of their index.
	GPUs []MIGPlanGPU `json:"gpus"`
	// NotRead are definitions of layouts that could not be read, with the reason.
	NotRead []TraceNotRead `json:"notRead,omitempty"`
}

// MIGPlanState says whether a plan can be carried out.
type MIGPlanState string

// The states of a plan.
const (
	// MIGPlanNothing: every GPU matches the layout.
	MIGPlanNothing MIGPlanState = "NothingToDo"
	// MIGPlanReady: it can be carried out now.
	MIGPlanReady MIGPlanState = "Ready"
	// MIGPlanWaits: on some GPU it has to wait for holders.
	MIGPlanWaits MIGPlanState = "Waits"
	// MIGPlanRefused: some GPU can never match the layout.
	MIGPlanRefused MIGPlanState = "Refused"
)

// MIGPlanGPU has the steps for one GPU. It is carried out in the order destroy, mode, create, once there are no
// blockers.
type MIGPlanGPU struct {
	UUID  string `json:"uuid,omitempty"`
	Index int    `json:"index"`
	// MIGEnabled and Devices, numbers by profile, are the wanted partition.
	MIGEnabled bool           `json:"migEnabled"`
	Devices    map[string]int `json:"devices,omitempty"`
	// Refused is the reason why the GPU cannot have this partition, even when it is released.
	Refused string `json:"refused,omitempty"`
	// SetMode is present when MIG is enabled or disabled; Reset when that needs a GPU reset.
	SetMode *bool `json:"setMode,omitempty"`
	Reset   bool  `json:"reset,omitempty"`
	// Keep, Destroy and Create are in the order of Start.
	Keep    []MIGInstance `json:"keep,omitempty"`
	Destroy []MIGInstance `json:"destroy,omitempty"`
	Create  []MIGPlaced   `json:"create,omitempty"`
	// Blockers is the smallest set of holders that have to end first.
	Blockers []MIGBlocker `json:"blockers,omitempty"`
}

// MIGPlaced is an instance by its place, in memory slices.
type MIGPlaced struct {
	Profile string `json:"profile"`
	Start   int    `json:"start"`
	Size    int    `json:"size"`
}

// MIGInstance is an instance that exists.
type MIGInstance struct {
	MIGPlaced `json:",inline"`
	GI        int `json:"gi"`
	// UUIDs are its MIG devices; empty for an instance that is half made.
	UUIDs []string `json:"uuids,omitempty"`
	// Holders are pods as NAMESPACE/NAME, or what else holds it.
	Holders []string `json:"holders,omitempty"`
}

// MIGBlocker is a holder in the way of a plan.
type MIGBlocker struct {
	// Instance is the instance that it holds; absent for the whole GPU or a replica of it.
	Instance *MIGInstance `json:"instance,omitempty"`
	Holders  []string     `json:"holders"`
}

// KindMIGLayoutList is the kind of MIGLayoutList.
const KindMIGLayoutList = "MIGLayoutList"

// MIGLayoutList is what berth mig layouts prints with -o json and -o yaml.
type MIGLayoutList struct {
	metav1.TypeMeta `json:",inline"`
	// Node is empty for hardware that is no node's.
	Node string `json:"node,omitempty"`
	// Items are sorted by name.
	Items []MIGLayout `json:"items"`
	// NotRead are definitions of layouts that could not be read, with the reason.
	NotRead []TraceNotRead `json:"notRead,omitempty"`
}

// MIGLayout is a layout that can be applied.
type MIGLayout struct {
	Name string `json:"name"`
	// Source is where it is defined: a file, NAMESPACE/NAME/KEY of a ConfigMap, or "hardware" for one that follows from the GPUs.
	Source string `json:"source"`
}
