package gang

import (
	"cmp"
	"slices"
)

const (
	// maxWide is of how many wide holders in a domain all sets are tried in any case. Of more those are tried that end no more than the
	// best one, if these are at most maxTried, fewer where maxSteps of nodes and members do not allow as many, and at most maxAll in all
	// domains.
	maxWide  = 6
	maxTried = 500
	maxSteps = 1 << 22
	maxAll   = 2000
)

// optimum returns the best choice, among those of a closed set, for which the gang fits in a domain of a level; with a bound only if it
// ends no more than that.
func (e *ending) optimum(level int, allowed []bool, bound *choice) *choice {
	o := optimum{ending: e, level: level, narrow: slices.Clone(allowed), bound: bound}
	for i := range allowed {
		o.narrow[i] = allowed[i] && !e.wide[i]
	}
	for _, d := range e.domains(level) {
		if e.fitsIn(d, allowed) {
			o.domain = d
			o.search(e.wideIn(d, allowed))
		}
	}
	return o.best
}

// wideIn returns the wide holders of a set that have something in a domain, ascending.
func (e *ending) wideIn(d domain, set []bool) []int {
	var wide []int
	for _, i := range d.nodes {
		if s := e.sites[i]; s != nil {
			for _, h := range s.holders {
				if e.wide[h] && set[h] {
					wide = append(wide, h)
				}
			}
		}
	}
	slices.Sort(wide)
	return slices.Compact(wide)
}

// optimum is the search for the best choice.
type optimum struct {
	*ending
	level int
	// narrow are the holders that may end and are not wide.
	narrow []bool
	bound  *choice
	best   *choice
	domain domain
	left   int // how many sets are still tried
}

// search tries sets of the wide holders of a domain: first none, and those that are left when as many as possible are spared, in two
// orders; then all that do not end more than the best one.
func (o *optimum) search(wide []int) {
	o.left = max(1<<maxWide, min(maxTried, maxSteps/(len(o.domain.nodes)*(8+o.gang.Min)), maxAll-o.tried))
	o.try(nil)
	if len(wide) > maxWide {
		o.try(o.needed(wide))
		order := slices.Clone(wide)
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(o.pods(o.closures[b]), o.pods(o.closures[a])) })
		o.try(o.needed(order))
	}
	if !o.walk(wide, nil) {
		// Of two that do as well, one alone is better.
		for _, h := range wide {
			o.try(o.closures[h])
		}
		o.rough = true
	}
}

// walk tries the sets that have some of a list beside others, the least important first. The result is false where these are too many.
func (o *optimum) walk(wide, others []int) bool {
	for k := range slices.Backward(wide) {
		if slices.Contains(others, wide[k]) {
			continue
		}
		set := slices.Concat(others, o.closures[wide[k]])
		slices.Sort(set)
		set = slices.Compact(set)
		if o.hopeless(o.total(set)) {
			continue
		}
		o.left, o.tried = o.left-1, o.tried+1
		if o.left < 0 {
			return false
		}
		if !o.try(set) && !o.walk(wide[:k], set) {
			return false
		}
	}
	return true
}

// hopeless tells whether a choice that ends at least this is no better than the best one.
func (o *optimum) hopeless(w worth) bool {
	best := cmp.Or(o.best, o.bound)
	return best != nil && (w.violations > best.worth.violations || w.violations == best.worth.violations && w.pods > best.worth.pods)
}

// total returns the violations and pods of wide holders.
func (o *optimum) total(wide []int) worth {
	return worth{violations: o.charge(wide), pods: o.pods(wide)}
}

// needed returns the wide holders that are left of a list, with those that end with them, after each was spared in that order if the gang
// fits in the domain without it: all that are not wide have ended.
func (o *optimum) needed(wide []int) []int {
	set := slices.Clone(o.narrow)
	for _, h := range wide {
		for _, other := range o.closures[h] {
			set[other] = true
		}
	}
	left := o.spare(set, wide, func(set []bool) bool { return o.fitsIn(o.domain, set) })
	var list []int
	for _, h := range wide {
		if left[h] {
			list = append(list, o.closures[h]...)
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

// try looks for the best choice that ends wide holders, with those that end with them, and any narrow ones. The result is true if these
// are enough.
func (o *optimum) try(wide []int) bool {
	least := o.total(wide)
	if o.hopeless(least) {
		return false
	}
	o.ended, o.may = o.noHolders, o.narrow
	if len(wide) > 0 {
		o.ended = o.set(wide)
	}
	p, ok := o.solve(o.domain, o.gang.Min)
	if !ok {
		return false
	}
	c := &choice{holders: slices.Clone(wide), worth: worth{priority: lowestPriority, level: o.level}}
	for _, g := range p.groups {
		for k, row := range g.rows {
			c.holders = append(c.holders, o.chosen(g.nodes[k], o.space.number(row))...)
		}
	}
	slices.Sort(c.holders)
	for _, h := range c.holders {
		c.worth.add(&o.holders.List[h], o.importance(h))
	}
	c.worth.violations = least.violations + int(p.cost.ended.violations)
	if o.best == nil || c.worth.compare(&o.best.worth) < 0 {
		o.best = c
	}
	return len(c.holders) == len(wide)
}

// chosen returns the holders that end on a node for a combination.
func (e *ending) chosen(node, state int) []int {
	o := e.options(node, e.ended, e.may)
	at, found := slices.BinarySearchFunc(o.table, state, func(entry entry, state int) int { return entry.state - state })
	if !found {
		return nil
	}
	return o.holders[at]
}
