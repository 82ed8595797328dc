package gang

import (
	"math"
	"slices"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

const (
	// maxFew is among how many holders all sets are tried where nothing else is exact, and maxFewNodes for how many sets times nodes.
	maxFew      = 10
	maxFewNodes = 1 << 17

	lowestPriority = math.MinInt32
)

// search returns the set of holders that end; nil if the gang does not fit when all have ended. The result is true if there is no better
// one.
func (e *ending) search() ([]bool, bool) {
	all := slices.Repeat([]bool{true}, len(e.holders.List))
	if !e.fits(e.gang.Required, all) {
		return nil, false
	}
	var set []bool
	if !e.slow {
		var exact bool
		if set, exact = e.modelled(all); exact {
			return set, true
		}
	}
	if best := e.exhaust(); best != nil {
		return best, e.space != nil
	}
	fits := func(set []bool) bool { return e.fits(e.gang.Required, set) }
	if set == nil {
		set = e.spare(all, e.violators(all), fits)
		set = e.lowest(set, fits)
	}
	return e.spare(set, positions(set), fits), false
}

// violators returns the holders of a set with pods that a budget does not allow to end.
func (e *ending) violators(set []bool) []int {
	var list []int
	budgets := fleet.NewDisruptions(e.holders.Budgets)
	for i, has := range set {
		if has && budgets.End(e.holders.List[i].Budgets) > 0 {
			list = append(list, i)
		}
	}
	return list
}

// spare returns a closed set without those of a list that need not end: it spares one after another in the order of the list, and those
// with which it ends, if the gang fits then. It tries more at once the more often that goes well.
func (e *ending) spare(set []bool, order []int, fits func([]bool) bool) []bool {
	for at, batch := 0, 1; at < len(order); {
		last := min(len(order), at+batch)
		next, changed := e.minus(set, order[at:last])
		switch {
		case !changed:
			at = last
		case fits(next):
			set, at, batch = next, last, 2*batch
		case last-at == 1:
			at, batch = last, 1
		default:
			batch = max(1, (last-at)/2)
		}
	}
	return set
}

// minus returns a closed set without holders, and without those with which these end. The result is false if it has none of them.
func (e *ending) minus(set []bool, holders []int) ([]bool, bool) {
	e.spend(len(set))
	next, changed, bare := slices.Clone(set), false, map[int]bool{}
	for _, i := range holders {
		changed = changed || set[i]
		next[i], bare[i] = false, true
	}
	for _, i := range e.mains {
		if next[i] && slices.ContainsFunc(e.closures[i], func(other int) bool { return bare[other] }) {
			next[i] = false
		}
	}
	return next, changed
}

// candidate is a set of few holders: bit i is the one at position i of a list.
type candidate struct {
	bits  uint
	worth worth
}

// exhaust returns the best of all sets of holders, if these are few; nil if not.
func (e *ending) exhaust() []bool {
	few := e.few()
	if few == nil {
		return nil
	}
	candidates := e.candidates(few)
	var misses []uint
	var best []bool
	var worth worth
	for _, c := range candidates {
		if best != nil && c.worth.compareEnded(&worth) > 0 {
			break
		}
		if slices.ContainsFunc(misses, func(miss uint) bool { return c.bits&^miss == 0 }) {
			continue
		}
		set := e.set(pick(few, c.bits))
		if !e.fits(e.gang.Required, set) {
			misses = append(misses, c.bits)
			continue
		}
		c.worth.level = e.gang.Required
		for level := e.gang.Preferred; level > c.worth.level; level-- {
			if e.fits(level, set) {
				c.worth.level = level
			}
		}
		if best == nil || c.worth.compare(&worth) < 0 {
			best, worth = set, c.worth
		}
	}
	return best
}

// few returns the holders that have something in a domain of the required level, if they are few.
func (e *ending) few() []int {
	seen, nodes := make([]bool, len(e.holders.List)), 0
	for _, d := range e.domains(e.gang.Required) {
		nodes += len(d.nodes)
		for _, i := range d.nodes {
			if s := e.sites[i]; s != nil {
				for _, h := range s.holders {
					seen[h] = true
				}
			}
		}
	}
	list := positions(seen)
	if len(list) > maxFew || nodes<<len(list) > maxFewNodes {
		return nil
	}
	return list
}

// pick returns the entries of a list that bits say.
func pick(list []int, bits uint) []int {
	var picked []int
	for k, h := range list {
		if bits>>k&1 == 1 {
			picked = append(picked, h)
		}
	}
	return picked
}

// candidates returns the closed sets of few holders, the best first.
func (e *ending) candidates(few []int) []candidate {
	var list []candidate
	for bits := range uint(1) << len(few) {
		set, closed := e.set(pick(few, bits)), true
		for k, h := range few {
			closed = closed && set[h] == (bits>>k&1 == 1)
		}
		if closed {
			list = append(list, candidate{bits, e.worth(set)})
		}
	}
	slices.SortStableFunc(list, func(a, b candidate) int { return a.worth.compare(&b.worth) })
	return list
}
