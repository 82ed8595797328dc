package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NodeOperation is something that is being done to a node. The operator keeps all that it knows of it here, so that
// another operator can go on. At most one operation of a node is active: the oldest; the others wait for it.
//
// +kubebuilder:object:root=true
// +kubebuilder:metadata:annotations="berth.dev/schema-version=1"
// +kubebuilder:resource:path=nodeoperations,scope=Cluster,shortName=nodeop,categories=berth
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.kind`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeOperation struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	Spec              NodeOperationSpec `json:"spec"`
	// +optional
	Status NodeOperationStatus `json:"status,omitzero"`
}

// NodeOperationList is a list of NodeOperation.
//
// +kubebuilder:object:root=true
type NodeOperationList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []NodeOperation `json:"items"`
}

// NodeOperationFinalizer is on each NodeOperation until what it has to restore is restored.
const NodeOperationFinalizer = "berth.dev/node-operation"

// NodeOperationKind is what is done to the node.
//
// +kubebuilder:validation:Enum=Validate
type NodeOperationKind string

// OperationValidate runs a pod that uses each device of the node.
const OperationValidate NodeOperationKind = "Validate"

// NodeOperationSpec says what is done to which node.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="the spec of a NodeOperation does not change"
type NodeOperationSpec struct {
	// Node is the name of the Node.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	Node string            `json:"node"`
	Kind NodeOperationKind `json:"kind"`
	// Owner is the part of Berth that acts, such as operator/validation.
	// +kubebuilder:validation:MaxLength=128
	Owner string `json:"owner"`
	// Key identifies what is validated; the operation is obsolete when the GPUNode has another one.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Key string `json:"key,omitempty"`
	// Restore is what has to be restored before the object may be deleted, in this order.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=512
	Restore []string `json:"restore,omitempty"`
}

// NodeOperationPhase is how far an operation is.
//
// +kubebuilder:validation:Enum=Waiting;Active;Succeeded;Failed
type NodeOperationPhase string

// The phases.
const (
	OperationWaiting   NodeOperationPhase = "Waiting"
	OperationActive    NodeOperationPhase = "Active"
	OperationSucceeded NodeOperationPhase = "Succeeded"
	OperationFailed    NodeOperationPhase = "Failed"
)

// NodeOperationStatus is what was done.
type NodeOperationStatus struct {
	// ObservedGeneration is the generation of the spec that the status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	Phase NodeOperationPhase `json:"phase,omitempty"`
	// Message says what the operation waits for, or how it ended.
	// +optional
	Message string `json:"message,omitempty"`
	// Attempt counts the attempts, from 1.
	// +optional
	Attempt int `json:"attempt,omitempty"`
	// NextAttempt is when a failed operation is attempted again.
	// +optional
	NextAttempt metav1.Time `json:"nextAttempt,omitzero"`
	// Steps are what was seen of the operation, in the order of the steps.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	Steps []NodeOperationStep `json:"steps,omitempty"`
}

// NodeOperationStep is one step that was seen.
type NodeOperationStep struct {
	// +kubebuilder:validation:MaxLength=64
	Name  string      `json:"name"`
	Since metav1.Time `json:"since,omitzero"`
	// Evidence is what shows that the step was done.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Evidence string `json:"evidence,omitempty"`
}
