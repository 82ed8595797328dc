// Package whatif answers what a cluster would allocate if it was another: with more nodes or fewer, with another MIG layout, more pods, or
// another policy. It places the pods of the cluster again, by the code that the scheduler decides with.
//
// A question has two halves. The state as it is comes from the objects of the cluster: which GPUs are held, and why the others are idle.
// The state as it would be comes from the same objects after the changes, without the pods that can go elsewhere; these pods, those that
// run and those that wait, are then placed one by one in the order of their creation. Pods of DaemonSets, static pods and pods with
// ResourceClaims stay where they are.
//
// It guarantees that
//
//   - equal objects and options give equal reports, whatever the order of the lists;
//   - what is placed never holds more than the nodes have;
//   - a pod is placed only where its node selector, its required node affinity and the taints allow it. Affinity between pods, spread
//     constraints, volumes and host ports are not considered; a note counts the pods that have them;
//   - content of a GPUNode that cannot be used, or is of another version, is one note: the counts of the Node decide then;
//   - input is bounded, and a report has no names of pods.
//
// The package does no I/O by itself and reads no clock. It must not import anything of Berth but api, internal/core,
// internal/cluster/fleetview and internal/cluster/replay, and nothing that talks to an API server.
package whatif
