// Package gangview says which gang a pod belongs to and what the gang wants, from the objects of a cluster: pods and, for all but one
// of the sources, PodGroups in; plain values out. The scheduler's plugin for gangs and `berth why` share it, so that they agree.
//
// It guarantees
//
//   - that equal objects give equal values, whatever their order in a list;
//   - that each pod is in one gang at most, and that all pods of a gang are in one namespace;
//   - that bad content of an object is one sentence in Gang.Problem, of bounded length and printable ASCII, and never an error or a panic:
//     everything in a pod or a PodGroup is written by a tenant;
//   - that nothing which decides about a gang is ignored without a word: what Berth does not support is a Problem.
//
// It does no I/O, reads no clock and starts no goroutine. It must not import anything of Berth, and of Kubernetes only its types and what
// k8s.io/apimachinery validates them with.
package gangview
