package gang

import (
	"slices"
)

// segments returns the best way to place the segments of a number of members in a domain: each in one domain of the segments' level.
func (r *run) segments(d domain, members int) (part, bool) {
	cells := r.cells(d)
	kinds, ok := r.kinds(cells, members)
	if !ok {
		return part{}, false
	}
	outer, ok := newSpace(kinds.counts)
	if !ok {
		return part{}, false // More kinds of segments than can be planned at once.
	}
	tables, inner := make([]table, len(cells)), make([]*sums, len(cells))
	for c, cell := range cells {
		if tables[c], inner[c] = r.cell(cell, kinds, c, outer); tables[c] == nil {
			return part{}, false
		}
	}
	target := outer.number(kinds.counts)
	r.spend(outer.size*(len(kinds.counts)+len(cells)) + outer.work(tables, target))
	sums := outer.divide(tables, target)
	if !sums.reach[target] {
		return part{}, false
	}
	// The cost of the state 0 of a cell is that of the segments that have to be there.
	result := part{cost: sums.costs[target]}
	next := make([]int, len(kinds.counts))
	for c, row := range sums.rows(target) {
		g := group{nodes: cells[c].nodes, segments: slices.Clone(kinds.pinned[c])}
		state := kinds.base[c]
		for k, n := range row {
			state += int(n) * kinds.states[k]
			g.segments = append(g.segments, kinds.segments[k][next[k]:next[k]+int(n)]...)
			next[k] += int(n)
		}
		if state == 0 {
			continue
		}
		if kinds.base[c] > 0 {
			result.cost = result.cost.plus(inner[c].costs[kinds.base[c]])
		}
		slices.Sort(g.segments)
		g.rows = inner[c].rows(state)
		result.groups = append(result.groups, g)
	}
	return result, true
}

// cells returns the domains of the segments' level within a domain, in the order of their nodes' place.
func (r *run) cells(d domain) []domain {
	level := r.topology.of[r.gang.Segment.Level]
	positions, cells := map[int32]int{}, []domain(nil)
	nodes := slices.Clone(d.nodes)
	slices.SortFunc(nodes, func(a, b int) int { return int(r.topology.order[a] - r.topology.order[b]) })
	for _, i := range nodes {
		if level[i] == none {
			continue
		}
		p, known := positions[level[i]]
		if !known {
			p = len(cells)
			positions[level[i]] = p
			cells = append(cells, domain{})
		}
		cells[p].nodes = append(cells[p].nodes, i)
	}
	return cells
}

// kinds are the segments of a gang by the combination of members that each has.
type kinds struct {
	// states, counts and segments are, by kind, the combination, how many segments have it, and which these are.
	states   []int
	counts   []int32
	segments [][]int
	// base and pinned are, by cell, the members of the segments that have to be there, since members of them are bound there.
	base   []int
	pinned [][]int
}

// kinds returns the segments of a number of members. The result is false if members of one segment are bound in several cells, or in none
// of these.
func (r *run) kinds(cells []domain, members int) (kinds, bool) {
	k := kinds{base: make([]int, len(cells)), pinned: make([][]int, len(cells))}
	size := r.gang.Segment.Size
	for first := 0; first < len(r.gang.Members); first += size {
		number, state := first/size, 0
		if first < members {
			state = r.prefix[min(members, first+size)] - r.prefix[first]
		}
		cell, ok := r.boundCell(cells, first)
		if !ok {
			return k, false
		}
		switch {
		case state == 0:
		case cell >= 0:
			k.base[cell] += state
			k.pinned[cell] = append(k.pinned[cell], number)
		default:
			at := slices.Index(k.states, state)
			if at < 0 {
				at = len(k.states)
				k.states, k.counts, k.segments = append(k.states, state), append(k.counts, 0), append(k.segments, nil)
			}
			k.counts[at]++
			k.segments[at] = append(k.segments[at], number)
		}
	}
	if len(k.counts) == 0 {
		k.states, k.counts, k.segments = []int{0}, []int32{0}, [][]int{nil}
	}
	return k, true
}

// boundCell returns the cell to which members of the segment that begins with a member are bound, or -1. The result is false if there are
// several, or if it is in none.
func (r *run) boundCell(cells []domain, first int) (int, bool) {
	cell := -1
	for _, m := range r.gang.Members[first:min(len(r.gang.Members), first+r.gang.Segment.Size)] {
		if m.Node == Unbound {
			continue
		}
		at := slices.IndexFunc(cells, func(d domain) bool { return slices.Contains(d.nodes, m.Node) })
		if at < 0 || cell >= 0 && at != cell {
			return 0, false
		}
		cell = at
	}
	return cell, true
}

// cell returns which numbers of segments of each kind fit in a cell beside those that have to be there; nil if these do not fit.
func (r *run) cell(d domain, k kinds, number int, outer *space) (table, *sums) {
	base, top := k.base[number], k.base[number]
	for kind, n := range k.counts {
		top += int(n) * k.states[kind]
	}
	sums := r.divide(r.tables(d.nodes), top)
	if !sums.reach[base] {
		return nil, nil
	}
	var t table
	for s := range outer.size {
		state, row := base, outer.row(s)
		for kind, n := range row {
			state += int(n) * k.states[kind]
		}
		if sums.reach[state] {
			cost := sums.costs[state]
			if base > 0 {
				cost = cost.minus(sums.costs[base])
			}
			t = append(t, entry{s, cost})
		}
	}
	return t, sums
}
