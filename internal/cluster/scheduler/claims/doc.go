// Package claims scores nodes for pods with ResourceClaims. The scheduler's own plugin allocates the devices, in Filter, and says
// nothing of it: for claims of the simple form the devices are predicted by internal/core/fleet/firstfit, and the node is scored by
// them; for all other claims it is scored by how many GPUs are whole.
//
// It guarantees that a node is predicted again only when its slices, its held devices or the claims are other ones, and that a claim of
// which nothing can be predicted leaves the decision to the other plugins. It belongs to the scheduling cycle, which is one goroutine.
// It also says which pods with claims Kubernetes can never bind to a node. It must not import the allocator
// (k8s.io/dynamic-resource-allocation/structured).
package claims
