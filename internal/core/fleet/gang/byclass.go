package gang

import (
	"cmp"
	"math"
	"slices"
)

// byClass plans a gang with too many combinations of classes: class after class, the one that requests most GPUs first. It does not
// divide the gang into segments.
func (r *run) byClass() ([]Plan, *Refusal, error) {
	if refusal := r.boundApart(); refusal != nil {
		return nil, refusal, nil
	}
	if r.gang.Segment.Size > 0 {
		return nil, &Refusal{Min: r.gang.Min, Kinds: len(r.gang.Classes), Domains: 1}, nil
	}
	for members := len(r.gang.Members); members >= r.gang.Min; members = max(r.gang.Min, members/2) {
		list := r.separate(members)
		for level := r.gang.Preferred; level >= r.gang.Required; level-- {
			for _, d := range r.topology.domains(level, r.gang.Required) {
				if !r.has(d) {
					continue
				}
				if p, ok := r.inDomain(d, list); ok {
					plan := r.assign(level, members, p)
					plan.Exact = false
					return []Plan{plan}, nil, nil
				}
			}
		}
		if members == r.gang.Min {
			break
		}
	}
	domains := r.topology.domains(r.gang.Required, r.gang.Required)
	return nil, &Refusal{Min: r.gang.Min, Level: r.topology.Name(r.gang.Required), Domains: len(domains), Rough: true}, nil
}

// single is the members of one class, planned alone.
type single struct {
	*run
	class int
	count int
}

// separate returns a number of members of the lowest index by class, the one that requests most GPUs first.
func (r *run) separate(members int) []single {
	if r.left == nil {
		r.left = cloneOthers(r.gang.Others)
	}
	counts := make([]int32, len(r.gang.Classes))
	for _, m := range r.gang.Members[:members] {
		if m.Node == Unbound {
			counts[m.Class]++
		}
	}
	var list []single
	for c, n := range counts {
		if n == 0 {
			continue
		}
		one := &run{Planner: r.Planner, topology: r.topology, bound: r.bound, gang: &Gang{Classes: r.gang.Classes[c : c+1], Others: ofClass(r.left, c)}}
		one.space, _ = newSpace(counts[c : c+1])
		one.key = keyOf(one.gang.Classes, one.space.counts)
		list = append(list, single{one, c, int(n)})
	}
	slices.SortStableFunc(list, func(a, b single) int {
		return cmp.Compare(r.gang.Classes[b.class].demand(), r.gang.Classes[a.class].demand())
	})
	return list
}

// inDomain places members in a domain, one class after another, each in its best way.
func (r *run) inDomain(d domain, list []single) (part, bool) {
	if r.lacks(d, list) {
		return part{}, false
	}
	mark := r.fleet.Checkpoint()
	defer r.fleet.Rollback(mark)
	rows := make([][]int32, len(d.nodes))
	for k := range rows {
		rows[k] = make([]int32, len(r.gang.Classes))
	}
	result := part{groups: []group{{nodes: d.nodes, rows: rows}}}
	defer func() {
		for k, row := range rows {
			for class, members := range row {
				take(r.left, class, d.nodes[k], -int64(members))
			}
		}
	}()
	for _, one := range list {
		cost, division, ok := one.division(d, one.count)
		if !ok {
			return part{}, false
		}
		result.cost = result.cost.plus(cost)
		for k, row := range division {
			rows[k][one.class] = row[0]
			take(r.left, one.class, d.nodes[k], int64(row[0]))
			w := walk{Planner: r.Planner, node: d.nodes[k]}
			for range row[0] {
				if _, ok := w.member(&r.gang.Classes[one.class]); !ok {
					return part{}, false
				}
			}
		}
	}
	return result, true
}

// cloneOthers returns a copy whose free amounts can be changed.
func cloneOthers(others []Other) []Other {
	left := slices.Clone(others)
	for k := range left {
		left[k].Free = slices.Clone(left[k].Free)
	}
	return left
}

// ofClass returns what members of one class take.
func ofClass(others []Other, class int) []Other {
	list := make([]Other, len(others))
	for k, o := range others {
		list[k] = Other{Wants: o.Wants[class : class+1], Free: o.Free}
	}
	return list
}

// take takes from a node what members of a class want.
func take(left []Other, class, node int, members int64) {
	for k := range left {
		left[k].Free[node] -= members * left[k].Wants[class]
	}
}

// lacks tells whether all nodes of a domain together have too little of something for members.
func (r *run) lacks(d domain, list []single) bool {
	r.spend(len(d.nodes)*8 + len(list))
	var cpu, memory int64
	devices := map[string]int64{} // by resource; of shares the thousandths
	for _, one := range list {
		for _, s := range r.gang.Classes[one.class].Requests {
			count := int64(one.count)
			cpu, memory = cpu+count*s.CPU, memory+count*s.Memory
			devices[s.Resource] += count * int64(s.GPUs) * int64(max(1, s.Share))
		}
	}
	for _, i := range d.nodes {
		n := r.fleet.Node(i)
		cpu, memory = cpu-n.FreeCPU, memory-n.FreeMemory
		for k := range n.GPUs {
			if g := &n.GPUs[k]; devices[g.Resource] > 0 {
				devices[g.Resource] -= int64(g.Free / max(1, g.Unit))
			}
		}
	}
	for _, left := range devices {
		if left > 0 {
			return true
		}
	}
	return cpu > 0 || memory > 0 || slices.ContainsFunc(r.left, func(o Other) bool { return o.lacks(d, list) })
}

// lacks tells whether all nodes of a domain together have too little for members.
func (o *Other) lacks(d domain, list []single) bool {
	left := int64(0)
	for _, i := range d.nodes {
		left += min(o.Free[i], math.MaxInt64-left)
	}
	for _, one := range list {
		if want := o.Wants[one.class]; want > 0 {
			if int64(one.count) > left/want {
				return true
			}
			left -= int64(one.count) * want
		}
	}
	return false
}

// demand returns what a member requests of GPUs, in thousandths.
func (c *Class) demand() int64 {
	sum := int64(0)
	for _, s := range c.Requests {
		sum += s.Demand()
	}
	return sum
}
