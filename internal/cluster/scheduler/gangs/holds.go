package gangs

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

// hold is a place on a node for a member that is not reserved there yet.
type hold struct {
	pod      types.UID
	gang     gangplan.Key
	node     string
	requests []fleet.Shape
	// amounts are all that the member requests of the node.
	amounts v1.ResourceList
	// until is when the hold ends by itself; zero is never.
	until time.Time
	// lost is true for the place of a member that the gang has lost: the next one gets it. It counts for pods of a higher priority than the
	// gang's no more than the member would: one of these may have ended it.
	lost bool
	// reservation is that of which the place is part, nil for others. It does not count for pods of a higher priority either.
	reservation *reservation
	priority    int32
}

// seeker is who looks for a node.
type seeker struct {
	// key is that of its gang, empty for none.
	key      gangplan.Key
	priority int32
	// ends is when it ends at the latest; zero where that is not known.
	ends time.Time
	// amounts are what it requests, devices is true where it requests devices by claims, too.
	amounts v1.ResourceList
	devices bool
}

// blocks tells whether a hold keeps the place from a seeker.
func (h *hold) blocks(who *seeker) bool {
	if h.gang == who.key || (h.lost || h.reservation != nil) && h.priority < who.priority {
		return false
	}
	return h.reservation == nil || !h.reservation.admits(who.ends)
}

// holds are the places that are held.
type holds struct {
	byPod  map[types.UID]*hold
	byNode map[string]map[types.UID]*hold
	// count is how many there are, to read without the lock.
	count *atomic.Int64
	// freed counts the holds that have ended without that their place was taken.
	freed uint64
}

func newHolds() holds {
	return holds{byPod: map[types.UID]*hold{}, byNode: map[string]map[types.UID]*hold{}, count: &atomic.Int64{}}
}

func (h *holds) add(held *hold) {
	h.take(held.pod)
	h.byPod[held.pod] = held
	if h.byNode[held.node] == nil {
		h.byNode[held.node] = map[types.UID]*hold{}
	}
	h.byNode[held.node][held.pod] = held
	h.count.Store(int64(len(h.byPod)))
}

// remove ends a hold: its place is free for others.
func (h *holds) remove(pod types.UID) {
	if h.take(pod) != nil {
		h.freed++
	}
}

// take ends a hold whose place is taken, and returns it; nil for none.
func (h *holds) take(pod types.UID) *hold {
	old := h.byPod[pod]
	if old == nil {
		return nil
	}
	delete(h.byPod, pod)
	delete(h.byNode[old.node], pod)
	if len(h.byNode[old.node]) == 0 {
		delete(h.byNode, old.node)
	}
	h.count.Store(int64(len(h.byPod)))
	return old
}

// takeLost ends the hold of a lost member of a gang, that on the node if there is one, and returns it; nil for none.
func (h *holds) takeLost(key gangplan.Key, node string) *hold {
	var best *hold
	for _, held := range h.byPod {
		if !held.lost || held.gang != key {
			continue
		}
		here := held.node == node
		if best == nil || here && best.node != node || here == (best.node == node) && held.pod < best.pod {
			best = held
		}
	}
	if best == nil {
		return nil
	}
	if best.node != node {
		h.freed++
	}
	return h.take(best.pod)
}

// dropLost ends the holds of all lost members of a gang.
func (h *holds) dropLost(key gangplan.Key) {
	for pod, held := range h.byPod {
		if held.lost && held.gang == key {
			h.remove(pod)
		}
	}
}

// expire ends the holds whose time is over.
func (h *holds) expire(now time.Time) {
	for pod, held := range h.byPod {
		if !held.until.IsZero() && now.After(held.until) {
			h.remove(pod)
		}
	}
}

// others returns what is held against a seeker, in a fixed order, without what is reserved.
func (h *holds) others(who *seeker) []*hold {
	list := slices.SortedFunc(maps.Values(h.byPod), func(a, b *hold) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.pod, b.pod))
	})
	return slices.DeleteFunc(list, func(held *hold) bool { return held.reservation != nil || !held.blocks(who) })
}

// wanted returns what places hold of GPUs, for a plan.
func wanted(list []*hold, m *model.Model) []model.Held {
	var held []model.Held
	for _, place := range list {
		if i, ok := m.Index(place.node); ok && len(place.requests) > 0 {
			held = append(held, model.Held{Node: i, Requests: place.requests})
		}
	}
	return held
}

// taken returns what places hold, by the names of nodes.
func taken(list []*hold) map[string]v1.ResourceList {
	all := map[string]v1.ResourceList{}
	for _, place := range list {
		if all[place.node] == nil {
			all[place.node] = v1.ResourceList{}
		}
		gangplanner.Add(all[place.node], place.amounts)
	}
	return all
}

// lacks returns the resource of which a node has too little for a seeker beside what is held and reserved there for other gangs, and a
// place of these; nil where nothing lacks.
func (h *holds) lacks(node fwk.NodeInfo, who *seeker, now time.Time) (v1.ResourceName, *hold) {
	list := h.byNode[node.Node().Name]
	if list == nil {
		return "", nil
	}
	taken := v1.ResourceList{}
	for _, held := range list {
		if held.reservation == nil && held.blocks(who) {
			gangplanner.Add(taken, held.amounts)
		}
	}
	left := h.left(node, who, now)
	if left != nil && who.devices {
		return "", h.firstOn(node.Node().Name, who)
	}
	for _, name := range slices.Sorted(maps.Keys(who.amounts)) {
		amount, held := who.amounts[name], taken[name]
		if amount.IsZero() || offersNone(node, name) {
			continue
		}
		wanted := sum(amount, held)
		if free := gangplanner.Free(node, name); !held.IsZero() && free.Cmp(wanted) < 0 {
			return name, h.firstOn(node.Node().Name, who)
		}
		if free, reserved := left[name]; reserved && free.Cmp(wanted) < 0 {
			return name, h.firstOn(node.Node().Name, who)
		}
	}
	return "", nil
}

// offersNone tells whether a node has none of an extended resource: a DeviceClass serves what is held of it there.
func offersNone(node fwk.NodeInfo, name v1.ResourceName) bool {
	switch name {
	case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage, v1.ResourcePods:
		return false
	}
	return node.GetAllocatable().GetScalarResources()[name] == 0
}

// left returns what a seeker can use of a node beside the reserved places: what is free there now or will be at the start of the
// reservations, without these places. It has the resources of these only, and is nil where nothing is reserved.
func (h *holds) left(node fwk.NodeInfo, who *seeker, now time.Time) v1.ResourceList {
	var left v1.ResourceList
	var reservations []*reservation
	for _, held := range h.byNode[node.Node().Name] {
		if held.reservation == nil || !held.blocks(who) {
			continue
		}
		if left == nil {
			left = v1.ResourceList{}
		}
		for name, amount := range held.amounts {
			free, known := left[name]
			if !known {
				free = gangplanner.Free(node, name)
			}
			free.Sub(amount)
			left[name] = free
		}
		if !slices.Contains(reservations, held.reservation) {
			reservations = append(reservations, held.reservation)
		}
	}
	if left == nil {
		return nil
	}
	ending := gangplanner.Amounts(node, func(pod *v1.Pod) bool {
		return slices.ContainsFunc(reservations, func(res *reservation) bool { return res.awaits(pod, now) })
	})
	for name, amount := range ending {
		if free, known := left[name]; known {
			free.Add(amount)
			left[name] = free
		}
	}
	return left
}

// leftOn returns left of the nodes on which something is reserved, by their names.
func (h *holds) leftOn(nodes []fwk.NodeInfo, who *seeker, now time.Time) map[string]v1.ResourceList {
	left := map[string]v1.ResourceList{}
	for _, node := range nodes {
		if list := h.left(node, who, now); list != nil {
			left[node.Node().Name] = list
		}
	}
	return left
}

// firstOn returns a place that is held against a seeker on a node, that of the first gang by name.
func (h *holds) firstOn(node string, who *seeker) *hold {
	return firstOf(maps.Values(h.byNode[node]), who)
}

// firstOf returns a place that is held against a seeker, that of the first gang by name; nil for none.
func firstOf(list iter.Seq[*hold], who *seeker) (first *hold) {
	for held := range list {
		if held.blocks(who) && (first == nil || cmp.Or(strings.Compare(held.gang.String(), first.gang.String()), cmp.Compare(held.pod, first.pod)) < 0) {
			first = held
		}
	}
	return first
}

func sum(a, b resource.Quantity) resource.Quantity {
	c := a.DeepCopy()
	c.Add(b)
	return c
}
