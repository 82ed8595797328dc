package placement

import "slices"

// buildTables fills keys and packing for every subset of up to tableGPUs GPUs.
func (n *Node) buildTables() {
	subsetCount := 1 << n.count
	n.keys = make([]key, subsetCount)
	n.keys[0] = makeKey(levelNone, 0, 0)
	worst := make([]Level, subsetCount) // the worst pair of each subset
	for s := Set(1); int(s) < subsetCount; s++ {
		newest := s.highest()
		rest := s &^ (1 << newest)
		totals := n.keys[rest]&totalMask + n.totalsTo(newest, rest)
		n.keys[s] = makeKey(n.bottleneck(s), totals, n.numaNodes(s))
		worst[s] = n.worstPair(worst[rest], newest, rest)
	}
	n.buildPacking(worst)
}

// worstPair extends the worst pair of rest by the pairs that one more GPU brings.
func (n *Node) worstPair(worst Level, newest int, rest Set) Level {
	for i := range rest.Positions() {
		level := levelOf(n.topology[newest][i])
		if worst == levelNone || level < worst {
			worst = level
		}
	}
	return worst
}

func (n *Node) buildPacking(worst []Level) {
	n.packing = make([]uint16, len(worst))
	var counts [len(packingSizes)][]uint8
	for k, size := range packingSizes {
		best := levelNone
		for s, level := range worst {
			if Set(s).Len() == size {
				best = max(best, level)
			}
		}
		// Any NVLinks do: a pair with one link is linked as well as a pair with two.
		n.linked[k] = min(best, levelNVLink)
		counts[k] = countDisjoint(worst, size, n.linked[k])
	}
	for s := range n.packing {
		n.packing[s] = makePacking([...]int{int(counts[0][s]), int(counts[1][s]), int(counts[2][s])})
	}
}

// countDisjoint finds, for every subset, how many disjoint fully linked sets of a size it
// holds. Either such a choice leaves out some GPU, and then a subset without that GPU
// holds as many; or it uses all, and then one of its sets has the lowest GPU.
func countDisjoint(worst []Level, size int, linked Level) []uint8 {
	counts := make([]uint8, len(worst))
	if linked == levelNone {
		return counts // the node has fewer GPUs than that
	}
	for i := range counts {
		s := Set(i)
		length := s.Len()
		most := uint8(length / size)
		for rest := s; rest != 0 && counts[i] < most; rest &= rest - 1 {
			counts[i] = max(counts[i], counts[s&^(rest&-rest)])
		}
		if length%size == 0 && counts[i] < most && usesAll(counts, worst, s, size, linked) {
			counts[i] = most
		}
	}
	return counts
}

// usesAll tells whether s can be divided into fully linked sets of a size with none left over.
func usesAll(counts []uint8, worst []Level, s Set, size int, linked Level) bool {
	want := uint8(s.Len()/size - 1)
	first := s & -s
	for walk := newSubsets(s&^first, size-1); ; {
		part := first | walk.current
		if worst[part] >= linked && counts[s&^part] == want {
			return true
		}
		if !walk.next() {
			return false
		}
	}
}

// linkedText says what each pair of a fully linked set of packingSizes[k] reaches.
func (n *Node) linkedText(k int) string {
	switch level := n.linked[k]; {
	case level == levelNone:
		return "none"
	case level >= levelNVLink:
		return "NVLink"
	case slices.Index(n.levels, level) == 0:
		return "any link"
	default:
		return level.String() + " or nearer"
	}
}
