// Package fleetview turns the objects of a cluster into the values that internal/core/fleet decides by: Nodes, GPUNodes and pods in,
// fleet.Node and fleet.Shape out. The scheduler's plugin, `berth why` and `berth replay --cluster` share it.
//
// It guarantees
//
//   - that equal objects give equal values, whatever their order in a list;
//   - that bad or unknown content of a GPUNode is one note and never an error that stops a decision: the node is then described by the
//     counts of its Node object;
//   - that a GPU which the GPUNode says is held is never free, unless by a pod that no longer exists: the kubelet deletes a pod's object
//     when its containers have ended, and what runs on is an orphan in the GPUNode;
//   - that nothing that a pod contains decides on another pod: requests are bounded, and annotations choose among known values.
//
// It does no I/O and reads no clock. It must not import anything of Berth but api, internal/core and, of Kubernetes, its types and
// k8s.io/component-helpers.
package fleetview
