package pool

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// maxDevices is the largest number of devices in a slice. A taint, or an attribute with a list of values, lowers the limit of the API
// from 128 to that.
const maxDevices = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures

// unit is what is never divided over two slices: the devices of a GPU, or 64 of them.
type unit struct {
	gpu     gpu.UUID
	devices []resourceapi.Device
	// reserve is the number of devices for which the slice keeps capacity.
	reserve int
}

func unitsOf(gpus []*published) []unit {
	var units []unit
	for _, p := range gpus {
		if len(p.devices) <= maxDevices {
			units = append(units, unit{p.UUID, p.devices, max(1, min(p.reserve, maxDevices))})
			continue
		}
		for part := range slices.Chunk(p.devices, maxDevices) {
			units = append(units, unit{p.UUID, part, len(part)})
		}
	}
	return units
}

// layout has the units of each slice of devices, and the counter sets of each slice of counters.
type layout struct {
	devices [][]unit
	sets    [][]resourceapi.CounterSet
}

// pack fills one slice after another.
func pack(units []unit, sets []resourceapi.CounterSet) layout {
	l := layout{devices: [][]unit{nil}} // a pool without slices would say that no driver runs
	load := 0
	for _, u := range units {
		if load+u.reserve > maxDevices {
			l.devices, load = append(l.devices, nil), 0
		}
		at := len(l.devices) - 1
		l.devices[at] = append(l.devices[at], u)
		load += u.reserve
	}
	for some := range slices.Chunk(sets, resourceapi.ResourceSliceMaxCounterSets) {
		l.sets = append(l.sets, some)
	}
	return l
}

// keep returns a layout in which each unit and each counter set stays in its slice of the former layout, and there are as many
// slices. ok is false when the order, the limits, or the number of counter sets do not permit that.
func keep(units []unit, sets []resourceapi.CounterSet, before *former) (l layout, ok bool) {
	if len(before.devices) == 0 {
		return layout{}, false
	}
	places, ok := before.places(units)
	if !ok {
		return layout{}, false
	}
	l.devices = make([][]unit, len(before.devices))
	for i, at := range places {
		l.devices[at] = append(l.devices[at], units[i])
	}
	l.sets, ok = before.keepSets(sets)
	return l, ok
}

// places returns the slice of each unit: ascending, and for each the former one.
func (f *former) places(units []unit) ([]int, bool) {
	const unplaced = -1
	places := make([]int, len(units))
	load := make([]int, len(f.devices))
	parts := map[gpu.UUID]int{}
	for i, u := range units {
		places[i] = unplaced
		if at := f.at[u.gpu]; parts[u.gpu] < len(at) {
			places[i] = at[parts[u.gpu]]
			load[places[i]] += u.reserve
		}
		parts[u.gpu]++
	}
	lowest := 0
	for i, u := range units {
		if places[i] == unplaced {
			highest := len(f.devices) - 1
			if next := slices.IndexFunc(places[i:], func(at int) bool { return at != unplaced }); next >= 0 {
				highest = places[i+next]
			}
			for at := lowest; at <= highest && places[i] == unplaced; at++ {
				if load[at]+u.reserve <= maxDevices {
					places[i] = at
					load[at] += u.reserve
				}
			}
		}
		if places[i] < lowest {
			return nil, false // not placed, or behind a unit that it should be before
		}
		lowest = places[i]
	}
	return places, !slices.ContainsFunc(load, func(n int) bool { return n > maxDevices })
}

// keepSets returns the slices of counters with the sets that are wanted now. Sets that no device takes any more stay, since their
// removal would change a second slice.
func (f *former) keepSets(sets []resourceapi.CounterSet) ([][]resourceapi.CounterSet, bool) {
	kept := make([][]resourceapi.CounterSet, len(f.sets))
	for i := range f.sets {
		kept[i] = slices.Clone(f.sets[i])
	}
	for _, set := range sets {
		if !replace(kept, set) {
			at := slices.IndexFunc(kept, func(some []resourceapi.CounterSet) bool { return len(some) < resourceapi.ResourceSliceMaxCounterSets })
			if at < 0 {
				return nil, false
			}
			kept[at] = append(kept[at], set)
		}
	}
	return kept, len(sets) > 0 || len(kept) == 0
}

// replace puts a set in the place of the one with its name; false when there is none.
func replace(kept [][]resourceapi.CounterSet, set resourceapi.CounterSet) bool {
	for _, some := range kept {
		if at := slices.IndexFunc(some, func(one resourceapi.CounterSet) bool { return one.Name == set.Name }); at >= 0 {
			some[at] = set
			return true
		}
	}
	return false
}
