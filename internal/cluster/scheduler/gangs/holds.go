package gangs

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangview"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

// hold is a place on a node for a member that is not reserved there yet.
type hold struct {
	pod      types.UID
	gang     gangview.Key
	node     string
	requests []fleet.Shape
	// amounts are all that the member requests of the node.
	amounts v1.ResourceList
	// until is when the hold ends by itself; zero is never.
	until time.Time
	// lost is true for the place of a member that the gang has lost: the next one gets it. It counts for pods of a higher priority than the
	// gang's no more than the member would: one of these may have ended it.
	lost     bool
	priority int32
}

// against tells whether a hold keeps the place from pods of a gang, empty for none, and a priority.
func (h *hold) against(key gangview.Key, priority int32) bool {
	return h.gang != key && !(h.lost && h.priority < priority)
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

func (h *holds) add(made *hold) {
	h.take(made.pod)
	h.byPod[made.pod] = made
	if h.byNode[made.node] == nil {
		h.byNode[made.node] = map[types.UID]*hold{}
	}
	h.byNode[made.node][made.pod] = made
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

// found ends the hold of a lost member of a gang, that on the node if there is one, and returns it; nil for none.
func (h *holds) found(key gangview.Key, node string) *hold {
	var best *hold
	for _, held := range h.byPod {
		if held.lost && held.gang == key && (best == nil || held.node == node && best.node != node || (held.node == node) == (best.node == node) && held.pod < best.pod) {
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
func (h *holds) dropLost(key gangview.Key) {
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

// others returns what is held for other gangs than this one, of a priority, in a fixed order.
func (h *holds) others(key gangview.Key, priority int32) []*hold {
	list := slices.SortedFunc(maps.Values(h.byPod), func(a, b *hold) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.pod, b.pod))
	})
	return slices.DeleteFunc(list, func(held *hold) bool { return !held.against(key, priority) })
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

// lacks returns the resource of which a node has too little for a pod beside what is held there for other gangs, and for which gang.
func (h *holds) lacks(node fwk.NodeInfo, key gangview.Key, priority int32, amounts v1.ResourceList) (v1.ResourceName, gangview.Key, bool) {
	if h.byNode[node.Node().Name] == nil {
		return "", gangview.Key{}, false
	}
	taken := v1.ResourceList{}
	for _, held := range h.byNode[node.Node().Name] {
		if !held.against(key, priority) {
			continue
		}
		for name, amount := range held.amounts {
			sum := taken[name]
			sum.Add(amount)
			taken[name] = sum
		}
	}
	for _, name := range slices.Sorted(maps.Keys(amounts)) {
		amount, held := amounts[name], taken[name]
		if held.IsZero() || amount.IsZero() {
			continue
		}
		if free := gangplanner.Free(node, name); free.Cmp(sum(amount, held)) < 0 {
			return name, h.firstOn(node.Node().Name, key), true
		}
	}
	return "", gangview.Key{}, false
}

// firstOn returns the first other gang by name for which something is held on a node.
func (h *holds) firstOn(node string, key gangview.Key) (first gangview.Key) {
	for _, held := range h.byNode[node] {
		if held.gang != key && (first == (gangview.Key{}) || held.gang.String() < first.String()) {
			first = held.gang
		}
	}
	return first
}

func sum(a, b resource.Quantity) resource.Quantity {
	c := a.DeepCopy()
	c.Add(b)
	return c
}
