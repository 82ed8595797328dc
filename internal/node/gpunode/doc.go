// Package gpunode builds the GPUNode object of a node, gpunodes.berth.dev, from the inventory and the holdings, and
// reads and writes it in the API.
//
// It guarantees that Build returns the same object for the same inputs, whatever their order, and that nothing volatile
// is in the object. A nodeapi.Publisher decides when to write. It must not import other packages of internal/node than
// ledger and nodeapi, and of Kubernetes only apimachinery and client-go.
//
// # Access
//
// The agent needs, on the cluster: get, create and patch on gpunodes.berth.dev (whoever uninstalls deletes the object);
// get on nodes (for the owner reference); get and watch on customresourcedefinitions. A GPUNode names the pods of all tenants that
// hold its GPUs: grant get, list and watch on gpunodes only to users who may see them.
package gpunode
