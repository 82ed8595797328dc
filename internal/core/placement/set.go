package placement

import (
	"iter"
	"math/bits"
	"strconv"
	"strings"
)

// MaxGPUs is the largest number of GPUs in a Set.
const MaxGPUs = 32

// Set is a set of GPUs by their position in the topology: bit i is position i.
type Set uint32

// SetOf returns the set of those positions; positions outside 0 to MaxGPUs-1 are ignored.
func SetOf(positions ...int) Set {
	var s Set
	for _, p := range positions {
		if p >= 0 && p < MaxGPUs {
			s |= 1 << p
		}
	}
	return s
}

// Len returns the number of GPUs in the set.
func (s Set) Len() int { return bits.OnesCount32(uint32(s)) }

// Has reports whether the GPU at that position is in the set.
func (s Set) Has(position int) bool {
	return position >= 0 && position < MaxGPUs && s>>position&1 == 1
}

// Positions yields the members, lowest first.
func (s Set) Positions() iter.Seq[int] {
	return func(yield func(int) bool) {
		for ; s != 0; s &= s - 1 {
			if !yield(s.lowest()) {
				return
			}
		}
	}
}

// String returns the positions, as in {0,3}.
func (s Set) String() string {
	var text strings.Builder
	separator := "{"
	for p := range s.Positions() {
		text.WriteString(separator)
		text.WriteString(strconv.Itoa(p))
		separator = ","
	}
	if s == 0 {
		text.WriteByte('{')
	}
	text.WriteByte('}')
	return text.String()
}

// lowest returns the lowest position of a set that is not empty.
func (s Set) lowest() int { return bits.TrailingZeros32(uint32(s)) }

// highest returns the highest position of a set that is not empty.
func (s Set) highest() int { return bits.Len32(uint32(s)) - 1 }

// before orders sets of equal size by their sorted positions: the lowest position at which they differ decides.
func (s Set) before(other Set) bool {
	differ := s ^ other
	return s&differ&-differ != 0
}

// subsets iterates over the subsets of a pool that have a fixed size, without allocation.
type subsets struct {
	pool    Set
	current Set
	lowest  [MaxGPUs + 1]Set // lowest[t] is the t lowest members of pool
}

// newSubsets starts with the size lowest members; size is between 1 and pool.Len().
func newSubsets(pool Set, size int) subsets {
	walk := subsets{pool: pool}
	rest := pool
	for t := 1; t <= size; t++ {
		walk.lowest[t] = walk.lowest[t-1] | rest&-rest
		rest &= rest - 1
	}
	walk.current = walk.lowest[size]
	return walk
}

// next advances to the next subset; it returns false after the last one.
//
// The positions outside the pool are filled with ones, so that the carry of the addition passes over them from one
// member of the pool to the next; the members that the carry cleared are set again at the lowest positions.
func (w *subsets) next() bool {
	step := w.current & -w.current
	moved := ((w.current | ^w.pool) + step) & w.pool
	if moved == 0 {
		return false
	}
	w.current = moved | w.lowest[w.current.Len()-moved.Len()]
	return true
}
