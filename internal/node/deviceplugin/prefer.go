package deviceplugin

import (
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
)

// preference is one request for a preference, with the devices of the view that it names.
type preference struct {
	// must and free are devices; free are those that need not be included. Ascending, without duplicates.
	must []int
	free []int
	// good are the free devices that are healthy and not blocked. If they do not suffice, fair ones are added, which are
	// degraded; then doubtful ones, which the kubelet's checkpoint lists for another pod that may have ended; then
	// poor ones: blocked, not allocatable, or just removed.
	good     []int
	fair     []int
	doubtful []int
	poor     []int
	// mustOther and other are IDs that this node does not advertise, or no longer. The kubelet knows them, so they count.
	mustOther []string
	other     []string
	// listed are those of the free that the ledger's Offered returned.
	listed []gpu.DeviceKey
	size   int
}

// prefer returns exactly size of the available IDs, all of must among them: the best by placement among the devices that can be
// allocated, and others only when there are too few of those. One lost or blocked device is therefore never an error. It fails only when
// no answer of that size exists.
func (v *view) prefer(q *preference, blocked func(gpu.DeviceKey) bool) ([]string, error) {
	required := len(q.must) + len(q.mustOther)
	offered := required + len(q.free) + len(q.other)
	if q.size < required || q.size > offered {
		return nil, fmt.Errorf("prefer %d devices of %q: %d must be among them and %d are available: the number must lie between the two", q.size, v.resource, required, offered)
	}
	q.good = make([]int, 0, len(q.free))
	for _, i := range q.free {
		switch device := &v.devices[i]; {
		case !device.Health.Allocatable() || blocked(device.Key):
			q.poor = append(q.poor, i)
		case len(q.listed) > 0 && slices.Contains(q.listed, device.Key): // The call alone costs an eighth of a choice among 800 replicas.
			q.doubtful = append(q.doubtful, i)
		case device.Health == gpu.Degraded:
			q.fair = append(q.fair, i)
		default:
			q.good = append(q.good, i)
		}
	}
	ids := make([]string, 0, q.size)
	for _, i := range v.choose(q) {
		ids = append(ids, v.devices[i].ID)
	}
	ids = append(ids, q.mustOther...)
	return append(ids, q.other[:q.size-len(ids)]...), nil
}

// request finds the devices that a request names.
func (v *view) request(available, must []string, size int) *preference {
	q := &preference{size: size}
	const inMust, isFree = 1, 2
	marks := make([]uint8, len(v.devices))
	for _, id := range must {
		if i, known := v.byID[id]; known {
			marks[i] = inMust
		} else {
			q.mustOther = append(q.mustOther, id)
		}
	}
	for _, id := range available {
		if i, known := v.byID[id]; known {
			if marks[i] != inMust {
				marks[i] = isFree
			}
		} else if !slices.Contains(q.mustOther, id) {
			q.other = append(q.other, id)
		}
	}
	q.free = make([]int, 0, min(len(available), len(marks)))
	for i, mark := range marks {
		switch mark {
		case inMust:
			q.must = append(q.must, i)
		case isFree:
			q.free = append(q.free, i)
		}
	}
	q.mustOther, q.other = tidy(q.mustOther), tidy(q.other)
	return q
}

// choose returns the known devices of the answer, ascending: as many as the size leaves after the unknown IDs, or all that exist.
func (v *view) choose(q *preference) []int {
	want := q.size - len(q.mustOther)
	must, pool, fair := q.must, q.good, q.fair
	if v.groups != nil && len(fair) > 0 && !v.groups.fitsOneGPU(must, pool, want) && v.groups.fitsOneGPU(must, merge(pool, fair), want) {
		// Replicas that share a degraded GPU can be allocated together, healthy ones of several GPUs through MPS cannot.
		pool, fair = merge(pool, fair), nil
	}
	for _, worse := range [][]int{fair, q.doubtful, q.poor} {
		if want > len(must)+len(pool) {
			// All better devices are needed, and the best of the worse ones to go with them.
			must, pool = merge(must, pool), worse
		}
	}
	return v.best(must, pool, min(want, len(must)+len(pool)))
}

// best completes must with devices of pool. Where placement has no answer, it takes them in the order of the offer.
func (v *view) best(must, pool []int, size int) []int {
	if size == len(must) || size == len(must)+len(pool) {
		return merge(must, pool[:size-len(must)])
	}
	if v.groups != nil {
		if chosen, ok := v.groups.choose(must, pool, size); ok {
			return chosen
		}
	}
	if v.chooser != nil {
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

// positions returns false when a device has no position, since it has just vanished.
func (v *view) positions(devices []int) (placement.Set, bool) {
	var set placement.Set
	for _, i := range devices {
		p := v.devices[i].Position
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

// tidy sorts a list and removes duplicates, in place.
func tidy[E int | string](list []E) []E {
	slices.Sort(list)
	return slices.Compact(list)
}
