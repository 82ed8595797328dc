package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GPUQuota limits the GPUs of namespaces. The operator keeps a ResourceQuota, gpu-quota-NAME, in each namespace that it selects, with
// every name under which the API server counts the devices that a limit selects: from the start the names that devices have where no rule
// names them, and others when agents begin to advertise them. A name that was limited stays limited when no node has such devices.
//
// A ResourceQuota counts each name by itself. So a limit holds for each name, not for the sum: with whole GPUs as nvidia.com/gpu and
// through DRA, a limit of 4 allows 4 of each.
//
// +kubebuilder:object:root=true
// +kubebuilder:metadata:annotations="berth.dev/schema-version=1"
// +kubebuilder:resource:path=gpuquotas,scope=Cluster,shortName=gpuq,categories=berth
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Namespaces",type=integer,JSONPath=`.status.namespaces`,description="Namespaces that have the quota."
// +kubebuilder:printcolumn:name="Names",type=integer,JSONPath=`.status.limited`,description="Names that are limited."
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 50",message="the name has at most 50 characters"
type GPUQuota struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	Spec              GPUQuotaSpec `json:"spec"`
	// +optional
	Status GPUQuotaStatus `json:"status,omitzero"`
}

// GPUQuotaList is a list of GPUQuota.
//
// +kubebuilder:object:root=true
type GPUQuotaList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []GPUQuota `json:"items"`
}

// AnnotationQuotaNames is the annotation of a ResourceQuota of a GPUQuota with the names that stay limited since nodes have had devices
// under them: KEY, or KEY=KIND+KIND with the kinds of the devices, separated by commas.
const AnnotationQuotaNames = Group + "/gpu-quota-names"

// GPUQuotaSpec says which namespaces are limited, and to how much.
//
// +kubebuilder:validation:XValidation:rule="has(self.namespaces) != has(self.namespaceSelector)",message="give either namespaces or namespaceSelector"
type GPUQuotaSpec struct {
	// Namespaces are names of namespaces.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=63
	Namespaces []string `json:"namespaces,omitempty"`
	// NamespaceSelector selects namespaces by their labels; an empty one selects all.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// Limits are what each of the namespaces may request.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Limits []GPULimit `json:"limits"`
}

// GPULimit limits devices. Without model and sharing it limits all.
type GPULimit struct {
	// Model is a pattern of the product, such as "NVIDIA A100*".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Model string `json:"model,omitempty"`
	// Sharing is the kind of device: a whole GPU, a MIG device, or a replica by time-slicing or MPS.
	// +optional
	Sharing GPUSharingKind `json:"sharing,omitempty"`
	// Max is how many devices each name allows in a namespace.
	// +kubebuilder:validation:Minimum=0
	Max int64 `json:"max"`
}

// GPUSharingKind is a kind of device.
//
// +kubebuilder:validation:Enum=whole;mig;timeSlicing;mps
type GPUSharingKind string

// The kinds of devices.
const (
	KindWhole       GPUSharingKind = "whole"
	KindMIG         GPUSharingKind = "mig"
	KindTimeSlicing GPUSharingKind = "timeSlicing"
	KindMPS         GPUSharingKind = "mps"
)

// GPUQuotaStatus is what the operator made of a GPUQuota.
type GPUQuotaStatus struct {
	// ObservedGeneration is the generation of the spec that the status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Namespaces is how many namespaces have the ResourceQuota.
	// +optional
	Namespaces int `json:"namespaces,omitempty"`
	// Limited is how many names are limited; the ResourceQuota has them.
	// +optional
	Limited int `json:"limited,omitempty"`
	// Conditions are Ready: True with the reason Applied, else False with the reason and what to do.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
