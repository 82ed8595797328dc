package gang

// Plan says where the members of a gang go, or why they do not. The error is that of a gang that cannot be. The fleet does not change.
func (p *Planner) Plan(t *Topology, g *Gang) (Plan, *Refusal, error) {
	if err := g.validate(t, p.fleet.Len()); err != nil {
		return Plan{}, nil, err
	}
	r := p.newRun(t, g)
	if refusal := r.boundApart(); refusal != nil {
		return Plan{}, refusal, nil
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
		return Plan{}, r.refuse(most), nil
	}
	for level := g.Preferred; level >= g.Required; level-- {
		if plan, ok := r.on(level, most); ok {
			return plan, nil, nil
		}
	}
	// The widest level is the required one, on which so many fit.
	return Plan{}, r.refuse(most), nil
}

// run is the planning of one gang.
type run struct {
	*Planner
	topology *Topology
	gang     *Gang
	row      *row
	// space has the combinations of members that are not bound; it is nil where there are too many.
	space *space
	// prefix is, by the number of members of the lowest index, the combination of those of them that are not bound.
	prefix []int
	// bound are the nodes with bound members.
	bound map[int]bool
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
	r.space, r.row = space, p.row(g.Classes, counts)
	r.prefix = make([]int, len(g.Members)+1)
	for i, m := range g.Members {
		r.prefix[i+1] = r.prefix[i]
		if m.Node == Unbound {
			r.prefix[i+1] += space.strides[m.Class]
		}
	}
	return r
}

// table returns what fits on a node, within the room that other rules leave.
func (r *run) table(i int) table {
	t := r.Planner.table(r.row, i, r.gang.Classes, r.space)
	limited := false
	for c := range r.gang.Classes {
		limited = limited || r.gang.Classes[c].Capacity != nil && r.gang.Classes[c].Capacity[i] < r.space.counts[c]
	}
	if !limited && !r.bound[i] {
		return t
	}
	kept := make(table, 0, len(t))
	for _, e := range t {
		if !r.allowed(e.state, i) {
			continue
		}
		if r.bound[i] {
			e.cost.Nodes = 0 // The gang has the node already.
		}
		kept = append(kept, e)
	}
	return kept
}

// allowed tells whether there is room for a combination on a node.
func (r *run) allowed(state, node int) bool {
	for c, n := range r.space.row(state) {
		if room := r.gang.Classes[c].Capacity; n > 0 && room != nil && n > room[node] {
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
		fit := r.room(d.nodes, all)
		return r.covered(func(state int) bool { return state <= fit })
	}
	sums := r.space.divide(r.tables(d.nodes), all)
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

// on returns the best plan for a number of members on a level.
func (r *run) on(level, members int) (Plan, bool) {
	var best part
	found := false
	for _, d := range r.topology.domains(level, r.gang.Required) {
		if !r.has(d) {
			continue
		}
		if p, ok := r.solve(d, members); ok {
			for _, i := range d.nodes {
				p.cost.Slack += r.fleet.Node(i).Idle()
			}
			if !found || p.cost.less(best.cost) {
				best, found = p, true
			}
		}
	}
	if !found {
		return Plan{}, false
	}
	return r.assign(level, members, best), true
}

// solve returns the best way to place a number of members in a domain.
func (r *run) solve(d domain, members int) (part, bool) {
	if r.gang.Segment.Size > 0 {
		return r.segments(d, members)
	}
	target := r.prefix[members]
	if len(r.space.counts) == 1 && r.room(d.nodes, target) < target {
		return part{}, false
	}
	sums := r.space.divide(r.tables(d.nodes), target)
	if !sums.reach[target] {
		return part{}, false
	}
	return part{cost: sums.costs[target], groups: []group{{nodes: d.nodes, rows: sums.rows(target)}}}, true
}

// room returns how many members of the only class fit on nodes, or a number from enough on.
func (r *run) room(nodes []int, enough int) int {
	fit := 0
	for _, i := range nodes {
		t := r.table(i)
		if fit += t[len(t)-1].state; fit >= enough {
			break
		}
	}
	return fit
}
