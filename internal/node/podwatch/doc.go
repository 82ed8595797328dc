// Package podwatch knows the pods of this node as the API server sees them: one watch, restricted to the
// node by spec.nodeName.
//
// It guarantees that a pod is called ended only when the API server says so: its phase is Succeeded
// or Failed, it is gone, or another pod has its name. A UID that was never seen is unknown; it is called ended
// only when a consistent list, begun after the question, does not have it. Every
// answer but Resolve's comes from memory. It holds the mutex over no call.
//
// Static pods are the exception. The kubelet makes them from files, under a UID of its own; what the API server has
// is a mirror, which anyone who may create pods can imitate and delete. So a mirror gives the static pod's name and
// containers, and never ends it; and where two mirrors name one static pod, none is believed.
//
// It is woken by the watch, writes nothing, and signals each change. It must not import the ledger, the
// kubelet's readers or a front end.
package podwatch
