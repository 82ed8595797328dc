// Package gpunode makes the GPUNode object of a node, gpunodes.berth.dev, from the inventory and the holdings, and reads and
// writes the API's copy of it.
//
// It guarantees that Build gives the same object for the same facts, whatever their order, and that nothing volatile is in
// the object. A nodeapi.Publisher decides when to write. It must not import other packages of internal/node than ledger and
// nodeapi, and of Kubernetes only apimachinery and client-go.
//
// # Access
//
// The agent needs, on the cluster: get, create and patch on gpunodes.berth.dev, and delete for
// "berth-agent uninstall"; get on nodes (for the owner reference); get on
// customresourcedefinitions; and, only if it is to install the definition itself, which
// deploy/agent.yaml does not let it, create and update on those. A GPUNode names the pods of all tenants that hold its
// GPUs: give get, list and watch on gpunodes to nobody who may not know them.
package gpunode
