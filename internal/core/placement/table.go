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

// worstPair returns the worst pair of rest plus one more GPU.
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
		// Any NVLink suffices: a pair with one link is linked as well as a pair with two.
		n.linked[k] = min(best, levelNVLink)
		counts[k] = countDisjoint(worst, size, n.linked[k])
	}
	for s := range n.packing {
		n.packing[s] = makePacking([...]int{int(counts[0][s]), int(counts[1][s]), int(counts[2][s])})
	}
}

// countDisjoint returns, for every subset, how many disjoint fully linked sets of that size it contains. Either an
// optimal choice leaves out some GPU, and a subset without that GPU contains as many; or it uses all GPUs, and one of
// its sets contains the lowest GPU.
func countDisjoint(worst []Level, size int, linked Level) []uint8 {
	counts := make([]uint8, len(worst))
	if linked == levelNone {
		return counts // the node has fewer GPUs
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

// usesAll reports whether s can be divided completely into fully linked sets of that size.
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

// linkedText describes the level of each pair of a fully linked set of packingSizes[k].
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
