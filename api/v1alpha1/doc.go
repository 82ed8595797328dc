// Package v1alpha1 holds the kinds of the API group berth.dev: the GPUNode object
// that a node publishes, the agent's configuration file, and the objects that the
// berth command prints.
//
// It is the only exported Go API of the module. It guarantees that its JSON form
// is what the custom resource definition in charts/berth/crds describes, and it
// must not import anything but k8s.io/apimachinery.
//
// The version is v1alpha1: fields may still be renamed. In a Trace (berth trace -o json), disagreements[].statements was
// disagreements[].claims until a claim came to mean a ResourceClaim only.
//
// +kubebuilder:object:generate=true
// +groupName=berth.dev
package v1alpha1
