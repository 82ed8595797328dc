// Package placement chooses GPUs: which N of a node's available ones a container
// should get, and which replicas or MIG devices of shared ones.
//
// For whole GPUs a Node is made once per inventory change and then asked many times.
// Among all sets of the wanted size it takes, in this order,
//
//  1. the best bottleneck: the smallest edge of the set's maximum spanning tree, which
//     is what a ring or tree of collectives over the set runs at. An edge is worth its
//     NVLink count, and its PCIe path only where no NVLink joins the pair;
//  2. the highest total: NVLinks over all pairs, then PCIe nearness over all pairs;
//  3. the fewest NUMA nodes;
//  4. the best remainder: as many disjoint fully linked sets of 8 as possible among
//     the GPUs that stay available, then of 4, then of 2. Each size is counted for
//     itself, since the next requests are unknown: eight GPUs on one fabric leave
//     1, 2 and 4;
//  5. the lowest positions.
//
// A set is fully linked when NVLinks join all its pairs. Where a node has no such set
// of 8 (or 4, or 2), the sets of that size count whose worst pair is as good as that of
// any: on a PCIe node the fours within a socket, the twos below a switch.
//
// It guarantees exact and deterministic answers for up to 16 GPUs, without allocation;
// for 17 to 32 see Node.Choose. Values are plain, a Node never changes after NewNode,
// and nothing here does I/O or reads a clock. It is a pure room: it must not import
// anything but the standard library and internal/core/gpu.
package placement
