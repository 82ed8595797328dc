package why

import (
	"cmp"
	"slices"
)

// way is how a number of members can fit on a node.
type way struct {
	acts []Act
	cost wayCost
}

// wayCost orders ways: by weight, then the highest priority of a pod that ends, then the number of acts.
type wayCost struct {
	weight   int
	priority int64
	acts     int
}

const noPriority = -1 << 40

func (c wayCost) plus(d wayCost) wayCost {
	return wayCost{c.weight + d.weight, max(c.priority, d.priority), c.acts + d.acts}
}

func (c wayCost) less(d wayCost) bool {
	return cmp.Or(cmp.Compare(c.weight, d.weight), cmp.Compare(c.priority, d.priority), cmp.Compare(c.acts, d.acts)) < 0
}

func wayOf(acts []Act) way {
	w := way{acts: acts, cost: wayCost{priority: noPriority, acts: len(acts)}}
	for i := range acts {
		w.cost.weight += acts[i].weight()
		if acts[i].Kind == EndPod {
			w.cost.priority = max(w.cost.priority, int64(acts[i].Priority))
		}
	}
	return w
}

// times is the world of so many equal pods that have to be on one node.
func (w *world) times(count int) *world {
	next := *w
	next.requests = slices.Repeat(w.requests, count)
	next.others = make(map[string]int64, len(w.others))
	for name, amount := range w.others {
		next.others[name] = amount * int64(count)
	}
	return &next
}

// lacking is how many members have to get a node.
func (g *gangWorld) lacking() int { return g.min - g.in.Placed }

// allWays returns for each node the cheapest ways in which one member of a class fits there, two and so on.
func (s *gangSearch) allWays(g *gangWorld, class int, allowed kindSet) [][]way {
	ways := make([][]way, len(g.nodes()))
	for i := range ways {
		ways[i] = s.ways(g, class, i, allowed)
	}
	return ways
}

func (s *gangSearch) ways(g *gangWorld, class, node int, allowed kindSet) (list []way) {
	w := g.classes[class]
	n := &w.nodes[node]
	acts, ok := w.unblock(n)
	if !ok || len(w.model(n)) > 0 {
		return nil
	}
	// An agent that does not run is started only where that is needed.
	bare := slices.DeleteFunc(slices.Clone(acts), func(a Act) bool { return a.Kind == StartAgent })
	if slices.ContainsFunc(bare, func(a Act) bool { return !allowed.has(a.Kind) }) {
		return nil
	}
	most := g.lacking()
	if g.in.Alone[class] {
		most = min(most, 1)
	}
	for k := 1; k <= most; k++ {
		found, ok := s.way(w.times(k), n, bare, allowed)
		if !ok && len(bare) < len(acts) && allowed.has(StartAgent) {
			found, ok = s.way(w.times(k), n, acts, allowed)
		}
		if !ok {
			break
		}
		list = append(list, found)
	}
	return list
}

// way returns the cheapest way in which a pod fits on a node after some acts.
func (s *gangSearch) way(w *world, n *Node, acts []Act, allowed kindSet) (way, bool) {
	next, node := w.on(n, acts)
	items := slices.DeleteFunc(next.items(node, allowed.has(RepairGPU)), func(i item) bool {
		return !allowed.has(i.act.Kind) || s.members[i.act.Pod] != ""
	})
	set, ok := s.smallest(next, node, items)
	if !ok {
		return way{}, false
	}
	acts = slices.Clone(acts)
	for i := range set {
		acts = append(acts, set[i].act)
	}
	return wayOf(acts), true
}

// domains are the positions of the nodes of each domain of the required level which has all nodes with members, by name.
func (g *gangWorld) domains() [][]int {
	byName := map[string][]int{}
	var names []string
	for i := range g.nodes() {
		name := g.domain(g.required, g.nodes()[i].Name)
		if name == "" {
			continue
		}
		if byName[name] == nil {
			names = append(names, name)
		}
		byName[name] = append(byName[name], i)
	}
	slices.Sort(names)
	var list [][]int
	for _, name := range names {
		if !slices.ContainsFunc(g.in.Members, func(m GangMember) bool { return m.Node != "" && g.domain(g.required, m.Node) != name }) {
			list = append(list, byName[name])
		}
	}
	return list
}

// divide divides the members that lack among the nodes of a domain in the cheapest ways, and returns the acts of the cheapest domain.
func (s *gangSearch) divide(g *gangWorld, ways [][]way) ([]Act, bool) {
	var best way
	found := false
	for _, nodes := range g.domains() {
		if w, ok := divideAmong(nodes, ways, g.lacking()); ok && (!found || w.cost.less(best.cost)) {
			best, found = w, true
		}
	}
	return best.acts, found
}

// divideAmong divides a number of members among nodes.
func divideAmong(nodes []int, ways [][]way, need int) (way, bool) {
	type cell struct {
		reached bool
		cost    wayCost
	}
	cells := make([]cell, need+1)
	cells[0] = cell{reached: true, cost: wayCost{priority: noPriority}}
	choices := make([][]int32, len(nodes))
	for p, i := range nodes {
		if len(ways[i]) == 0 {
			continue
		}
		choice := make([]int32, need+1)
		for have := need; have > 0; have-- {
			for k := 1; k <= len(ways[i]) && k <= have; k++ {
				rest := cells[have-k]
				if cost := rest.cost.plus(ways[i][k-1].cost); rest.reached && (!cells[have].reached || cost.less(cells[have].cost)) {
					cells[have], choice[have] = cell{true, cost}, int32(k)
				}
			}
		}
		choices[p] = choice
	}
	if !cells[need].reached {
		return way{}, false
	}
	var acts []Act
	have := need
	for p := range slices.Backward(nodes) {
		if choices[p] == nil || choices[p][have] == 0 {
			continue
		}
		k := int(choices[p][have])
		acts = slices.Concat(ways[nodes[p]][k-1].acts, acts)
		have -= k
	}
	return way{acts: acts, cost: cells[need].cost}, true
}
