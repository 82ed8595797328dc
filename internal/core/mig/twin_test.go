package mig

import (
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// twin plans one GPU in the simplest way: it lists every set of instances that a GPU can have, by trying to add each
// profile to each set, and judges all of them. It shares no code with the package beyond the types.
type twin struct {
	geometry gpu.MIGGeometry
	// all are the sets that fit, by their devices.
	all map[string][][]Placed
	// cached are the results of remaining.
	cached map[string][]int
}

func newTwin(geometry gpu.MIGGeometry) *twin {
	w := &twin{geometry: geometry, all: map[string][][]Placed{}, cached: map[string][]int{}}
	var every []Placed
	for _, p := range geometry.Profiles {
		for _, start := range p.Starts {
			every = append(every, Placed{Profile: p.Name, Start: start, Size: p.Size})
		}
	}
	w.grow(nil, every)
	return w
}

// grow records a set and those that further instances lead to.
func (w *twin) grow(set, rest []Placed) {
	key := devicesKey(countPlaced(set))
	w.all[key] = append(w.all[key], slices.Clone(set))
	for i, one := range rest {
		if w.canAdd(set, one) {
			w.grow(append(slices.Clone(set), one), rest[i+1:])
		}
	}
}

func (w *twin) canAdd(set []Placed, one Placed) bool {
	c := checker{geometry: w.geometry, enabled: true}
	for _, there := range set {
		c.instances = append(c.instances, Instance{UUID: "there", Profile: there.Profile, Start: there.Start, Size: there.Size})
	}
	return c.create(one.Profile, one.Start) == nil
}

func countPlaced(set []Placed) map[string]int {
	devices := map[string]int{}
	for _, one := range set {
		devices[one.Profile]++
	}
	return devices
}

// verdict is the value of a plan by each goal.
type verdict struct {
	holders   int
	destroyed int
	held      int
	starts    []int
	// remaining is negated, so that lower is better, as for the other goals.
	remaining []int
}

func (v verdict) compare(u verdict) int {
	a := slices.Concat([]int{v.holders, v.destroyed, v.held}, v.starts, v.remaining)
	b := slices.Concat([]int{u.holders, u.destroyed, u.held}, u.starts, u.remaining)
	return slices.Compare(a, b)
}

// judge returns what a set of instances would do to a GPU.
func (w *twin) judge(g *GPU, set []Placed) verdict {
	var v verdict
	names := map[string]bool{}
	for _, one := range g.Instances {
		stays := one.UUID != "" && len(one.Siblings) == 0 &&
			slices.Contains(set, Placed{Profile: one.Profile, Start: one.Start, Size: one.Size})
		if stays {
			continue
		}
		v.destroyed++
		for _, name := range one.Holders {
			names[name] = true
		}
		if len(one.Holders) > 0 {
			v.held++
			v.starts = append(v.starts, one.Start)
		}
	}
	v.holders = len(names)
	slices.Sort(v.starts)
	v.remaining = w.remaining(set)
	return v
}

// remaining returns how many further instances of each profile fit beside a set, negated.
func (w *twin) remaining(set []Placed) []int {
	ordered := slices.Clone(set)
	slices.SortFunc(ordered, func(a, b Placed) int { return a.Start - b.Start })
	key := fmt.Sprint(ordered)
	if w.cached[key] == nil {
		for _, p := range w.largestFirst() {
			w.cached[key] = append(w.cached[key], -w.further(set, p, p.Starts))
		}
	}
	return w.cached[key]
}

// best returns the best verdict on any set with those devices, or false when none fits.
func (w *twin) best(g *GPU, devices map[string]int) (verdict, bool) {
	var best verdict
	sets := w.all[devicesKey(devices)]
	for i, set := range sets {
		if v := w.judge(g, set); i == 0 || v.compare(best) < 0 {
			best = v
		}
	}
	return best, len(sets) > 0
}

func (w *twin) largestFirst() []gpu.MIGProfile {
	profiles := slices.Clone(w.geometry.Profiles)
	slices.SortFunc(profiles, func(a, b gpu.MIGProfile) int {
		return slices.Compare([]int{-a.Size, -a.ComputeSlices, a.Number}, []int{-b.Size, -b.ComputeSlices, b.Number})
	})
	return profiles
}

// further returns the maximum number of instances of a profile that can be added at some of the starts.
func (w *twin) further(set []Placed, p gpu.MIGProfile, starts []int) int {
	most := 0
	for i, start := range starts {
		one := Placed{Profile: p.Name, Start: start, Size: p.Size}
		if w.canAdd(set, one) {
			most = max(most, 1+w.further(append(slices.Clone(set), one), p, starts[i+1:]))
		}
	}
	return most
}

// planned returns the set of instances that a plan leads to.
func planned(plan GPUPlan) []Placed {
	set := slices.Clone(plan.Create)
	for _, one := range plan.Keep {
		set = append(set, Placed{Profile: one.Profile, Start: one.Start, Size: one.Size})
	}
	return set
}
