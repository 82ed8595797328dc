package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GPUStack says which parts of Berth run in the cluster, and with which settings. There is one, with the name default.
// The operator keeps its spec equal to the ConfigMap of the Helm release and undoes edits by others: change the
// values of the release instead.
//
// +kubebuilder:object:root=true
// +kubebuilder:metadata:annotations="berth.dev/schema-version=1"
// +kubebuilder:resource:path=gpustacks,scope=Cluster,categories=berth
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.spec.version`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`,description="Nodes with GPUs."
// +kubebuilder:printcolumn:name="Validated",type=integer,JSONPath=`.status.validated`,description="Nodes that accept pods with GPUs."
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'default'",message="the only GPUStack has the name default"
type GPUStack struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	Spec              GPUStackSpec `json:"spec"`
	// +optional
	Status GPUStackStatus `json:"status,omitzero"`
}

// GPUStackList is a list of GPUStack.
//
// +kubebuilder:object:root=true
type GPUStackList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []GPUStack `json:"items"`
}

// GPUStackName is the name of the only GPUStack.
const GPUStackName = "default"

// The ConfigMap of the release that has the spec, and its key.
const (
	GPUStackConfigMap = "berth-stack"
	GPUStackKey       = "stack.yaml"
)

// GPUStackSpec is what runs.
type GPUStackSpec struct {
	// Version is that of the release.
	// +kubebuilder:validation:MaxLength=128
	Version string `json:"version"`
	// Namespace is where the components run.
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Components are the programs, by name.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Components []StackComponent `json:"components"`
	// PullSecrets are the names of the Secrets with which the images are pulled.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	PullSecrets []string `json:"pullSecrets,omitempty"`
	// PullPolicy is that of the images.
	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	PullPolicy string `json:"pullPolicy,omitempty"`
	// Host is where the components act on each node.
	// +optional
	Host StackHost `json:"host,omitzero"`
	// Tolerations are those of the agent, which the validation pods have too.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Tolerations []StackToleration `json:"tolerations,omitempty"`
	// Gate has the settings of the validation gate.
	// +optional
	Gate Gate `json:"gate,omitzero"`
}

// StackComponent is a program of Berth in the cluster.
type StackComponent struct {
	// Name is agent, mps or operator.
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Kind is DaemonSet or Deployment.
	// +kubebuilder:validation:Enum=DaemonSet;Deployment
	Kind string `json:"kind"`
	// Object is the name of the DaemonSet or Deployment.
	// +kubebuilder:validation:MaxLength=253
	Object string `json:"object"`
	// Image is the reference of its image.
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image"`
}

// StackHost has directories of the nodes, and names on them.
type StackHost struct {
	// +optional
	KubeletDir string `json:"kubeletDir,omitempty"`
	// +optional
	CDIDir string `json:"cdiDir,omitempty"`
	// +optional
	HookDir string `json:"hookDir,omitempty"`
	// DRADriverName is the name of the DRA driver.
	// +optional
	DRADriverName string `json:"draDriverName,omitempty"`
}

// StackToleration is a toleration of a pod.
type StackToleration struct {
	// +optional
	Key string `json:"key,omitempty"`
	// +optional
	Operator string `json:"operator,omitempty"`
	// +optional
	Value string `json:"value,omitempty"`
	// +optional
	Effect string `json:"effect,omitempty"`
	// +optional
	TolerationSeconds *int64 `json:"tolerationSeconds,omitempty"`
}

// The reasons of the condition Ready of a GPUStack and, but for the first, of its pools, the first that applies of this order.
const (
	// StackObjectsNotKept: the operator could not bring an object to what it wants in several attempts; it tries again.
	StackObjectsNotKept    = "ObjectsNotKept"
	StackDriverMissing     = "DriverMissing"
	StackRuntimeCDIOff     = "RuntimeCDIOff"
	StackValidationFailed  = "ValidationFailed"
	StackNodesNotValidated = "NodesNotValidated"
	StackReconciled        = "Reconciled"
)

// GPUStackStatus is the state of the nodes.
type GPUStackStatus struct {
	// ObservedGeneration is the generation of the spec that the status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Nodes is the number of nodes with GPUs, and Validated how many of them accept pods with GPUs.
	// +optional
	Nodes int `json:"nodes"`
	// +optional
	Validated int `json:"validated"`
	// Pools are the nodes by the product of their GPUs and their driver.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Pools []StackPool `json:"pools,omitempty"`
	// Conditions are Ready: True with the reason Reconciled, else False with the reason and what to do.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// StackPool is the nodes that have the same GPUs and the same driver.
type StackPool struct {
	// Model is the product of the GPUs, as in the GPUNode; empty where no driver answers.
	// +optional
	Model string `json:"model,omitempty"`
	// +optional
	Driver    string `json:"driver,omitempty"`
	Nodes     int    `json:"nodes"`
	Validated int    `json:"validated"`
	// Reason is one of those of the condition Ready.
	Reason string `json:"reason"`
	// Message names the first node that is not validated, and what it waits for.
	// +optional
	Message string `json:"message,omitempty"`
}
