// Package gangplanner plans where the pods of a gang go: it asks the model of the scheduler with what Kubernetes' own rules leave of each
// node. The plugins for gangs share it: gangs, for those of labels and PodGroups of other projects, and podgroups, for Kubernetes' own.
//
// It guarantees
//
//   - that a plan keeps node selectors, required node affinity, taints, anti-affinity on a node, the resources of nodes, and what is held
//     for others; what further rules refuse is known only by the filters of the scheduler;
//   - that a gang is refused only where these rules leave no place for it; one whose members need devices of drivers only where, besides,
//     its members do not get them from Kubernetes' own plugin one by one, in the orders that are tried;
//   - that a plan of an earlier state which Renew returns is one of the present state.
//
// It keeps nothing of its own, does no I/O, and is for the scheduling cycle, or for one goroutine beside it with a copy of the model. It
// must not import anything of Berth but internal/cluster/fleetview, gangplan, the model, claims and budgets of the scheduler,
// and internal/core, and of Kubernetes' scheduler only the public framework.
package gangplanner
