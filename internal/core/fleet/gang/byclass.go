package gang

import (
	"cmp"
	"slices"
)

// byClass plans a gang with too many combinations of classes: class after class, the one that requests most GPUs first. It does not
// divide the gang into segments.
func (r *run) byClass() (Plan, *Refusal, error) {
	if r.gang.Segment.Size > 0 {
		return Plan{}, &Refusal{Min: r.gang.Min, Kinds: len(r.gang.Classes), Domains: 1}, nil
	}
	for members := len(r.gang.Members); members >= r.gang.Min; members = max(r.gang.Min, members/2) {
		for level := r.gang.Preferred; level >= r.gang.Required; level-- {
			for _, d := range r.topology.domains(level, r.gang.Required) {
				if !r.has(d) {
					continue
				}
				if p, ok := r.inDomain(d, members); ok {
					plan := r.assign(level, members, p)
					plan.Exact = false
					return plan, nil, nil
				}
			}
		}
		if members == r.gang.Min {
			break
		}
	}
	domains := r.topology.domains(r.gang.Required, r.gang.Required)
	return Plan{}, &Refusal{Min: r.gang.Min, Level: r.topology.Name(r.gang.Required), Domains: len(domains), Rough: true}, nil
}

// inDomain places the classes of a number of members in a domain, one after another, each in its best way.
func (r *run) inDomain(d domain, members int) (part, bool) {
	counts := make([]int32, len(r.gang.Classes))
	for _, m := range r.gang.Members[:members] {
		if m.Node == Unbound {
			counts[m.Class]++
		}
	}
	order := make([]int, len(counts))
	for c := range order {
		order[c] = c
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(r.gang.Classes[b].demand(), r.gang.Classes[a].demand()) })
	mark := r.fleet.Checkpoint()
	defer r.fleet.Rollback(mark)
	rows := make([][]int32, len(d.nodes))
	for k := range rows {
		rows[k] = make([]int32, len(counts))
	}
	result := part{groups: []group{{nodes: d.nodes, rows: rows}}}
	for _, c := range order {
		if counts[c] == 0 {
			continue
		}
		one := &run{Planner: r.Planner, topology: r.topology, bound: r.bound, gang: &Gang{Classes: r.gang.Classes[c : c+1]}}
		one.space, _ = newSpace(counts[c : c+1])
		one.row = r.Planner.row(one.gang.Classes, one.space.counts)
		target := int(counts[c])
		sums := one.space.divide(one.tables(d.nodes), target)
		if !sums.reach[target] {
			return part{}, false
		}
		result.cost = result.cost.plus(sums.costs[target])
		for k, row := range sums.rows(target) {
			rows[k][c] = row[0]
			w := walk{Planner: r.Planner, node: d.nodes[k]}
			for range row[0] {
				if _, ok := w.member(&r.gang.Classes[c]); !ok {
					return part{}, false
				}
			}
		}
	}
	return result, true
}

// demand returns what a member requests of GPUs, in thousandths.
func (c *Class) demand() int64 {
	sum := int64(0)
	for _, s := range c.Requests {
		sum += s.Demand()
	}
	return sum
}
