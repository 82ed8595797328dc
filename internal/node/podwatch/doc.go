// Package podwatch has the pods of this node according to the API server: one watch, restricted to the node by
// spec.nodeName.
//
// It guarantees that a pod is reported as ended only when the API server shows it: its phase is Succeeded or Failed, it
// was deleted, or another pod has its name. A UID that was never seen is unknown; it is reported as ended only when a
// consistent list, begun after the call, does not have it. All methods but Resolve read memory only. The mutex is not
// held during a call.
//
// Static pods are the exception. The kubelet creates them from files, with its own UID; the API server has a mirror,
// which any user who may create pods can forge and delete. So a mirror provides the static pod's name and containers,
// and never ends it; if two mirrors name one static pod, both are ignored.
//
// It is woken by the watch, writes nothing, and signals each change. It must not import the ledger, the kubelet's
// readers or a front end.
package podwatch
