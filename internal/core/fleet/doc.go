// Package fleet decides on which node, and on which of its GPUs, a pod goes. The scheduler's plugin, the trace replay and
// the commands share it, so that all of them give the same answers.
//
// A Fleet has the nodes with what is free on them. Fit says whether a pod's Shape fits on a node and, if not, what it lacks.
// A Policy scores the nodes on which it fits; a Decider chooses the best of them. Pack is the policy of Berth. It prefers a node,
// in this order,
//
//  1. where the pod gets healthy GPUs;
//  2. where it is not below one PCIe switch with others that need much bandwidth to the host, if it does;
//  3. where its GPUs have the better links;
//  4. where the loss grows less, in coarse steps: the fragmentation of the node for the workload mix, and the GPUs that its CPU
//     and memory cannot serve. docs/scheduling.md has the formulas;
//  5. where fewer sets of linked GPUs break;
//  6. that comes first in an order that depends on nothing but the node's name and a seed.
//
// The coarse steps make many nodes equal, and the fixed order then takes the same ones first, so that the others stay empty. An exact
// score, or ties that are broken at random, allocate less.
//
// A pod requests shares of GPUs, as in traces, or devices of a resource, as in a cluster. Which devices it would get is predicted by
// Choose, which is what the node's device plugin does. A pod of several requests is a list of shapes, of which the first has its CPU
// and memory.
//
// A Preemption says which pods of a node to end so that one of a higher priority fits: Plans are the best sets of them, Least is one that
// ends least, Without the node when some have ended. docs/scheduling.md has the order. Override shows a Fleet such a node until a Rollback.
//
// It guarantees:
//
//   - the same nodes, operations and seed give the same decisions, on any machine and for any order of the node list. All
//     scores are computed with integers;
//   - a Decider asks its policy once for each state of a node and shape of a pod. A rollback makes what was known before its
//     checkpoint valid again;
//   - accounts are exact: an operation that does not fit, or that returns more than there is, is refused and changes nothing;
//   - Rollback restores exactly what was there at the checkpoint, generations included.
//
// Units: CPU in thousandths of a core, memory in MiB, shares of a GPU in thousandths; 1000 is a whole GPU.
//
// Nothing here is safe for concurrent use. The package does no I/O, reads no clock, starts no goroutine, and must not import
// anything but the standard library, internal/core/placement and what is below it.
package fleet
