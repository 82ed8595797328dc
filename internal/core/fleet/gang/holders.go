package gang

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// MaxHolders is how many holders there can be. A holder can have fleet.MaxPods pods.
const MaxHolders = 1 << 20

// compare returns a negative number when w is better.
func (w *worth) compare(other *worth) int {
	return cmp.Or(w.compareEnded(other), cmp.Compare(other.level, w.level), cmp.Compare(other.started, w.started),
		cmp.Compare(w.importance, other.importance))
}

// compareEnded compares what Ended.Exact is about.
func (w *worth) compareEnded(other *worth) int {
	return cmp.Or(cmp.Compare(w.violations, other.violations), cmp.Compare(w.priority, other.priority), cmp.Compare(w.pods, other.pods))
}

// site is a node that has something of holders.
type site struct {
	// holders are positions in Holders.List, ascending. The victims of the question have the same order.
	holders  []int
	question fleet.Preemption
	// shown are the holders without which the fleet has the node now.
	shown []bool
	known map[variant]*options
}

// local returns the positions in site.holders of the holders of a set.
func (s *site) local(set []bool) []int {
	var list []int
	for k, h := range s.holders {
		if set[h] {
			list = append(list, k)
		}
	}
	return list
}

// differs tells whether the node is shown with or without other holders than those of a set.
func (s *site) differs(set []bool) bool {
	for k, h := range s.holders {
		if s.shown[k] != set[h] {
			return true
		}
	}
	return false
}

// positions returns the members of a set, ascending.
func positions(set []bool) []int {
	var list []int
	for i, has := range set {
		if has {
			list = append(list, i)
		}
	}
	return list
}

// validate returns an error for holders that cannot be, apart from what a node has.
func (h *Holders) validate(nodes int) error {
	if len(h.List) > MaxHolders {
		return fmt.Errorf("%d holders; want at most %d", len(h.List), MaxHolders)
	}
	for i := range h.List {
		if err := h.List[i].validate(i, h, nodes); err != nil {
			return fmt.Errorf("holder %d: %w", i, err)
		}
	}
	for i := range h.Held {
		held := &h.Held[i]
		if held.Node < 0 || held.Node >= nodes || !inList(held.Holders, len(h.List)) {
			return fmt.Errorf("holding %d of the holders %v on node %d; want holders, each once, and a node that exist", i, held.Holders, held.Node)
		}
	}
	return nil
}

// validate returns an error for a holder that cannot be.
func (h *Holder) validate(number int, all *Holders, nodes int) error {
	v := fleet.Victim{Pods: h.Pods, Budgets: h.Budgets}
	if err := v.Validate(len(all.Budgets)); err != nil {
		return err
	}
	if !inList(h.With, len(all.List)) || slices.Contains(h.With, number) {
		return fmt.Errorf("the holders %v end with it; want others, each once", h.With)
	}
	at := make([]int, 0, len(h.Parts))
	for _, part := range h.Parts {
		at = append(at, part.Node)
	}
	if !inList(at, nodes) {
		return fmt.Errorf("parts on the nodes %v; want nodes that exist, each once", at)
	}
	return nil
}

// inList tells whether all positions are those of a list of a length, each at most once.
func inList(list []int, length int) bool {
	if len(list) > 1 {
		list = slices.Sorted(slices.Values(list))
	}
	for k, i := range list {
		if i < 0 || i >= length || k > 0 && list[k-1] == i {
			return false
		}
	}
	return true
}

// newSites returns the sites by node; nil for a node that no holder has something of.
func newSites(f *fleet.Fleet, h *Holders) ([]*site, error) {
	sites := make([]*site, f.Len())
	at := func(node int) *site {
		if sites[node] == nil {
			sites[node] = &site{question: fleet.Preemption{Node: copyOf(f.Node(node))}, known: map[variant]*options{}}
		}
		return sites[node]
	}
	for i := range h.List {
		for _, part := range h.List[i].Parts {
			s := at(part.Node)
			s.holders = append(s.holders, i)
		}
	}
	for i := range h.Held {
		s := at(h.Held[i].Node)
		s.holders = append(s.holders, h.Held[i].Holders...)
	}
	for _, s := range sites {
		if s != nil {
			slices.Sort(s.holders)
			s.holders = slices.Compact(s.holders)
			s.shown, s.question.Victims = make([]bool, len(s.holders)), make([]fleet.Victim, len(s.holders))
			for k, i := range s.holders {
				s.question.Victims[k] = fleet.Victim{Pods: h.List[i].Pods}
			}
		}
	}
	for i := range h.List {
		for _, part := range h.List[i].Parts {
			s := sites[part.Node]
			k, _ := slices.BinarySearch(s.holders, i)
			s.question.Victims[k].CPU, s.question.Victims[k].Memory = part.CPU, part.Memory
		}
	}
	for i := range h.Held {
		held := &h.Held[i]
		s := sites[held.Node]
		victims := make([]int, len(held.Holders))
		for k, holder := range held.Holders {
			victims[k], _ = slices.BinarySearch(s.holders, holder)
		}
		s.question.Held = append(s.question.Held, fleet.Held{Victims: victims, GPUs: held.GPUs, Amount: held.Amount, Traffic: held.Traffic})
	}
	for _, s := range sites {
		if s != nil {
			if _, err := s.question.Without(nil); err != nil {
				return nil, err
			}
		}
	}
	return sites, nil
}

// copyOf returns a copy of a node that does not change with it.
func copyOf(n *fleet.Node) *fleet.Node {
	c := *n
	c.GPUs = slices.Clone(n.GPUs)
	return &c
}

// closures returns, by holder, itself and those that end with it, ascending.
func closures(h *Holders) [][]int {
	list := make([][]int, len(h.List))
	own := make([]int, len(h.List)) // of all that end with no other
	for i := range h.List {
		own[i] = i
		if len(h.List[i].With) == 0 {
			list[i] = own[i : i+1 : i+1]
			continue
		}
		seen := map[int]bool{i: true}
		for todo := []int{i}; len(todo) > 0; {
			next := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			for _, other := range h.List[next].With {
				if !seen[other] {
					seen[other] = true
					todo = append(todo, other)
				}
			}
		}
		for other := range seen {
			list[i] = append(list[i], other)
		}
		slices.Sort(list[i])
	}
	return list
}
