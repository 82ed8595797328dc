package placement

// This file serves nodes with more GPUs than the tables support.

// searchLimit is how many sets are compared one by one without tables; choosing 8 of 16 stays below it. That takes
// about a millisecond.
const searchLimit = 1 << 14

// chooseLarge is Choose without tables, after its checks and shortcuts.
func (n *Node) chooseLarge(available, must Set, size int) Set {
	if choices(available.Len()-must.Len(), size-must.Len()) <= searchLimit {
		return n.search(available, must, size)
	}
	return n.improve(available, must, size)
}

// improve grows a set from must, or from every GPU in turn if must is empty, improves each by exchanges, and returns
// the best.
func (n *Node) improve(available, must Set, size int) Set {
	if must != 0 {
		return n.climb(available, must, n.grow(available, must, size))
	}
	var best Set
	var bestKey key
	for seed := range available.Positions() {
		s := n.climb(available, 0, n.grow(available, 1<<seed, size))
		k := n.fullKey(available, s)
		if best == 0 || k > bestKey || k == bestKey && s.before(best) {
			best, bestKey = s, k
		}
	}
	return best
}

// choices returns the binomial coefficient, or a value above searchLimit when it is larger than that.
func choices(pool, size int) int {
	size = min(size, pool-size)
	count := 1
	for i := 1; i <= size; i++ {
		count = count * (pool - size + i) / i
		if count > searchLimit {
			return count
		}
	}
	return count
}

func (n *Node) fullKey(available, s Set) key {
	return n.keyOf(s) | key(n.packingOf(available&^s))
}

// grow adds one GPU at a time: the one that gives the best set.
func (n *Node) grow(available, s Set, size int) Set {
	for s.Len() < size {
		var best Set
		var bestKey key
		for rest := available &^ s; rest != 0; rest &= rest - 1 {
			larger := s | rest&-rest
			if k := n.keyOf(larger); best == 0 || k > bestKey {
				best, bestKey = larger, k
			}
		}
		s = best
	}
	return s
}

// climb exchanges one GPU at a time for a better one until no exchange improves the set. It terminates because each
// exchange raises the key, or keeps the key and lowers the positions.
func (n *Node) climb(available, must, s Set) Set {
	best, bestKey := s, n.fullKey(available, s)
	for {
		s = best
		for leave := s &^ must; leave != 0; leave &= leave - 1 {
			for enter := available &^ s; enter != 0; enter &= enter - 1 {
				other := s&^(leave&-leave) | enter&-enter
				k := n.fullKey(available, other)
				if k > bestKey || k == bestKey && other.before(best) {
					best, bestKey = other, k
				}
			}
		}
		if best == s {
			return best
		}
	}
}

// estimateLinked determines the levels of fully linked sets greedily.
func (n *Node) estimateLinked() {
	for k, size := range packingSizes {
		for l := len(n.levels) - 1; l >= 0 && n.linked[k] == levelNone; l-- {
			if countGreedily(n.All(), size, &n.near[l]) > 0 {
				n.linked[k] = min(n.levels[l], levelNVLink)
			}
		}
		n.linkedNear[k] = n.reach(n.linked[k])
	}
}

func (n *Node) estimatePacking(s Set) uint16 {
	var counts [len(packingSizes)]int
	for k, size := range packingSizes {
		counts[k] = countGreedily(s, size, &n.linkedNear[k])
	}
	return makePacking(counts)
}

// countGreedily returns how many disjoint sets of a size it finds in s, each around the lowest remaining GPU.
func countGreedily(s Set, size int, near *[MaxGPUs]Set) int {
	count := 0
	for s.Len() >= size {
		part := s & -s
		for others := near[s.lowest()] & s; others != 0 && part.Len() < size; {
			next := others.lowest()
			part |= 1 << next
			others &= near[next]
		}
		if part.Len() == size {
			count++
			s &^= part
		} else {
			s &= s - 1
		}
	}
	return count
}
