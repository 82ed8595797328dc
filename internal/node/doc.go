// Package node groups everything that runs on a GPU node: the inventory, the ledger, the front ends to the kubelet,
// the projections (CDI specs, labels, metrics, GPUNode) and the agent that wires them.
//
// Packages below it may import api, internal/core, internal/hardware and one another; only the agent and its
// sub-packages know an adapter, and front ends never import one another. hack/rules/architecture_test.go is the rule.
package node
