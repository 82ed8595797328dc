// Package gpunode makes the GPUNode object of a node, gpunodes.berth.dev, from the
// inventory and the holdings, and keeps the API's copy of it up to date.
//
// It guarantees that Build gives the same object for the same facts, whatever their
// order; that a Publisher writes only what changed, at most once per second, and
// never makes its caller wait; and that nothing volatile is in the object. It must
// not import other rooms than internal/core/gpu and internal/core/trace (for the join of pod
// names), and of Kubernetes only apimachinery and client-go.
//
// # Access
//
// The agent needs, on the cluster: get, create and patch on gpunodes.berth.dev, and delete for
// "berth-agent uninstall"; get on nodes (for the owner reference); get on
// customresourcedefinitions; and, only if it is to install the definition itself, which
// deploy/agent.yaml does not let it, create and update on those. A GPUNode names the pods of all tenants that hold its
// GPUs: give get, list and watch on gpunodes to nobody who may not know them.
package gpunode
