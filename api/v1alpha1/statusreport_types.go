package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// StatusReport is the output of berth status.
type StatusReport struct {
	metav1.TypeMeta `json:",inline"`
	// Stack is the spec's version and the condition Ready of the GPUStack; absent when there is none.
	Stack *StackReport `json:"stack,omitempty"`
	// Nodes are those with a GPUNode, by name.
	Nodes []NodeReport `json:"nodes"`
	// Operations are the NodeOperations that have not ended, by name.
	Operations []OperationReport `json:"operations,omitempty"`
	// Notes say what could not be read, and why, and why the operator does not work.
	Notes []string `json:"notes,omitempty"`
}

// StackReport is the state of the GPUStack.
type StackReport struct {
	Version string `json:"version"`
	// Ready is True, False or Unknown.
	Ready     string      `json:"ready"`
	Reason    string      `json:"reason,omitempty"`
	Message   string      `json:"message,omitempty"`
	Nodes     int         `json:"nodes"`
	Validated int         `json:"validated"`
	Pools     []StackPool `json:"pools,omitempty"`
}

// NodeReport is the state of one node.
type NodeReport struct {
	Node   string      `json:"node"`
	State  string      `json:"state"`
	Driver string      `json:"driver,omitempty"`
	Since  metav1.Time `json:"since,omitzero"`
	// Code and WaitsFor say why the node is not validated; absent for one that is.
	Code     string `json:"code,omitempty"`
	WaitsFor string `json:"waitsFor,omitempty"`
	By       string `json:"by,omitempty"`
	Tainted  bool   `json:"tainted"`
}

// OperationReport is a NodeOperation that has not ended.
type OperationReport struct {
	Name    string      `json:"name"`
	Node    string      `json:"node"`
	Kind    string      `json:"kind"`
	Phase   string      `json:"phase"`
	Message string      `json:"message,omitempty"`
	Since   metav1.Time `json:"since,omitzero"`
}
