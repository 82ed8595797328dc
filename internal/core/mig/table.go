package mig

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// maxSlices bounds the memory slices of a GPU (current GPUs have up to 12); placements beyond it are not used.
const maxSlices = 64

// table is a geometry prepared for the search.
type table struct {
	geometry *gpu.MIGGeometry
	// shapes are its profiles, the largest first.
	shapes []shape
}

// shape is a profile with its possible placements.
type shape struct {
	*gpu.MIGProfile
	// places are sorted by start, the highest first.
	places []place
	// media is set when an instance has all of the GPU's media engines of one kind, all when it has those of every
	// kind, and none when it has no media engine.
	media bool
	all   bool
	none  bool
}

// place is a placement, and the memory slices that it covers.
type place struct {
	start int
	mask  uint64
}

// slot is a place of a shape; both are positions.
type slot struct {
	shape int
	place int
}

func newTable(geometry *gpu.MIGGeometry) *table {
	t := &table{geometry: geometry, shapes: make([]shape, 0, len(geometry.Profiles))}
	end := min(geometry.MemorySlices, maxSlices)
	for i := range geometry.Profiles {
		p := &geometry.Profiles[i]
		if p != geometry.Profile(p.Name) {
			continue // the name is ambiguous
		}
		s := shape{
			MIGProfile: p, media: hasAttribute(p.Name, '+', "me", "me.all"), all: hasAttribute(p.Name, '+', "me.all"),
			none: hasAttribute(p.Name, '-', "me"),
		}
		for _, start := range p.Starts {
			if start >= 0 && p.Size > 0 && start <= end-p.Size {
				s.places = append(s.places, place{start, (uint64(1)<<p.Size - 1) << start})
			}
		}
		slices.SortFunc(s.places, func(a, b place) int { return b.start - a.start })
		s.places = slices.CompactFunc(s.places, func(a, b place) bool { return a.start == b.start })
		t.shapes = append(t.shapes, s)
	}
	slices.SortStableFunc(t.shapes, func(a, b shape) int {
		return cmp.Or(b.Size-a.Size, b.ComputeSlices-a.ComputeSlices, a.Number-b.Number)
	})
	return t
}

// hasAttribute reports whether a profile's name has one of the attributes after that sign, as in "1g.24gb+gfx-me".
func hasAttribute(name string, sign byte, attributes ...string) bool {
	for i := range len(name) {
		if name[i] != sign {
			continue
		}
		attribute := name[i+1:]
		if end := strings.IndexAny(attribute, "+-"); end >= 0 {
			attribute = attribute[:end]
		}
		if slices.Contains(attributes, attribute) {
			return true
		}
	}
	return false
}

// find returns the position of the shape with that name, or -1.
func (t *table) find(name string) int {
	return slices.IndexFunc(t.shapes, func(s shape) bool { return s.Name == name })
}

// names lists the profiles, the largest first.
func (t *table) names() []string {
	names := make([]string, len(t.shapes))
	for i := range t.shapes {
		names[i] = t.shapes[i].Name
	}
	return names
}

// slot returns the slot that an instance occupies, or false for an instance that is in no layout: of a profile that the
// GPU does not have, incomplete, or with smaller compute instances.
func (t *table) slot(one *Instance) (slot, bool) {
	if one.UUID == "" || len(one.Siblings) > 0 {
		return slot{}, false
	}
	return t.at(Placed{Profile: one.Profile, Start: one.Start, Size: one.Size})
}

// sums returns the slices that the devices take, and how many of them have all media engines of a kind.
func (t *table) sums(counts []int) (memory, compute, media int) {
	for i, n := range counts {
		memory += n * t.shapes[i].Size
		compute += n * t.shapes[i].ComputeSlices
		if t.shapes[i].media {
			media += n
		}
	}
	return memory, compute, media
}

// starved reports whether one of the devices has all media engines while another one needs some.
func (t *table) starved(counts []int) bool {
	all, some := 0, 0
	for i, n := range counts {
		if t.shapes[i].all {
			all += n
		} else if !t.shapes[i].none {
			some += n
		}
	}
	return all > 0 && some > 0
}

// fits reports whether all devices can be placed on an empty GPU.
func (t *table) fits(counts []int) bool {
	for i, n := range counts {
		// The count is checked first, so that the sum of very large counts does not overflow.
		if n > t.shapes[i].Max || n > len(t.shapes[i].places) {
			return false
		}
	}
	memory, compute, media := t.sums(counts)
	if memory > t.geometry.MemorySlices || compute > t.geometry.ComputeSlices || media > 1 || t.starved(counts) {
		return false
	}
	for range t.layouts(counts) {
		return true
	}
	return false
}

// most returns as many of the wanted devices as an empty GPU has places for, when larger profiles choose first.
func (t *table) most(counts []int) []int {
	most := make([]int, len(counts))
	for i, n := range counts {
		for n = min(n, len(t.shapes[i].places)); n > 0; n-- {
			if most[i] = n; t.fits(most) {
				break
			}
		}
		most[i] = n
	}
	return most
}

// layouts yields all ways of placing the devices on the memory slices of an empty GPU, those with higher starts first,
// where the largest shape decides. The yielded slice is reused.
func (t *table) layouts(counts []int) iter.Seq2[[]slot, uint64] {
	return func(yield func([]slot, uint64) bool) {
		layout := make([]slot, 0, maxSlices)
		// extend places n more devices of a shape, at its places from next on, and then the following shapes.
		var extend func(shape, n, next int, used uint64) bool
		extend = func(shape, n, next int, used uint64) bool {
			for n == 0 {
				if shape++; shape == len(counts) {
					return yield(layout, used)
				}
				n, next = counts[shape], 0
			}
			places := t.shapes[shape].places
			for p := next; p <= len(places)-n; p++ {
				if places[p].mask&used != 0 {
					continue
				}
				layout = append(layout, slot{shape, p})
				if !extend(shape, n-1, p+1, used|places[p].mask) {
					return false
				}
				layout = layout[:len(layout)-1]
			}
			return true
		}
		extend(-1, 0, 0, 0)
	}
}

// caps returns, for each shape, how many further instances the compute slices, the maximum and the media engines permit
// beside the devices.
func (t *table) caps(counts []int) []int {
	_, compute, media := t.sums(counts)
	caps := make([]int, len(t.shapes))
	for i := range t.shapes {
		s := &t.shapes[i]
		caps[i] = s.Max - counts[i]
		if s.ComputeSlices > 0 {
			caps[i] = min(caps[i], (t.geometry.ComputeSlices-compute)/s.ComputeSlices)
		}
		if s.media {
			caps[i] = min(caps[i], 1-media)
		}
		if counts[i]++; t.starved(counts) {
			caps[i] = min(caps[i], 0)
		}
		counts[i]--
	}
	return caps
}

// remaining counts how many further instances of each shape alone fit beside the used memory slices, up to caps. The
// places of a shape have equal size, so taking the free one with the lowest start each time gives the maximum.
func (t *table) remaining(capacity, caps []int, used uint64) {
	for i := range t.shapes {
		capacity[i] = 0
		taken := used
		for _, p := range slices.Backward(t.shapes[i].places) {
			if capacity[i] >= caps[i] {
				break
			}
			if p.mask&taken == 0 {
				taken |= p.mask
				capacity[i]++
			}
		}
	}
}
