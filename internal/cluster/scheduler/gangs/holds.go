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
	// lost is true for the place of a member that the gang has lost: the next one gets it.
	lost bool
}

// holds are the places that are held.
type holds struct {
	byPod  map[types.UID]*hold
	byNode map[string]map[types.UID]*hold
	// count is how many there are, to read without the lock.
	count *atomic.Int64
}

func newHolds() holds {
	return holds{byPod: map[types.UID]*hold{}, byNode: map[string]map[types.UID]*hold{}, count: &atomic.Int64{}}
}

func (h *holds) add(made *hold) {
	h.remove(made.pod)
	h.byPod[made.pod] = made
	if h.byNode[made.node] == nil {
		h.byNode[made.node] = map[types.UID]*hold{}
	}
	h.byNode[made.node][made.pod] = made
	h.count.Store(int64(len(h.byPod)))
}

func (h *holds) remove(pod types.UID) {
	old := h.byPod[pod]
	if old == nil {
		return
	}
	delete(h.byPod, pod)
	delete(h.byNode[old.node], pod)
	if len(h.byNode[old.node]) == 0 {
		delete(h.byNode, old.node)
	}
	h.count.Store(int64(len(h.byPod)))
}

// found ends the hold of a lost member of a gang, that on the node if there is one.
func (h *holds) found(key gangview.Key, node string) {
	var best *hold
	for _, held := range h.byPod {
		if held.lost && held.gang == key && (best == nil || held.node == node && best.node != node || (held.node == node) == (best.node == node) && held.pod < best.pod) {
			best = held
		}
	}
	if best != nil {
		h.remove(best.pod)
	}
}

// dropLost ends the holds of all lost members of a gang.
func (h *holds) dropLost(key gangview.Key) {
	for pod, held := range h.byPod {
		if held.lost && held.gang == key {
			h.remove(pod)
		}
	}
}

// expire ends the holds whose time is over, and returns whether there were any.
func (h *holds) expire(now time.Time) bool {
	any := false
	for pod, held := range h.byPod {
		if !held.until.IsZero() && now.After(held.until) {
			h.remove(pod)
			any = true
		}
	}
	return any
}

// others returns what is held for other gangs than this one, in a fixed order.
func (h *holds) others(key gangview.Key) []*hold {
	list := slices.SortedFunc(maps.Values(h.byPod), func(a, b *hold) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.pod, b.pod))
	})
	return slices.DeleteFunc(list, func(held *hold) bool { return held.gang == key })
}

// lacks returns the resource of which a node has too little for a pod beside what is held there for other gangs, and for which gang.
func (h *holds) lacks(node fwk.NodeInfo, key gangview.Key, amounts v1.ResourceList) (v1.ResourceName, gangview.Key, bool) {
	taken, of := v1.ResourceList{}, gangview.Key{}
	for _, held := range h.byNode[node.Node().Name] {
		if held.gang == key {
			continue
		}
		for name, amount := range held.amounts {
			sum := taken[name]
			sum.Add(amount)
			taken[name] = sum
		}
		if of == (gangview.Key{}) || held.gang.String() < of.String() {
			of = held.gang
		}
	}
	for _, name := range slices.Sorted(maps.Keys(amounts)) {
		amount, held := amounts[name], taken[name]
		if held.IsZero() || amount.IsZero() {
			continue
		}
		if free := free(node, name); free.Cmp(sum(amount, held)) < 0 {
			return name, of, true
		}
	}
	return "", of, false
}

func sum(a, b resource.Quantity) resource.Quantity {
	c := a.DeepCopy()
	c.Add(b)
	return c
}

// free returns what no pod of a node has of a resource.
func free(node fwk.NodeInfo, name v1.ResourceName) resource.Quantity {
	all, used := node.GetAllocatable(), node.GetRequested()
	switch name {
	case v1.ResourceCPU:
		return *resource.NewMilliQuantity(all.GetMilliCPU()-used.GetMilliCPU(), resource.DecimalSI)
	case v1.ResourceMemory:
		return *resource.NewQuantity(all.GetMemory()-used.GetMemory(), resource.BinarySI)
	case v1.ResourceEphemeralStorage:
		return *resource.NewQuantity(all.GetEphemeralStorage()-used.GetEphemeralStorage(), resource.BinarySI)
	case v1.ResourcePods:
		return *resource.NewQuantity(int64(all.GetAllowedPodNumber()-len(node.GetPods())), resource.DecimalSI)
	}
	return *resource.NewQuantity(all.GetScalarResources()[name]-used.GetScalarResources()[name], resource.DecimalSI)
}
