package placement

import (
	"cmp"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// twin is a second implementation of Choose, as simple as possible: it lists every subset as a slice of positions and
// computes every property from its definition. It shares no code with the package except the types of request and
// result.
type twin struct {
	topology gpu.Topology
	numa     []int
	linked   map[int]int    // per size: the level of each pair of a fully linked set
	packed   map[string]int // cached results of disjoint
}

func newTwin(topology gpu.Topology, numa []int) *twin {
	w := &twin{topology: topology, numa: numa, linked: map[int]int{}, packed: map[string]int{}}
	all := make([]int, len(topology))
	for i := range all {
		all[i] = i
	}
	for _, size := range []int{8, 4, 2} {
		best := -1
		for _, set := range combinations(all, size) {
			best = max(best, w.weakestPair(set))
		}
		w.linked[size] = min(best, 100)
	}
	return w
}

// worth ranks a link: NVLinks from 101 up, PCIe from 6 (PSB) down to 1 (SYS), unknown 0.
func (w *twin) worth(i, j int) int {
	if nv := w.topology[i][j].Count; nv > 0 {
		return 100 + nv
	}
	return w.pcie(i, j)
}

func (w *twin) pcie(i, j int) int {
	return map[gpu.PCIPath]int{
		gpu.PathSameBoard: 6, gpu.PathSingleSwitch: 5, gpu.PathMultiSwitch: 4,
		gpu.PathHostBridge: 3, gpu.PathSameNUMA: 2, gpu.PathSystem: 1,
	}[w.topology[i][j].Path]
}

func (w *twin) weakestPair(set []int) int {
	weakest := 1000
	for a, i := range set {
		for _, j := range set[a+1:] {
			weakest = min(weakest, w.worth(i, j))
		}
	}
	return weakest
}

// kruskal returns the smallest edge of the maximum spanning tree, or -1 for fewer than two GPUs.
func (w *twin) kruskal(set []int) int {
	type edge struct {
		worth int
		i     int
		j     int
	}
	var edges []edge
	group := map[int]int{}
	for a, i := range set {
		group[i] = i
		for _, j := range set[a+1:] {
			edges = append(edges, edge{w.worth(i, j), i, j})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Compare(b.worth, a.worth) })
	smallest := -1
	for _, e := range edges {
		from, to := group[e.i], group[e.j]
		if from == to {
			continue
		}
		smallest = e.worth
		for _, i := range set {
			if group[i] == from {
				group[i] = to
			}
		}
	}
	return smallest
}

// merit lists the criteria that precede the remainder; higher is better.
func (w *twin) merit(set []int) []int {
	nvlinks, pcie, nodes := 0, 0, map[int]bool{}
	for a, i := range set {
		nodes[w.numa[i]] = true
		for _, j := range set[a+1:] {
			nvlinks += w.topology[i][j].Count
			pcie += w.pcie(i, j)
		}
	}
	return []int{w.kruskal(set), nvlinks, pcie, -len(nodes)}
}

// remainder lists how many fully linked sets of 8, 4 and 2 a set contains.
func (w *twin) remainder(rest []int) []int {
	return []int{w.disjoint(rest, 8), w.disjoint(rest, 4), w.disjoint(rest, 2)}
}

// disjoint returns the maximum number of disjoint fully linked sets of a size: the first GPU is in one of them or in
// none.
func (w *twin) disjoint(rest []int, size int) int {
	if len(rest) < size {
		return 0
	}
	name := string(rune('0'+size)) + string(runes(rest))
	if known, ok := w.packed[name]; ok {
		return known
	}
	most := w.disjoint(rest[1:], size)
	for _, others := range combinations(rest[1:], size-1) {
		part := append([]int{rest[0]}, others...)
		if weakest := w.weakestPair(part); weakest == w.linked[size] || w.linked[size] == 100 && weakest > 100 {
			most = max(most, 1+w.disjoint(without(rest, part), size))
		}
	}
	w.packed[name] = most
	return most
}

func (w *twin) choose(available, must []int, size int) []int {
	var best, bestMerit, bestRemainder []int
	for _, set := range combinations(available, size) {
		if len(without(must, set)) > 0 {
			continue
		}
		merit := w.merit(set)
		order := slices.Compare(merit, bestMerit)
		if best != nil && order < 0 {
			continue
		}
		remainder := w.remainder(without(available, set))
		// Sets come in ascending order, so the first of several equals has the lowest positions.
		if best == nil || order > 0 || slices.Compare(remainder, bestRemainder) > 0 {
			best, bestMerit, bestRemainder = set, merit, remainder
		}
	}
	return best
}

// combinations lists the subsets of a size in ascending order.
func combinations(from []int, size int) [][]int {
	if size == 0 {
		return [][]int{nil}
	}
	var all [][]int
	for i := range from {
		for _, rest := range combinations(from[i+1:], size-1) {
			all = append(all, append([]int{from[i]}, rest...))
		}
	}
	return all
}

func without(from, gone []int) []int {
	var left []int
	for _, i := range from {
		if !slices.Contains(gone, i) {
			left = append(left, i)
		}
	}
	return left
}

func runes(positions []int) []rune {
	var text []rune
	for _, p := range positions {
		text = append(text, rune('a'+p))
	}
	return text
}

func members(s Set) []int { return slices.Collect(s.Positions()) }
