package mig

import (
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Placements lists every placement of every profile of a GPU once, the largest profile first. The placements of a profile are in
// the order in which an allocator should try them, when it takes the first that is free: each is the one that leaves the most
// capacity beside those before it, by the goals 3 and 4 of the package comment. On GPUs with 8 memory slices a 1g is tried at 6, 5,
// 4 … 0, a 2g at 4, 2, 0 and a 3g at 4, 0, so that a 4g and the lower 3g remain possible for as long as they can.
func Placements(geometry *gpu.MIGGeometry) []Placed {
	t := newTable(geometry)
	var all []Placed
	for i := range t.shapes {
		s := &t.shapes[i]
		for _, p := range t.ordered(i) {
			all = append(all, Placed{Profile: s.Name, Start: p.start, Size: s.Size})
		}
	}
	return all
}

// ordered returns the places of a shape, each the best one beside those before it. Once every place that is left overlaps an
// earlier one, the order of the others is found in the same way, as if the GPU were empty.
func (t *table) ordered(shape int) []place {
	s := &t.shapes[shape]
	rest, ordered := slices.Clone(s.places), make([]place, 0, len(s.places))
	counts := make([]int, len(t.shapes))
	capacity, best := make([]int, len(t.shapes)), make([]int, len(t.shapes))
	for used := uint64(0); len(rest) > 0; {
		counts[shape] = min(counts[shape]+1, s.Max)
		caps, at := t.caps(counts), -1
		for i, p := range rest { // the highest start first, which wins among equals
			if p.mask&used != 0 {
				continue
			}
			if t.remaining(capacity, caps, used|p.mask); at < 0 || slices.Compare(capacity, best) > 0 {
				at = i
				best, capacity = capacity, best
			}
		}
		if at < 0 {
			used, counts[shape] = 0, 0
			continue
		}
		used |= rest[at].mask
		ordered = append(ordered, rest[at])
		rest = slices.Delete(rest, at, at+1)
	}
	return ordered
}
