package placement

import (
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// tableGPUs is the largest number of GPUs for which the tables have an entry per subset. At 16 the tables take 640 KiB;
// each further GPU doubles them.
const tableGPUs = 16

// Node chooses among the GPUs of one node. It is immutable and safe for concurrent use.
type Node struct {
	count    int
	topology gpu.Topology
	numa     []int

	numaGroups []Set                           // the GPUs of each NUMA node
	pair       [][MaxGPUs]key                  // pairKey of every two GPUs
	levels     []Level                         // the distinct levels of all pairs, ascending
	near       [][MaxGPUs]Set                  // near[l][i]: the GPUs that GPU i reaches at levels[l] or better
	linked     [len(packingSizes)]Level        // the level of each pair of a fully linked set of 8, 4, 2
	linkedNear [len(packingSizes)][MaxGPUs]Set // near at those levels; above tableGPUs only

	keys    []key    // by subset; nil above tableGPUs
	packing []uint16 // by subset; nil above tableGPUs
}

// NewNode prepares a node. topology has a row per GPU and must be square and symmetric. numa has the NUMA node of each
// GPU (gpu.NoNUMANode if unknown), or is nil if all are unknown. Both are copied. NewNode takes some milliseconds at 16
// GPUs, so call it when the inventory changes and not per request.
//
// It returns an error when topology and numa do not match, when a link is out of range, and for more than MaxGPUs GPUs.
func NewNode(topology gpu.Topology, numa []int) (*Node, error) {
	if err := validate(topology, numa); err != nil {
		return nil, fmt.Errorf("prepare placement: %w", err)
	}
	n := &Node{count: len(topology), topology: gpu.NewTopology(len(topology)), numa: slices.Clone(numa)}
	for i := range topology {
		copy(n.topology[i], topology[i])
	}
	if numa == nil {
		n.numa = slices.Repeat([]int{gpu.NoNUMANode}, n.count)
	}
	n.indexNUMA()
	n.indexLinks()
	if n.count <= tableGPUs {
		n.buildTables()
	} else {
		n.estimateLinked()
	}
	return n, nil
}

func validate(topology gpu.Topology, numa []int) error {
	count := len(topology)
	if count > MaxGPUs {
		return fmt.Errorf("the node has %d GPUs, at most %d are supported", count, MaxGPUs)
	}
	if numa != nil && len(numa) != count {
		return fmt.Errorf("the topology has %d GPUs, but %d NUMA nodes are given", count, len(numa))
	}
	for i, row := range topology {
		if len(row) != count {
			return fmt.Errorf("row %d of the topology has %d links, want one for each of %d GPUs", i, len(row), count)
		}
	}
	for i, row := range topology {
		for j, link := range row[:i] {
			if link.Count < 0 || link.Count > maxNVLinks {
				return fmt.Errorf("GPUs %d and %d have %d NVLinks, want 0 to %d", j, i, link.Count, maxNVLinks)
			}
			if link.Path < gpu.PathUnknown || link.Path > gpu.PathSystem {
				return fmt.Errorf("GPUs %d and %d have the unknown PCIe path %d", j, i, link.Path)
			}
			if back := topology[j][i]; back != link {
				return fmt.Errorf("the link from GPU %d to %d is %+v, but in reverse it is %+v", i, j, link, back)
			}
		}
	}
	return nil
}

func (n *Node) indexNUMA() {
	seen := slices.Clone(n.numa)
	slices.Sort(seen)
	for _, node := range slices.Compact(seen) {
		var members Set
		for i, mine := range n.numa {
			if mine == node {
				members |= 1 << i
			}
		}
		n.numaGroups = append(n.numaGroups, members)
	}
}

func (n *Node) indexLinks() {
	n.pair = make([][MaxGPUs]key, n.count)
	for i := range n.count {
		for j := range i {
			link := n.topology[i][j]
			n.pair[i][j], n.pair[j][i] = pairKey(link), pairKey(link)
			n.levels = append(n.levels, levelOf(link))
		}
	}
	slices.Sort(n.levels)
	n.levels = slices.Compact(n.levels)
	n.near = make([][MaxGPUs]Set, len(n.levels))
	for l, level := range n.levels {
		n.near[l] = n.reach(level)
	}
}

// reach returns, per GPU, the other GPUs that it reaches at that level or better.
func (n *Node) reach(level Level) [MaxGPUs]Set {
	var near [MaxGPUs]Set
	for i := range n.count {
		for j := range n.count {
			if i != j && levelOf(n.topology[i][j]) >= level {
				near[i] |= 1 << j
			}
		}
	}
	return near
}

// All returns the set of all GPUs of the node.
func (n *Node) All() Set { return Set(uint64(1)<<n.count - 1) }

// Score returns the score of a set by itself. Positions that the node does not have are ignored.
func (n *Node) Score(s Set) Score {
	return n.keyOf(s & n.All()).score()
}

// Packing returns how many disjoint fully linked sets of 8, 4 and 2 a set contains. Above 16 GPUs it counts greedily,
// which may give less than the maximum.
func (n *Node) Packing(s Set) Packing {
	return unpackPacking(n.packingOf(s & n.All()))
}

func (n *Node) keyOf(s Set) key {
	if n.keys != nil {
		return n.keys[s]
	}
	return makeKey(n.bottleneck(s), n.totals(s), n.numaNodes(s))
}

func (n *Node) packingOf(s Set) uint16 {
	if n.packing != nil {
		return n.packing[s]
	}
	return n.estimatePacking(s)
}

// totals returns the NVLinks and the PCIe nearness of all pairs, at their positions in a key.
func (n *Node) totals(s Set) key {
	var sum key
	for rest := s; rest != 0; {
		i := rest.highest()
		rest &^= 1 << i
		sum += n.totalsTo(i, rest)
	}
	return sum
}

func (n *Node) totalsTo(i int, others Set) key {
	var sum key
	row := &n.pair[i]
	for ; others != 0; others &= others - 1 {
		sum += row[others.lowest()&(MaxGPUs-1)]
	}
	return sum
}

func (n *Node) numaNodes(s Set) int {
	count := 0
	for _, members := range n.numaGroups {
		if s&members != 0 {
			count++
		}
	}
	return count
}

// bottleneck returns the best level whose links alone connect the set; that is the smallest edge of its maximum
// spanning tree.
func (n *Node) bottleneck(s Set) Level {
	if s&(s-1) == 0 {
		return levelNone
	}
	// At the lowest level every pair is linked, so the set is connected there.
	low, high := 0, len(n.levels)-1
	for low < high {
		middle := (low + high + 1) / 2
		if connected(s, &n.near[middle]) {
			low = middle
		} else {
			high = middle - 1
		}
	}
	return n.levels[low]
}

func connected(s Set, near *[MaxGPUs]Set) bool {
	seen := s & -s
	for frontier := seen; frontier != 0; {
		found := near[frontier.lowest()&(MaxGPUs-1)] & s &^ seen
		seen |= found
		if seen == s {
			return true
		}
		frontier = frontier&(frontier-1) | found
	}
	return seen == s
}
