package why

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// bundle are acts that are made together or not at all.
type bundle struct {
	acts []Act
	cost wayCost
	// since is that of the pod that ends.
	since int64
}

// reduce returns changes of some kinds with which the gang fits, none of which can be left out: from all that can be changed it leaves out
// the most expensive ones first, as long as the planner has a plan.
func (s *gangSearch) reduce(g *gangWorld, allowed kindSet) ([]Act, bool) {
	list := s.bundles(g, allowed)
	fits := func(list []bundle) bool {
		s.asks--
		return g.with(actsOf(list)).fits()
	}
	if s.asks <= 0 {
		s.limited = true
		return nil, false
	}
	if !fits(list) {
		return nil, false
	}
	for size := max(1, len(list)/2); size > 0; size /= 2 {
		for end := len(list); end > 0; end -= size {
			if s.asks <= 0 {
				s.limited = true
				return actsOf(list), true
			}
			begin := max(0, end-size)
			if without := slices.Delete(slices.Clone(list), begin, end); fits(without) {
				list = without
			}
		}
	}
	return actsOf(list), true
}

func actsOf(list []bundle) []Act {
	var acts []Act
	for i := range list {
		acts = append(acts, list[i].acts...)
	}
	return acts
}

// bundles lists what can be changed on nodes, the cheapest first.
func (s *gangSearch) bundles(g *gangWorld, allowed kindSet) []bundle {
	known := map[string]bundle{}
	add := func(since int64, acts ...Act) {
		if !allowed.has(acts[0].Kind) {
			return
		}
		a := &acts[0]
		known[strings.Join([]string{string(a.Kind), a.Node, a.Pod, a.Key, string(rune('A' + a.GPU))}, "|")] = bundle{acts: acts, cost: wayOf(acts).cost, since: since}
	}
	for _, w := range g.classes {
		all := w.times(max(1, g.lacking()))
		for i := range w.nodes {
			n := &w.nodes[i]
			acts, ok := w.unblock(n)
			if !ok {
				continue
			}
			for _, a := range acts {
				if !opens(a.Kind) {
					add(0, a)
				}
			}
			for _, one := range all.items(n, true) {
				if s.members[one.act.Pod] == "" {
					add(one.since, one.act)
				}
			}
		}
	}
	for _, acts := range s.ends() {
		add(0, acts...)
	}
	return slices.SortedFunc(maps.Values(known), func(a, b bundle) int {
		x, y := &a.acts[0], &b.acts[0]
		return cmp.Or(cmp.Compare(a.cost.weight, b.cost.weight), cmp.Compare(a.cost.priority, b.cost.priority), cmp.Compare(a.since, b.since), cmp.Compare(x.Kind, y.Kind),
			cmp.Compare(x.Node, y.Node), cmp.Compare(x.Pod, y.Pod), cmp.Compare(x.GPU, y.GPU))
	})
}

// additions proposes nodes like an existing one, as few as are enough.
func (s *gangSearch) additions() {
	seen := map[string]bool{}
	var kinds []int
	for i := range s.g.nodes() {
		n := &s.g.nodes()[i]
		made := s.g.classes[0].emptied(n)
		key := made.looks() + "|" + s.g.domain(s.g.required, n.Name)
		if s.g.required >= len(s.g.in.Levels) {
			key = made.looks()
		}
		if n.Kind != "" && len(made.GPUs) > 0 && !seen[key] {
			seen[key] = true
			kinds = append(kinds, i)
		}
	}
	if len(kinds) > maxSets {
		s.limited = true
		kinds = kinds[:maxSets]
	}
	for _, i := range kinds {
		s.addLike(i)
	}
}

// addLike proposes the fewest nodes like one with which the gang fits.
func (s *gangSearch) addLike(i int) {
	n := &s.g.nodes()[i]
	acts := func(count int) []Act {
		return []Act{{Kind: AddNode, Node: n.Name, Key: n.Kind, Count: int64(count)}}
	}
	// Each of the nodes has a place for a member at least, or is of no use.
	low, high := 0, max(1, s.g.lacking()) // low do not suffice
	if !s.g.with(acts(high)).fits() {
		return
	}
	for high-low > 1 {
		if middle := (low + high) / 2; s.g.with(acts(middle)).fits() {
			high = middle
		} else {
			low = middle
		}
	}
	s.keep(acts(high))
}
