// Package pool computes what a node publishes for Dynamic Resource Allocation: from the inventory and the settings it derives the
// ResourceSlices of the node's pool. docs/dra.md describes what is in them.
//
// It guarantees that
//
//   - the same input gives the same slices, in the same order;
//   - the name of a device follows from the UUID of its GPU and, for a MIG device, its profile and placement alone, so that it
//     stays the same over restarts, driver upgrades and the hot plug of other GPUs;
//   - a set of devices of one GPU is within the counters exactly when the GPU can have all of them at the same time;
//   - each slice has at most 64 devices, so that no taint can make one invalid, and Validate finds each limit of the API that is
//     exceeded before anything is sent;
//   - a change of one GPU changes one slice wherever possible (see below).
//
// # Order
//
// The scheduler's allocator takes the first devices that fit: slices by name, devices in the order of the list. It does not look at
// links, nor at a taint without effect. The order therefore is:
//
//  1. GPUs with a degraded device last, so that one is taken only when no healthy one fits. Of the MIG devices that such a GPU has,
//     those that are degraded are last. No other state of health changes the order: devices with it are not allocated.
//  2. GPUs without NVLinks before NVLink islands, islands without degraded GPUs before those with one, islands without dynamic GPUs
//     before those with one. A claim for a single GPU or for a MIG device so leaves whole islands to the claims that need them. A
//     claim for linked GPUs tries an island to its end, degraded GPUs too, before the next one, so an island with one comes later.
//     Islands are in the order of their first PCI bus ID, and the GPUs of one, apart from degraded ones, are never interleaved with
//     others.
//  3. Within an island, GPUs that are never partitioned before dynamic ones; then by PCI bus ID, which keeps neighbors on one switch
//     and one NUMA node together.
//  4. Of one dynamic GPU the whole GPU, then the MIG devices, the largest profile first. Whole GPUs and MIG devices are taken from
//     the same end of the list: a partitioned GPU and the single ones beside it are then in the same island.
//  5. Of one profile the placement that leaves the most capacity beside those before it (mig.Placements).
//
// First fit alone does not give linked GPUs. A claim for several GPUs needs a matchAttribute constraint on the island.
//
// # Slices
//
// All devices of a GPU are in one slice, and counter sets, which no taint changes, in slices of their own behind the others. A change
// of more than one slice, or of their number, takes a new generation of the pool, and the scheduler ignores the pool until all slices
// have it. Build therefore keeps the GPUs in the slices in which they are published where that avoids a new generation: a GPU that
// leaves empties its place, and one that returns takes it again. A GPU that becomes degraded, or healthy again, moves, which takes a new
// generation when it moves to another slice. Compare returns what an update changes.
//
// The package is a pure computation: it does no I/O, reads no clock, and must not import anything that talks to the API server.
package pool
