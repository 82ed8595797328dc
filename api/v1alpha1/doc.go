// Package v1alpha1 has the kinds of the API group berth.dev: the GPUNode object that a node publishes, the agent's
// configuration file, and the objects that the berth command prints.
//
// It is the only exported Go API of the module. It guarantees that its JSON form matches the custom resource definition
// in api/crds, and it must only import k8s.io/apimachinery and internal/core/trace, whose results the parts of a Trace are.
//
// The version is v1alpha1: fields may still be renamed. Renamed so far, in what berth prints with -o json and -o yaml:
// disagreements[].claims of a Trace is disagreements[].statements, since a claim is a ResourceClaim, and GPUs of a
// MIGPlan is gpus.
//
// +kubebuilder:object:generate=true
// +groupName=berth.dev
package v1alpha1
