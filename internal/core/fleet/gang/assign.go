package gang

import (
	"slices"
)

// assign gives the members of a solution their nodes, so that members of consecutive index are next to one another.
func (r *run) assign(level, members int, p part) Plan {
	plan := Plan{Nodes: make([]int, len(r.gang.Members)), Placed: members, Level: level, Cost: p.cost, Exact: !r.rough}
	for i, m := range r.gang.Members {
		plan.Nodes[i] = m.Node
		if m.Node != Unbound && i >= members {
			plan.Placed++
		}
	}
	for _, g := range p.groups {
		r.fill(&plan, members, g)
	}
	for _, node := range plan.Nodes {
		if node != Unbound {
			plan.Domain = r.topology.Domain(level, node)
			break
		}
	}
	return plan
}

// fill gives the members of a group its nodes: those of each class in the order of their index, the nodes in the order of their place in
// the topology.
func (r *run) fill(plan *Plan, members int, g group) {
	places := make([]int, len(g.nodes))
	for k := range places {
		places[k] = k
	}
	slices.SortFunc(places, func(a, b int) int { return int(r.topology.order[g.nodes[a]] - r.topology.order[g.nodes[b]]) })
	at := make([]int, len(r.gang.Classes))      // by class the place that gets the next member
	given := make([]int32, len(r.gang.Classes)) // and how many it has got
	for i, m := range r.gang.Members[:members] {
		if m.Node != Unbound || g.segments != nil && !slices.Contains(g.segments, i/r.gang.Segment.Size) {
			continue
		}
		c := m.Class
		for at[c] < len(places) && given[c] == g.rows[places[at[c]]][c] {
			at[c]++
			given[c] = 0
		}
		if at[c] < len(places) {
			plan.Nodes[i] = g.nodes[places[at[c]]]
			given[c]++
		}
	}
}
