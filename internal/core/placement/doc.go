// Package placement chooses GPUs: which N of a node's available GPUs a container should get, and which replicas or MIG
// devices of shared GPUs.
//
// For whole GPUs, a Node is created once per inventory change and used for many requests. Among all sets of the
// requested size it chooses, in this order,
//
//  1. the best bottleneck: the smallest edge of the set's maximum spanning tree, which is the speed of a ring or tree of
//     collectives over the set. The value of an edge is its NVLink count, or its PCIe path where no NVLink connects the
//     pair;
//  2. the highest total: NVLinks over all pairs, then PCIe nearness over all pairs;
//  3. the fewest NUMA nodes;
//  4. the best remainder: as many disjoint fully linked sets of 8 as possible among the GPUs that stay available, then of
//     4, then of 2. Each size is counted independently, since the next requests are unknown: eight GPUs on one fabric
//     leave 1, 2 and 4;
//  5. the lowest positions.
//
// A set is fully linked when NVLinks connect all its pairs. Where a node has no such set of 8 (or 4, or 2), the sets of
// that size count whose worst pair is as good as that of any other: on a PCIe node the sets of four within a socket,
// and the pairs below a switch.
//
// It guarantees exact and deterministic results for up to 16 GPUs, without allocation; for 17 to 32 see Node.Choose. A
// Node is immutable after NewNode. The package does no I/O, reads no clock, and must not import anything but the
// standard library and internal/core/gpu.
package placement
