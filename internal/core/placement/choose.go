package placement

import "fmt"

// Choose returns size GPUs of available, including all of must, by the criteria in the package comment. The same
// arguments always give the same result.
//
// Up to 16 GPUs the result is exact and costs no allocation. On a node with 17 to 32 GPUs it is exact in criteria 1 to
// 3 while there are at most 16,384 sets to compare (so whenever at most 16 GPUs are available), and on a fabric that
// connects all GPUs equally. Otherwise the search grows a set from every GPU in turn and improves it by exchanging one
// GPU at a time; criterion 4 is then a lower bound. That takes milliseconds instead of microseconds.
//
// It returns an error when size is not positive, when available contains fewer than size GPUs or GPUs that the node
// does not have, or when must is larger than size or not part of available.
func (n *Node) Choose(available, must Set, size int) (Set, error) {
	if size <= 0 || size > available.Len() || must.Len() > size || must&^available != 0 || available&^n.All() != 0 {
		return 0, n.refuse(available, must, size)
	}
	switch size {
	case available.Len():
		return available, nil
	case must.Len():
		return must, nil
	}
	if n.keys == nil {
		return n.chooseLarge(available, must, size), nil
	}
	return n.search(available, must, size), nil
}

// refuse returns the error of an invalid request.
func (n *Node) refuse(available, must Set, size int) error {
	switch {
	case size <= 0:
		return fmt.Errorf("choose %d GPUs: the number must be positive", size)
	case available&^n.All() != 0:
		return fmt.Errorf("choose %d GPUs: available has %v, but the node has %d GPUs, numbered from 0", size, available&^n.All(), n.count)
	case size > available.Len():
		return fmt.Errorf("choose %d GPUs: only %d are available: %v", size, available.Len(), available)
	case must&^available != 0:
		return fmt.Errorf("choose %d GPUs: %v must be included but are not available: %v", size, must&^available, available)
	default:
		return fmt.Errorf("choose %d GPUs: %d must be included: %v", size, must.Len(), must)
	}
}

// search compares all sets; size is between must.Len()+1 and available.Len()-1.
func (n *Node) search(available, must Set, size int) Set {
	var best Set
	var bestKey key
	for walk := newSubsets(available&^must, size-must.Len()); ; {
		s := must | walk.current
		// The remainder matters only for sets that are equally good by themselves.
		if k := n.keyOf(s); k >= bestKey&^(1<<packingBits-1) {
			k |= key(n.packingOf(available &^ s))
			if best == 0 || k > bestKey || k == bestKey && s.before(best) {
				best, bestKey = s, k
			}
		}
		if !walk.next() {
			return best
		}
	}
}
