package gang

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Gone is the node, in a plan of another state, of a member whose node does not exist any more.
const Gone = -2

// Renew returns a plan that was made of another state of the fleet as it is in the present one: members whose places are still free keep
// them, and the others are planned beside them. The second result is the node of each member that keeps its place, Unbound for the others.
// The refusal says why there is no plan with these. The budget is for the members that are planned again: the error is ErrSteps where it is
// used up. To look at the places of the plan takes some microseconds for each member.
func (p *Planner) Renew(t *Topology, g *Gang, old *Plan) (plan Plan, kept []int, refusal *Refusal, err error) {
	if err := p.comparable(t, g, old); err != nil {
		return Plan{}, nil, nil, err
	}
	err = p.bounded(func() error {
		r := &run{Planner: p, topology: t, gang: g}
		kept = r.keep(old.Nodes)
		p.spent = 0
		if slices.Equal(kept, old.Nodes) {
			plan = *old
			return nil
		}
		plans, why, err := p.newRun(t, g.with(kept)).plans(1)
		if refusal = why; len(plans) > 0 {
			plan = plans[0]
		}
		return err
	})
	return plan, kept, refusal, err
}

// Stands tells whether holders are still what has to end: the gang gets the places of the plan when they have ended, and does not fit
// before, as far as the budget allows to say.
func (p *Planner) Stands(t *Topology, g *Gang, h *Holders, plan *Plan) (stands bool, err error) {
	if err := cmp.Or(p.comparable(t, g, plan), h.validate(p.fleet.Len())); err != nil {
		return false, err
	}
	err = p.bounded(func() error {
		sites, err := newSites(p.fleet, h)
		if err != nil {
			return err
		}
		e := &ending{run: &run{Planner: p, topology: t, gang: g}, sites: sites}
		if err := e.show(slices.Repeat([]bool{true}, len(h.List))); err != nil {
			return err
		}
		stands = slices.Equal(e.keep(plan.Nodes), plan.Nodes)
		return nil
	})
	if err != nil || !stands {
		return false, err
	}
	err = p.bounded(func() error {
		stands = !p.newRun(t, g).fitsOn(g.Required)
		return nil
	})
	if errors.Is(err, ErrSteps) {
		return true, nil
	}
	return stands, err
}

// comparable returns an error for a plan that is not of the gang.
func (p *Planner) comparable(t *Topology, g *Gang, plan *Plan) error {
	if err := g.validate(t, p.fleet.Len()); err != nil {
		return err
	}
	if len(plan.Nodes) != len(g.Members) {
		return fmt.Errorf("a plan for %d members of a gang of %d", len(plan.Nodes), len(g.Members))
	}
	for i, node := range plan.Nodes {
		if bound := g.Members[i].Node; node < Gone || node >= p.fleet.Len() || bound != Unbound && bound != node {
			return fmt.Errorf("member %d is planned for node %d and bound to node %d", i, node, bound)
		}
	}
	return nil
}

// keep places the members of a plan whose places are free, and returns their nodes, and those of bound members; Unbound for the others. It
// is not part of the budget.
func (r *run) keep(nodes []int) []int {
	budget := r.budget
	r.budget = Budget{}
	defer func() { r.budget = budget }()
	g := r.gang
	kept := make([]int, len(nodes))
	whole, segments := newSame(r.topology, g.Required), map[int]*same{}
	segment := func(i int) *same {
		if g.Segment.Size == 0 {
			return newSame(r.topology, Anywhere)
		}
		if segments[i/g.Segment.Size] == nil {
			segments[i/g.Segment.Size] = newSame(r.topology, g.Segment.Level)
		}
		return segments[i/g.Segment.Size]
	}
	for i, m := range g.Members {
		if kept[i] = m.Node; m.Node != Unbound {
			whole.take(m.Node)
			segment(i).take(m.Node)
		}
	}
	taken, left := map[[2]int]int32{}, cloneOthers(g.Others) // taken is by class and node
	order := make([]int, len(nodes))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(g.Members[a].Class, g.Members[b].Class) }) // as for tables
	for _, i := range order {
		m, node := g.Members[i], nodes[i]
		if m.Node != Unbound || node < 0 || !whole.has(node) || !segment(i).has(node) {
			continue
		}
		at := [2]int{m.Class, node}
		if most := g.Classes[m.Class].Capacity; most != nil && taken[at] >= most[node] {
			continue
		}
		if slices.ContainsFunc(left, func(o Other) bool { return o.Wants[m.Class] > o.Free[node] }) {
			continue
		}
		mark := r.fleet.Checkpoint()
		w := walk{Planner: r.Planner, node: node}
		if _, ok := w.member(&g.Classes[m.Class]); !ok {
			r.fleet.Rollback(mark)
			continue
		}
		r.fleet.Commit(mark)
		kept[i] = node
		taken[at]++
		take(left, m.Class, node, 1)
		whole.take(node)
		segment(i).take(node)
	}
	return kept
}

// same is the domain of a level that some members are in, none before the first of them.
type same struct {
	topology *Topology
	level    int
	domain   int32
}

func newSame(t *Topology, level int) *same { return &same{topology: t, level: level, domain: none} }

// has tells whether a node is in the domain.
func (s *same) has(node int) bool {
	if s.level < 0 {
		return true
	}
	d := s.topology.of[s.level][node]
	return d != none && (s.domain == none || s.domain == d)
}

// take notes a member on a node.
func (s *same) take(node int) {
	if s.level >= 0 {
		s.domain = s.topology.of[s.level][node]
	}
}

// with returns the gang with members that are on nodes, and what other rules let run beside these.
func (g *Gang) with(kept []int) *Gang {
	next := *g
	next.Members, next.Classes, next.Others = slices.Clone(g.Members), slices.Clone(g.Classes), cloneOthers(g.Others)
	copied := make([]bool, len(next.Classes))
	for i, node := range kept {
		m := &next.Members[i]
		if m.Node != Unbound || node == Unbound {
			continue
		}
		m.Node = node
		take(next.Others, m.Class, node, 1)
		if c := &next.Classes[m.Class]; c.Capacity != nil {
			if !copied[m.Class] {
				copied[m.Class], c.Capacity = true, slices.Clone(c.Capacity)
			}
			c.Capacity[node]--
		}
	}
	return &next
}
