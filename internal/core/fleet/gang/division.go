package gang

import (
	"cmp"
	"slices"
)

// maxDivided bounds the steps of a division of members of one class among the nodes of a domain for which all ways are compared.
const maxDivided = 1 << 25

// work returns how many steps divide takes at most.
func (s *space) work(parts []table, target int) int {
	steps, high := 0, 0
	for _, t := range parts {
		if len(t) > 1 {
			high = min(target, high+t[len(t)-1].state)
			steps += high * (len(t) - 1)
		}
	}
	return steps
}

// divide is that of the gang's space, within the budget.
func (r *run) divide(parts []table, target int) *sums {
	r.spend(r.space.work(parts, target) + len(parts))
	return r.space.divide(parts, target)
}

// division returns how a combination is divided among the nodes of a domain: the cost, and the combination of each node. It is the
// cheapest way, but for very many members of one class: these fill the nodes on which most of them fit, the cheapest of them first.
func (r *run) division(d domain, target int) (Cost, [][]int32, bool) {
	tables := r.tables(d.nodes)
	if len(r.space.counts) == 1 && r.offer == nil && r.space.work(tables, target) > maxDivided {
		r.rough = true
		r.spend(len(tables))
		return fill(tables, target)
	}
	sums := r.divide(tables, target)
	if !sums.reach[target] {
		return Cost{}, nil, false
	}
	return sums.costs[target], sums.rows(target), true
}

// fill divides members of one class among nodes. On each of them any number up to the largest one fits.
func fill(tables []table, target int) (cost Cost, rows [][]int32, ok bool) {
	order := make([]int, len(tables))
	for k := range order {
		order[k] = k
	}
	last := func(k int) *entry { return &tables[k][len(tables[k])-1] }
	slices.SortStableFunc(order, func(a, b int) int {
		x, y := last(a), last(b)
		switch {
		case x.state != y.state:
			return cmp.Compare(y.state, x.state)
		case x.cost.less(y.cost):
			return -1
		case y.cost.less(x.cost):
			return 1
		}
		return 0
	})
	rows = make([][]int32, len(tables))
	for k := range rows {
		rows[k] = []int32{0}
	}
	for _, k := range order {
		at := min(target, len(tables[k])-1)
		e := &tables[k][at]
		rows[k] = []int32{int32(e.state)}
		cost = cost.plus(e.cost)
		target -= e.state
	}
	return cost, rows, target == 0
}
