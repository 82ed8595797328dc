package deviceplugin

import (
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/gpu"
	"github.com/berth-gpu/berth/internal/placement"
)

// question is one request for a preference, sorted into what the view knows of it.
type question struct {
	// must and good are devices that may be given out; poor ones only if the good do not
	// suffice: barred, no longer healthy, or just gone. Ascending, without doubles.
	must, good, poor []int
	// mustOther and other are ids that this node does not offer (any more). The kubelet
	// knows them, so they count.
	mustOther, other []string
	size             int
}

// prefer names exactly size of the available ids, all of must among them: the best by
// placement among the devices that may be given out, and others only when there are not
// enough of those. One lost or barred device is therefore never an error. It fails only
// when no answer of that size exists.
func (v *view) prefer(available, must []string, size int, barred func(gpu.DeviceKey) bool) ([]string, error) {
	q := v.sort(available, must, size, barred)
	required := len(q.must) + len(q.mustOther)
	offered := required + len(q.good) + len(q.poor) + len(q.other)
	if size < required || size > offered {
		return nil, fmt.Errorf("prefer %d devices of %q: %d must be among them and %d are available: the number must lie between the two", size, v.resource, required, offered)
	}
	ids := make([]string, 0, size)
	for _, i := range v.choose(q) {
		ids = append(ids, v.devices[i].ID)
	}
	ids = append(ids, q.mustOther...)
	return append(ids, q.other[:size-len(ids)]...), nil
}

// free are the devices that the kubelet calls free: available, and not those that the
// pod has already.
func (v *view) free(available, must []string) []gpu.DeviceKey {
	keys := make([]gpu.DeviceKey, 0, len(available))
	for _, id := range available {
		if i, known := v.byID[id]; known && !slices.Contains(must, id) {
			keys = append(keys, v.devices[i].Key)
		}
	}
	return keys
}

func (v *view) sort(available, must []string, size int, barred func(gpu.DeviceKey) bool) *question {
	q := &question{size: size, good: make([]int, 0, len(available))}
	for _, id := range must {
		if i, known := v.byID[id]; known {
			q.must = append(q.must, i)
		} else {
			q.mustOther = append(q.mustOther, id)
		}
	}
	q.must, q.mustOther = tidy(q.must), tidy(q.mustOther)
	for _, id := range available {
		i, known := v.byID[id]
		switch {
		case !known:
			if !slices.Contains(q.mustOther, id) {
				q.other = append(q.other, id)
			}
		case contains(q.must, i):
		case !v.devices[i].Healthy || barred(v.devices[i].Key):
			q.poor = append(q.poor, i)
		default:
			q.good = append(q.good, i)
		}
	}
	q.good, q.poor, q.other = tidy(q.good), tidy(q.poor), tidy(q.other)
	return q
}

// choose gives the known devices of the answer, ascending: as many as the size leaves
// after the ids that are not known, or all there are.
func (v *view) choose(q *question) []int {
	want := q.size - len(q.mustOther)
	if lacking := want - len(q.must) - len(q.good); lacking > 0 {
		// Every good device is needed; the rest is the best of the poor to go with them.
		all := len(q.must) + len(q.good) + len(q.poor)
		return v.best(merge(q.must, q.good), q.poor, min(want, all))
	}
	return v.best(q.must, q.good, want)
}

// best completes must with devices of pool. Where placement cannot say, as for
// replicas, it takes them in the order of the offer.
func (v *view) best(must, pool []int, size int) []int {
	if v.chooser != nil && size > len(must) && size < len(must)+len(pool) {
		required, ok := v.positions(must)
		others, ok2 := v.positions(pool)
		if ok && ok2 {
			if chosen, err := v.chooser.Choose(required|others, required, size); err == nil {
				return v.devicesAt(chosen)
			}
		}
	}
	return merge(must, pool[:size-len(must)])
}

// positions is false when a device has no position: one that has just vanished.
func (v *view) positions(devices []int) (placement.Set, bool) {
	var set placement.Set
	for _, i := range devices {
		p := v.devices[i].position
		if p < 0 {
			return 0, false
		}
		set |= 1 << p
	}
	return set, true
}

func (v *view) devicesAt(set placement.Set) []int {
	list := make([]int, 0, set.Len())
	for p := range set.Positions() {
		list = append(list, v.at[p])
	}
	return tidy(list)
}

func merge(a, b []int) []int { return tidy(slices.Concat(a, b)) }

// tidy sorts a list and removes doubles, in place.
func tidy[E int | string](list []E) []E {
	slices.Sort(list)
	return slices.Compact(list)
}

func contains(sorted []int, i int) bool {
	_, found := slices.BinarySearch(sorted, i)
	return found
}
