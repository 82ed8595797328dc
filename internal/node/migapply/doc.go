// Package migapply carries out MIG plans on this node: given the wanted MIG devices of each GPU, it waits for the
// holders that block a change, changes the GPUs, and reports the state of each.
//
// It guarantees that
//   - nothing that is held is destroyed: whatever is removed is first taken from the ledger as maintenance, and a GPU
//     for
//     which that fails is left unchanged;
//   - a GPU instance that looks empty is removed only while no holder has a MIG device of its GPU that the scan does
//     not
//     list, and never with a compute instance;
//   - a GPU that has to be reset is not changed while any program has it open: after 30 seconds the change fails with
//     the
//     name of the program, the GPU stays in use unchanged, and the change is retried;
//   - of a GPU that waits, the free devices that will be removed are blocked, so that it drains;
//   - GPUs without a wanted change are never changed, nor are instances that are kept;
//   - one agent at a time changes the node, also while an upgrade runs two;
//   - after an agent was killed at any moment, the next one completes what is wanted by then and releases everything
//     else;
//   - a failed GPU ends its maintenance, so that its remaining devices can be allocated, and delays no other GPU;
//   - a hardware call that does not return delays the other GPUs for 250 ms, and then only its own, which stays blocked
//     until the call returns; Reconcile continues its change then. A reset, and the creation of device nodes, which
//     concern the whole driver, delay the others until they return, for 5 minutes at most.
//
// It must not import Kubernetes, a vendor adapter or a front end: hardware, inventory and ledger are passed in.
//
// # How a change survives the end of the agent
//
// Reconcile is level-triggered: each call plans from the present to the wanted state, so no completed step has to be
// recorded. What cannot be seen on the hardware is recorded in the journal before the first change: which GPUs are
// being changed, to what, and who wanted it. A GPU of the journal for which something else is wanted by then is changed
// to that, which is how a change is undone; a change that is no longer wanted is completed. The journal is removed when
// no change is in progress. Its directory must survive a reboot; the journal of another Node, by the Node's UID, is
// ignored.
//
// Beside the journal is its lock file. An agent holds the lock while it changes something, and the kernel releases it
// when the agent ends. The text of the file is the generation, which grows with each change and each takeover of
// another agent's change, for the life of the file. The lock is also held while a call of a change has not returned, for
// 5 minutes at most.
//
// # What is blocked
//
// All holdings have the holder gpu.HolderMaintenance with HolderID. It holds the whole GPU when the mode changes and
// when no instance is kept, and otherwise the instances that are removed; kept instances stay in use, and new ones are
// advertised when the inventory has seen them. While a GPU waits, it holds the free replicas and instances among those
// that will be removed. The ledger is enough to block instances; for a change of the mode the whole GPU has to be
// withheld, which Pending reports.
package migapply
