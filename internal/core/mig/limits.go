package mig

import (
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Limit is a rule about the instances of a GPU at one time, as a sum: what they take together is at most the capacity.
type Limit struct {
	Name string
	// Profile is the profile whose number is limited; empty for a limit that is not about one.
	Profile  string
	Capacity int
	// Take is what an instance of each profile takes; profiles that take nothing are left out.
	Take map[string]int
}

// The names of limits.
const (
	limitCompute   = "compute-slices"
	limitFullMedia = "full-media"
	limitMedia     = "media"
	limitInstances = "instances"
)

// Limits returns what the instances of a GPU may take together besides their memory slices, which are never shared: a set of
// placements that do not overlap fits the GPU if, and only if, it is within each limit. The rules are those of the package comment;
// one that the others imply is left out, such as the number of 3g where there are two places for them.
func Limits(geometry *gpu.MIGGeometry) []Limit {
	t := newTable(geometry)
	compute := Limit{Name: limitCompute, Capacity: geometry.ComputeSlices, Take: map[string]int{}}
	full := Limit{Name: limitFullMedia, Capacity: 1, Take: map[string]int{}}
	// An instance with the engines of every kind takes all, so that none that needs an engine fits beside it. There are never more
	// instances than memory slices.
	media := Limit{Name: limitMedia, Capacity: max(geometry.MemorySlices, 1), Take: map[string]int{}}
	var own []Limit
	all := false
	for i := range t.shapes {
		s := &t.shapes[i]
		if s.ComputeSlices > 0 {
			compute.Take[s.Name] = s.ComputeSlices
		}
		if s.media {
			full.Take[s.Name] = 1
		}
		switch {
		case s.all:
			all = true
			media.Take[s.Name] = media.Capacity
		case !s.none:
			media.Take[s.Name] = 1
		}
		if s.Max < t.possible(s) {
			own = append(own, Limit{Name: limitInstances, Profile: s.Name, Capacity: max(s.Max, 0), Take: map[string]int{s.Name: 1}})
		}
	}
	limits := []Limit{compute}
	if len(full.Take) > 0 {
		limits = append(limits, full)
	}
	if all {
		limits = append(limits, media)
	}
	return append(limits, own...)
}

// possible returns how many instances of a shape fit an empty GPU when its Max is left out.
func (t *table) possible(s *shape) int {
	most := len(s.places)
	if s.ComputeSlices > 0 {
		most = min(most, t.geometry.ComputeSlices/s.ComputeSlices)
	}
	if s.media {
		most = min(most, 1)
	}
	places, free := 0, 0
	for _, p := range slices.Backward(s.places) { // the lowest start first
		if p.start >= free {
			places++
			free = p.start + s.Size
		}
	}
	return min(most, places)
}
