package gang

import (
	"cmp"
	"slices"
)

// optimum returns the best choice, among those of a closed set, for which the gang fits in a domain of a level; with a bound only if it
// ends no more than that.
func (e *ending) optimum(level int, allowed []bool, bound *choice) *choice {
	narrow := slices.Clone(allowed)
	for i := range narrow {
		narrow[i] = narrow[i] && !e.wide[i]
	}
	var best *choice
	for _, d := range e.domains(level) {
		if !e.fitsIn(d, allowed) {
			continue
		}
		for _, wide := range e.choices(d, allowed, narrow) {
			c := e.with(d, wide, narrow, cmp.Or(best, bound))
			if c == nil {
				continue
			}
			if c.worth.level = level; best == nil || c.worth.compare(&best.worth) < 0 {
				best = c
			}
		}
	}
	return best
}

// choices returns which wide holders of a domain to try, with those that end with them: all sets of up to maxWide, otherwise none, each
// alone, and those that are left when as many as possible are spared, in two orders.
func (e *ending) choices(d domain, allowed, narrow []bool) [][]int {
	var wide []int
	for _, i := range d.nodes {
		if s := e.sites[i]; s != nil {
			for _, h := range s.holders {
				if e.wide[h] && allowed[h] {
					wide = append(wide, h)
				}
			}
		}
	}
	slices.Sort(wide)
	wide = slices.Compact(wide)
	list := [][]int{nil}
	if len(wide) > maxWide {
		e.rough = true
		for _, h := range wide {
			list = append(list, e.closures[h])
		}
		list = append(list, e.needed(d, wide, narrow))
		slices.SortStableFunc(wide, func(a, b int) int { return cmp.Compare(e.pods(e.closures[b]), e.pods(e.closures[a])) })
		return append(list, e.needed(d, wide, narrow))
	}
	for _, h := range wide {
		for _, other := range list[:len(list):len(list)] {
			if slices.Contains(other, h) {
				continue
			}
			both := slices.Concat(other, e.closures[h])
			slices.Sort(both)
			list = append(list, slices.Compact(both))
		}
	}
	return list
}

// needed returns the wide holders that are left of a list, with those that end with them, after each was spared in that order if the gang
// fits in a domain without it: all that are not wide have ended.
func (e *ending) needed(d domain, wide []int, narrow []bool) []int {
	set := slices.Clone(narrow)
	for _, h := range wide {
		for _, other := range e.closures[h] {
			set[other] = true
		}
	}
	left := e.spare(set, wide, func(set []bool) bool { return e.fitsIn(d, set) })
	var list []int
	for _, h := range wide {
		if left[h] {
			list = append(list, e.closures[h]...)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func (e *ending) pods(holders []int) int {
	pods := 0
	for _, h := range holders {
		pods += e.holders.List[h].Pods
	}
	return pods
}

// with returns the best choice for a domain that ends wide holders, with those that end with them, and any narrow ones.
func (e *ending) with(d domain, wide []int, narrow []bool, bound *choice) *choice {
	w := worth{violations: e.charge(wide), pods: e.pods(wide)}
	if bound != nil && (w.violations > bound.worth.violations || w.violations == bound.worth.violations && w.pods > bound.worth.pods) {
		return nil
	}
	set := e.nobody
	if len(wide) > 0 {
		set = e.set(wide)
	}
	target := e.prefix[e.gang.Min]
	sums := e.space.divide(e.offers(d, set, narrow), target)
	if !sums.reach[target] {
		return nil
	}
	c := &choice{holders: slices.Clone(wide)}
	for k, row := range sums.rows(target) {
		state, node := e.space.number(row), d.nodes[k]
		if state == 0 {
			continue
		}
		for _, o := range e.options(node, set, narrow) {
			if o.state == state {
				c.holders = append(c.holders, o.holders...)
			}
		}
	}
	slices.Sort(c.holders)
	c.worth.priority = lowestPriority
	for _, h := range c.holders {
		c.worth.add(&e.holders.List[h], e.importance(h))
	}
	c.worth.violations = w.violations + int(sums.costs[target].ended.violations)
	return c
}
