// Package preemption is the plugin of berth-scheduler that ends pods of a lower priority so that a pod with GPUs fits.
//
// It guarantees
//
//   - that for a pod without GPUs, and for pod groups, the in-tree plugin DefaultPreemption decides, with its own evaluator;
//   - that evictions, PodDisruptionBudgets, nominated nodes, asynchronous preparation, the gate of PreEnqueue, queueing hints and metrics
//     are those of DefaultPreemption also for pods with GPUs: only which pods of a node end, and the order between nodes, is chosen here;
//   - that each choice was checked by the filters of the framework on the node without the victims, and for ResourceClaims by the
//     allocator of the scheduler without the claims that end with them. Without such a choice the in-tree one is used;
//   - that equal clusters give equal choices, for up to 256 nodes on which pods could end.
//
// Which pods end is decided by internal/core/fleet. The package must not import any part of Berth but that and the values of
// internal/cluster/fleetview.
package preemption
