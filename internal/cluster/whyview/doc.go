// Package whyview turns the objects of a cluster into the values from which internal/core/why says why a pod or a gang waits. `berth why`
// and `berth trace` share it.
//
// It guarantees that equal objects give equal values, whatever their order; that nothing that a scheduler says about a pod decides, so that
// the answer is the same for any scheduler and when the pod's conditions are empty, but for when the members of a gang got their nodes; and
// that what is not evaluated is named.
//
// It does no I/O and reads no clock. It must not import anything of Berth but api, internal/core, internal/cluster/fleetview and
// gangplan, and of Kubernetes its types and k8s.io/component-helpers.
package whyview
