package gang

import (
	"errors"
	"slices"
)

// Plan says where the members of a gang go, or why they do not. The error is that of a gang that cannot be. The fleet does not change.
func (p *Planner) Plan(t *Topology, g *Gang) (Plan, *Refusal, error) {
	plans, refusal, err := p.Plans(t, g, 1)
	if len(plans) == 0 {
		return Plan{}, refusal, err
	}
	return plans[0], refusal, err
}

// Plans returns up to a number of plans, the best first: for the narrowest level on which the gang fits the best plan of each domain, then
// those of the wider levels that differ from all before. All of them place as many members. A gang that is planned class by class has one.
// The error is ErrSteps where the budget is used up.
func (p *Planner) Plans(t *Topology, g *Gang, limit int) (plans []Plan, refusal *Refusal, err error) {
	if err := g.validate(t, p.fleet.Len()); err != nil {
		return nil, nil, err
	}
	err = p.bounded(func() (err error) {
		plans, refusal, err = p.newRun(t, g).plans(limit)
		return err
	})
	if errors.Is(err, ErrSteps) && p.budget.Rough && !p.stopped && g.Segment.Size == 0 {
		err = p.bounded(func() (err error) {
			plans, refusal, err = p.newRun(t, g).byClass()
			return err
		})
	}
	return plans, refusal, err
}

// plans is Plans for a gang that can be.
func (r *run) plans(limit int) ([]Plan, *Refusal, error) {
	t, g := r.topology, r.gang
	if refusal := r.boundApart(); refusal != nil {
		return nil, refusal, nil
	}
	if r.space == nil {
		return r.byClass()
	}
	most := 0
	for _, d := range t.domains(g.Required, g.Required) {
		if r.has(d) {
			most = max(most, r.most(d))
		}
	}
	if most < g.Min {
		return nil, r.refuse(most), nil
	}
	var plans []Plan
	for level := g.Preferred; level >= g.Required && len(plans) < limit; level-- {
		plans = r.on(level, most, plans, limit)
	}
	if len(plans) == 0 {
		// The widest level is the required one, on which so many fit.
		return nil, r.refuse(most), nil
	}
	return plans, nil, nil
}

// run is the planning of one gang.
type run struct {
	*Planner
	topology *Topology
	gang     *Gang
	row      *row // nil before it is needed
	// key names the classes where tables are sought by the content of nodes only; empty where they are kept by node.
	key string
	// rough is true when members of one class were divided without that all ways were compared.
	rough bool
	// offer returns what fits on a node, instead of the planner's tables; nil for these.
	offer func(node int) table
	// space has the combinations of members that are not bound; it is nil where there are too many.
	space *space
	// prefix is, by the number of members of the lowest index, the combination of those of them that are not bound.
	prefix []int
	// bound are the nodes with bound members.
	bound map[int]bool
	// left are the gang's Others beside the members that have been placed, where it is planned class by class.
	left []Other
}

func (p *Planner) newRun(t *Topology, g *Gang) *run {
	r := &run{Planner: p, topology: t, gang: g, bound: map[int]bool{}}
	counts := make([]int32, len(g.Classes))
	for _, m := range g.Members {
		if m.Node == Unbound {
			counts[m.Class]++
		} else {
			r.bound[m.Node] = true
		}
	}
	space, ok := newSpace(counts)
	if !ok {
		return r
	}
	r.spend(space.size * len(counts))
	r.space = space
	r.prefix = make([]int, len(g.Members)+1)
	for i, m := range g.Members {
		r.prefix[i+1] = r.prefix[i]
		if m.Node == Unbound {
			r.prefix[i+1] += space.strides[m.Class]
		}
	}
	return r
}

// table returns what fits on a node, within the capacity that other rules leave.
func (r *run) table(i int) table {
	t := r.whole(i)
	refused := func(e entry) bool { return !r.allows(r.space.row(e.state), i) }
	if !r.bound[i] && (r.allows(r.space.counts, i) || !slices.ContainsFunc(t, refused)) {
		return t
	}
	kept := make(table, 0, len(t))
	for _, e := range t {
		if refused(e) {
			continue
		}
		if r.bound[i] {
			e.cost.Nodes = 0 // The gang has the node already.
		}
		kept = append(kept, e)
	}
	return kept
}

// whole is table without the capacity.
func (r *run) whole(i int) table {
	if r.offer != nil {
		return r.offer(i)
	}
	if r.key != "" {
		return r.byContent.of(r.key, r.fleet.Node(i), func() table { return r.compute(i, r.gang.Classes, r.space) })
	}
	if r.row == nil {
		r.row = r.Planner.row(r.gang.Classes, r.space.counts)
	}
	return r.Planner.table(r.row, i, r.gang.Classes, r.space)
}

// allows tells whether other rules than those of package fleet let a number of members of each class run on a node.
func (r *run) allows(row []int32, node int) bool {
	for c, n := range row {
		if most := r.gang.Classes[c].Capacity; n > 0 && most != nil && n > most[node] {
			return false
		}
	}
	for k := range r.gang.Others {
		if !r.gang.Others[k].fits(row, node) {
			return false
		}
	}
	return true
}

// has tells whether a domain has all nodes to which members are bound.
func (r *run) has(d domain) bool {
	found := 0
	for _, i := range d.nodes {
		if r.bound[i] {
			found++
		}
	}
	return found == len(r.bound)
}

// tables are those of the nodes of a domain, in order.
func (r *run) tables(nodes []int) []table {
	tables := make([]table, len(nodes))
	for k, i := range nodes {
		tables[k] = r.table(i)
	}
	return tables
}

// most returns how many members of the lowest index fit in a domain.
func (r *run) most(d domain) int {
	members := len(r.gang.Members)
	if r.gang.Segment.Size > 0 {
		low, high := 0, members // low fit
		for low < high {
			middle := (low + high + 1) / 2
			if _, ok := r.segments(d, middle); ok {
				low = middle
			} else {
				high = middle - 1
			}
		}
		return low
	}
	all := r.prefix[members]
	if len(r.space.counts) == 1 {
		fit := r.capacity(d.nodes, all)
		return r.covered(func(state int) bool { return state <= fit })
	}
	sums := r.divide(r.tables(d.nodes), all)
	return r.covered(func(state int) bool { return sums.reach[state] })
}

// covered returns how many members of the lowest index have a place if the combinations do for which fits is true.
func (r *run) covered(fits func(state int) bool) int {
	most := 0
	for members, state := range r.prefix {
		if !fits(state) {
			break
		}
		most = members
	}
	return most
}

// part is a solution for one domain.
type part struct {
	cost   Cost
	groups []group
}

// group are nodes with the members that are divided among them.
type group struct {
	nodes []int
	// rows are, by node, how many members of each class it gets.
	rows [][]int32
	// segments are the numbers of the segments whose members these are, ascending; nil stands for all members.
	segments []int
}

// on adds the best plan of each domain of a level for a number of members to the plans of narrower levels, the best first, up to a limit.
func (r *run) on(level, members int, plans []Plan, limit int) []Plan {
	var parts []part
	for _, d := range r.topology.domains(level, r.gang.Required) {
		if !r.has(d) {
			continue
		}
		if p, ok := r.solve(d, members); ok {
			for _, i := range d.nodes {
				p.cost.Slack += r.fleet.Node(i).Idle()
			}
			if limit == 1 && len(parts) == 1 {
				if p.cost.less(parts[0].cost) {
					parts[0] = p
				}
				continue
			}
			parts = append(parts, p)
		}
	}
	slices.SortStableFunc(parts, func(a, b part) int {
		switch {
		case a.cost.less(b.cost):
			return -1
		case b.cost.less(a.cost):
			return 1
		}
		return 0
	})
	for _, p := range parts {
		if len(plans) >= limit {
			break
		}
		plan := r.assign(level, members, p)
		if !slices.ContainsFunc(plans, func(other Plan) bool { return slices.Equal(other.Nodes, plan.Nodes) }) {
			plans = append(plans, plan)
		}
	}
	return plans
}

// solve returns the best way to place a number of members in a domain.
func (r *run) solve(d domain, members int) (part, bool) {
	if r.gang.Segment.Size > 0 {
		return r.segments(d, members)
	}
	target := r.prefix[members]
	if len(r.space.counts) == 1 && r.capacity(d.nodes, target) < target {
		return part{}, false
	}
	cost, rows, ok := r.division(d, target)
	return part{cost: cost, groups: []group{{nodes: d.nodes, rows: rows}}}, ok
}

// capacity returns how many members of the only class fit on nodes, or a number from enough on.
func (r *run) capacity(nodes []int, enough int) int {
	fit := 0
	for _, i := range nodes {
		t := r.table(i)
		if fit += t[len(t)-1].state; fit >= enough {
			break
		}
	}
	return fit
}
