// Package gangplan says which gang a pod belongs to and what the gang wants, from the objects of a cluster (Build, OfKubernetes), and turns
// the gang into what internal/core/fleet/gang plans (Require): its members by classes, its levels of topology, and how many
// members the rules of Kubernetes let run on a node (Rules). The scheduler's plugins for gangs and `berth why` share it, so that they
// agree.
//
// It guarantees
//
//   - that equal objects give equal values, whatever their order in a list, and equal pods, nodes and levels the same requirements;
//   - that each pod is in one gang at most, and that all pods of a gang are in one namespace;
//   - that bad content of an object is one sentence in Gang.Problem or Requirements.Problem, of bounded length and printable ASCII, and
//     never an error or a panic: everything in a pod or a PodGroup is written by a tenant;
//   - that nothing which decides about a gang is ignored without a word: what Berth does not support is a Problem.
//
// It does no I/O, reads no clock and starts no goroutine. It must not import anything of Berth but internal/core/fleet and
// internal/core/fleet/gang, of Kubernetes only its types, what k8s.io/apimachinery validates them with and k8s.io/component-helpers, and
// nothing of its scheduler.
package gangplan
