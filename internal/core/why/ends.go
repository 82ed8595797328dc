package why

import (
	"cmp"
	"slices"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// limit bounds how many states are looked at in the search for the smallest sets.
const limit = 50_000

// item is an act that frees something on a node.
type item struct {
	act    Act
	weight int
	since  int64
	// effect is equal for items of which it does not matter which one is taken.
	effect string
	// devices is how many devices that are requested it frees at most.
	devices int
}

// search finds the smallest sets of items.
type search struct {
	left    int
	limited bool
}

// smallest returns the set of items of the smallest weight with which the pod fits on the node; of equal weights the one with the lowest
// priorities, then the oldest pods. It returns false if it does not fit with all of them.
func (s *search) smallest(w *world, n *Node, items []item) ([]item, bool) {
	if s.fits(w, n, nil) {
		return nil, true
	}
	if len(items) == 0 || !s.fits(w, n, items) {
		return nil, false
	}
	slices.SortStableFunc(items, compareItems)
	// Without the most expensive ones first: what is left cannot do without any of its items.
	best := slices.Clone(items)
	for i := range slices.Backward(items) {
		without := slices.Delete(slices.Clone(best), i, i+1)
		if s.fits(w, n, without) {
			best = without
		}
	}
	t := &tree{search: s, w: w, n: n, items: items, best: best, weight: weightOf(best), stop: 0}
	if t.proven = t.weight <= w.atLeast(n, items); t.proven {
		t.stop = max(0, s.left-ties)
	}
	t.grow(nil, 0, 0)
	return t.best, true
}

// ties is how many states are looked at on a node for a better set of a weight that is known to be the smallest.
const ties = 50

// atLeast returns a weight below which no set of items frees enough devices: as many of the lightest items as free enough when they are
// those with most devices.
func (w *world) atLeast(n *Node, items []item) int {
	need := 0
	demands := w.demands()
	if len(demands) == 1 {
		need = int(demands[0].want - n.stock(&demands[0]).free)
	}
	var devices, weights []int
	for i := range items {
		devices = append(devices, items[i].devices)
		weights = append(weights, items[i].weight)
	}
	slices.Sort(devices)
	slices.Sort(weights)
	sum := 0
	for i := 0; need > 0 && i < len(devices); i++ {
		need -= devices[len(devices)-1-i]
		sum += weights[i]
	}
	return sum
}

// fits asks whether the pod fits on a node after some items.
func (s *search) fits(w *world, n *Node, items []item) bool {
	s.left--
	acts := make([]Act, len(items))
	for i := range items {
		acts[i] = items[i].act
	}
	next, node := w.on(n, acts)
	return next.fits(node)
}

// tree enumerates sets of items.
type tree struct {
	*search
	w      *world
	n      *Node
	items  []item
	best   []item
	weight int
	// proven is true when no set has a smaller weight than the best; stop is what is left when the search for an equal one ends.
	proven bool
	stop   int
}

// grow adds each of the items from a position on. Of items with equal effects only the cheaper one is tried, unless it is in the set
// already.
func (t *tree) grow(set []item, from, weight int) {
	for i := from; i < len(t.items); i++ {
		one := t.items[i]
		if t.left <= t.stop {
			t.limited = t.limited || !t.proven
			return
		}
		if weight+one.weight > t.weight || t.skips(set, i) {
			continue
		}
		if !t.fits(t.w, t.n, slices.Concat(set, t.items[i:])) {
			return // Not even all that is left is enough.
		}
		next := append(slices.Clone(set), one)
		if !t.fits(t.w, t.n, next) {
			t.grow(next, i+1, weight+one.weight)
			continue
		}
		if compareSets(next, t.best) < 0 {
			t.best, t.weight = next, weight+one.weight
		}
	}
}

// skips tells whether an earlier item of the same effect and no higher cost is not in the set.
func (t *tree) skips(set []item, i int) bool {
	for k := range i {
		if t.items[k].effect == t.items[i].effect && !slices.ContainsFunc(set, func(s item) bool { return s.act == t.items[k].act }) {
			return true
		}
	}
	return false
}

func weightOf(items []item) int {
	sum := 0
	for i := range items {
		sum += items[i].weight
	}
	return sum
}

// compareItems orders items by what they cost.
func compareItems(a, b item) int {
	return cmp.Or(cmp.Compare(a.weight, b.weight), cmp.Compare(a.act.Priority, b.act.Priority), cmp.Compare(a.since, b.since),
		cmp.Compare(a.act.Pod, b.act.Pod), cmp.Compare(a.act.GPU, b.act.GPU))
}

// compareSets orders sets: by weight, number, highest priority, then item by item.
func compareSets(a, b []item) int {
	priority := func(set []item) (most int64) {
		most = -1 << 40
		for i := range set {
			most = max(most, int64(set[i].act.Priority))
		}
		return most
	}
	return cmp.Or(cmp.Compare(weightOf(a), weightOf(b)), cmp.Compare(len(a), len(b)), cmp.Compare(priority(a), priority(b)), slices.CompareFunc(a, b, compareItems))
}

// items lists what can be freed on a node: pods that end, and GPUs that are repaired.
func (w *world) items(n *Node, repairs bool) []item {
	var list []item
	for i := range w.holders[n.Name] {
		h := &w.holders[n.Name][i]
		if h.Permanent || slices.Contains(w.gone, h.Name) || !w.helps(n, h) {
			continue
		}
		one := item{since: h.Since, act: Act{Kind: EndPod, Pod: h.Name, Node: n.Name, Ending: h.Ending, Owner: h.Owner, Priority: h.Priority}}
		one.weight = one.act.weight()
		one.effect = w.effect(n, h)
		for _, d := range h.Devices {
			if d.Entry >= 0 && d.Entry < len(n.GPUs) && w.requestsOf(n.GPUs[d.Entry].Resource) {
				one.devices += d.Count
			}
		}
		list = append(list, one)
	}
	if !repairs {
		return list
	}
	seen := map[uint8]bool{}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		if g.State <= fleet.Degraded || seen[g.Physical] || slices.Contains(n.Silent, i) || !w.requestsOf(g.Resource) {
			continue
		}
		seen[g.Physical] = true
		one := item{act: Act{Kind: RepairGPU, Node: n.Name, GPU: int(g.Physical), Key: g.Resource}}
		one.weight = one.act.weight()
		one.effect = one.act.Node + string(rune('A'+g.Physical))
		one.devices = n.devicesOn(g.Physical)
		list = append(list, one)
	}
	return list
}

// devicesOn returns how many devices a physical GPU has in all.
func (n *Node) devicesOn(physical uint8) (count int) {
	for i := range n.GPUs {
		if g := &n.GPUs[i]; g.Physical == physical && g.Unit > 0 {
			count += int(sizeOf(g) / g.Unit)
		}
	}
	return count
}

func (w *world) requestsOf(resource string) bool {
	return slices.ContainsFunc(w.requests, func(s fleet.Shape) bool { return s.GPUs > 0 && s.Resource == resource })
}

// helps tells whether a pod has something that the pod which waits requests and does not find.
func (w *world) helps(n *Node, h *Holder) bool {
	cpu, memory := w.plain()
	if h.CPU > 0 && cpu > n.FreeCPU || h.Memory > 0 && memory > n.FreeMemory || h.Claims && w.claims != nil {
		return true
	}
	for _, name := range w.names {
		if h.Others[name] > 0 && w.others[name] > n.Others[name].Free {
			return true
		}
	}
	return slices.ContainsFunc(h.Devices, func(d Devices) bool {
		return d.Entry >= 0 && d.Entry < len(n.GPUs) && w.requestsOf(n.GPUs[d.Entry].Resource)
	})
}
