package gang

import (
	"encoding/binary"
	"slices"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// ending is the search for the holders that end for a gang. Sets of holders are by position in Holders.List. They are closed: who ends with
// a holder of a set is in the set.
type ending struct {
	// run is that of the gang without the members that need not fit.
	*run
	holders *Holders
	// slow is true where the planner is asked for each set: the gang has too many combinations, or the policy can give members other GPUs
	// than fleet.Choose.
	slow bool
	// ended and may are the sets that the options of nodes are for.
	ended []bool
	may   []bool
	// sites and idle are the nodes with and without holders, by index; nil where that is not known yet.
	sites []*site
	idle  []*site
	// closures are, by holder, itself and those that end with it. highest are the highest priorities of these. wide are those with
	// something on several nodes, and those with which others end.
	closures [][]int
	highest  []int32
	wide     []bool
	// mains are the holders with which others end.
	mains     []int
	noHolders []bool
	// counted are the holders that budgets count and that are not wide, charges by holder how many of its pods are taken to violate a
	// budget, version the number of the charges. least are charges at least.
	counted  []int
	charges  []int
	version  int
	versions map[string]int
	least    []int
	answers  map[string]answer
	nodes    nodeKeys
	scratch  []byte
	work     int // sets of victims on nodes
	tried    int // sets of wide holders
	// rough is true when something was not exact, inOrder where pods have several budgets: how many violate one, if any does, depends on
	// the order in which they end then.
	rough   bool
	inOrder bool
	inLevel map[int][]domain
}

func (p *Planner) newEnding(t *Topology, g *Gang, h *Holders) (*ending, error) {
	if err := h.validate(p.fleet.Len()); err != nil {
		return nil, err
	}
	sites, err := newSites(p.fleet, h)
	if err != nil {
		return nil, err
	}
	count := len(h.List)
	e := &ending{
		run: p.newRun(t, g), holders: h, sites: sites, idle: make([]*site, p.fleet.Len()), closures: closures(h), highest: make([]int32, count), wide: make([]bool, count),
		noHolders: make([]bool, count), charges: make([]int, count), least: make([]int, count), versions: map[string]int{"": 0}, answers: map[string]answer{}, nodes: nodeKeys{map[any]int{}},
		inLevel: map[int][]domain{},
	}
	e.slow = e.space == nil || slices.ContainsFunc(g.Classes, sharesGPUs)
	if !e.slow && g.Segment.Size == 0 {
		least := *g
		least.Members = slices.Clone(g.Members[:g.Min])
		for _, m := range g.Members[g.Min:] {
			if m.Node != Unbound {
				least.Members = append(least.Members, m)
			}
		}
		e.run = p.newRun(t, &least)
	}
	if !e.slow {
		e.offer = func(node int) table { return e.options(node, e.ended, e.may).table }
	}
	e.describe()
	return e, nil
}

// describe sets what is known of each holder.
func (e *ending) describe() {
	h := e.holders
	nodes := make([]int, len(h.List))
	for _, s := range e.sites {
		if s != nil {
			for _, i := range s.holders {
				nodes[i]++
			}
		}
	}
	for i := range h.List {
		e.wide[i] = nodes[i] > 1 || len(e.closures[i]) > 1
		e.highest[i] = h.List[i].Priority
		if len(e.closures[i]) > 1 {
			e.mains = append(e.mains, i)
		}
		for _, other := range e.closures[i] {
			e.highest[i] = max(e.highest[i], h.List[other].Priority)
		}
		if !e.wide[i] && len(h.List[i].Budgets) > 0 {
			e.counted = append(e.counted, i)
		}
		e.inOrder = e.inOrder || slices.ContainsFunc(h.List[i].Budgets, func(pod []int) bool { return len(pod) > 1 })
	}
}

// sharesGPUs tells whether members share GPUs: the policy chooses the GPUs then, and fleet.Choose only predicts them.
func sharesGPUs(c Class) bool {
	return slices.ContainsFunc(c.Requests, func(s fleet.Shape) bool { return s.Shared() })
}

// domains returns the domains of a level that have all nodes to which members are bound.
func (e *ending) domains(level int) []domain {
	list, known := e.inLevel[level]
	if !known {
		for _, d := range e.topology.domains(level, e.gang.Required) {
			if e.has(d) {
				list = append(list, d)
			}
		}
		e.inLevel[level] = list
	}
	return list
}

// fits tells whether the least number of members fits in a domain of a level when the holders of a set have ended.
func (e *ending) fits(level int, set []bool) bool {
	return slices.ContainsFunc(e.domains(level), func(d domain) bool { return e.fitsIn(d, set) })
}

func (e *ending) fitsIn(d domain, set []bool) bool {
	if e.slow {
		return e.show(set) == nil && e.takes(d)
	}
	e.ended, e.may = set, e.noHolders
	return e.takes(d)
}

// choice are holders that end, and what they are worth.
type choice struct {
	holders []int
	worth   worth
}

// modelled returns the best holders of a closed set, without which the gang fits. What violates a budget is a sum over the holders first,
// each of which uses it alone: that is too low where several use one. The result is true if there are no better ones.
func (e *ending) modelled(all []bool) ([]bool, bool) {
	first, exact := e.model(all)
	if first == nil {
		return nil, false
	}
	set := e.set(first.holders)
	truth := e.worth(set)
	if truth.compareEnded(&first.worth) == 0 {
		return set, exact && !e.rough && (truth.violations == 0 || !e.inOrder)
	}
	// Those of the answer use the budgets, and all others violate them: that is too high.
	e.reserve(set)
	second, _ := e.model(all)
	clear(e.least)
	if second == nil {
		return set, false
	}
	other := e.set(second.holders)
	next := e.worth(other)
	if next.compareEnded(&first.worth) == 0 {
		return other, exact && !e.rough && (next.violations == 0 || !e.inOrder)
	}
	if next.compareEnded(&truth) < 0 {
		set = other
	}
	return set, false
}

// set returns the set with holders and those that end with them.
func (e *ending) set(holders []int) []bool {
	set := make([]bool, len(e.holders.List))
	for _, i := range holders {
		for _, other := range e.closures[i] {
			set[other] = true
		}
	}
	return set
}

// reserve sets the charges at least so that the budgets that a set exceeds are for those of the set that do not violate them, the least
// important first.
func (e *ending) reserve(set []bool) {
	all, within := fleet.NewDisruptions(e.holders.Budgets), make([]bool, len(set))
	for i := range slices.Backward(set) {
		within[i] = set[i] && all.End(e.holders.List[i].Budgets) == 0
	}
	for i := range e.holders.List {
		if within[i] {
			continue
		}
		for _, pod := range e.holders.List[i].Budgets {
			if slices.ContainsFunc(pod, all.Exceeded) {
				e.least[i]++
			}
		}
	}
}

// model returns the best choice where violations are sums. The result is true if there are no better ones.
func (e *ending) model(all []bool) (*choice, bool) {
	base, violations := slices.Clone(all), int64(0)
	for i := range base {
		base[i] = base[i] && e.alone(i) == 0
	}
	if !e.fits(e.gang.Required, base) {
		base = all
		c := e.optimum(e.gang.Required, all, nil)
		if c == nil {
			return nil, false
		}
		violations = int64(c.worth.violations)
	}
	base = e.lowest(base, func(low []bool) bool {
		if !e.fits(e.gang.Required, low) {
			return false
		}
		if violations == 0 {
			return true
		}
		c := e.optimum(e.gang.Required, low, nil)
		return c != nil && int64(c.worth.violations) <= violations
	})
	best := e.optimum(e.gang.Required, base, nil)
	if best == nil {
		return nil, false
	}
	for level := e.gang.Preferred; level > e.gang.Required; level-- {
		if c := e.optimum(level, base, best); c != nil && c.worth.compareEnded(&best.worth) == 0 {
			best = c
			break
		}
	}
	return best, int64(best.worth.violations) == violations
}

// alone returns how many violations a holder and those that end with it have when nothing else ends.
func (e *ending) alone(holder int) int {
	list := e.holders.List
	if len(e.holders.Budgets) == 0 {
		return 0
	}
	violations, least, budgets := 0, 0, fleet.NewDisruptions(e.holders.Budgets)
	for _, i := range e.closures[holder] {
		violations += budgets.End(list[i].Budgets)
		least += e.least[i]
	}
	return max(violations, least)
}

// lowest returns the holders of a closed set up to the lowest priority that is enough; the set if all are needed.
func (e *ending) lowest(set []bool, enough func([]bool) bool) []bool {
	var priorities []int32
	for i, has := range set {
		if has {
			priorities = append(priorities, e.highest[i])
		}
	}
	slices.Sort(priorities)
	priorities = slices.Compact(priorities)
	low := func(priority int32) []bool {
		list := slices.Clone(set)
		for i := range list {
			list[i] = list[i] && e.highest[i] <= priority
		}
		return list
	}
	first, last := 0, len(priorities)-1
	for first < last {
		if middle := (first + last) / 2; enough(low(priorities[middle])) {
			last = middle
		} else {
			first = middle + 1
		}
	}
	if first >= len(priorities) {
		return set
	}
	return low(priorities[first])
}

// charge sets the charges for the case that the holders of a list have ended, and returns how many violations these have.
func (e *ending) charge(list []int) int {
	if len(e.holders.Budgets) == 0 {
		return 0
	}
	violations, least, budgets := 0, 0, fleet.NewDisruptions(e.holders.Budgets)
	for _, i := range list {
		violations += budgets.End(e.holders.List[i].Budgets)
		least += e.least[i]
	}
	key := []byte{}
	for _, i := range e.counted {
		pods := e.holders.List[i].Budgets
		e.charges[i] = max(e.least[i], budgets.End(pods))
		budgets.Undo(pods)
		key = binary.AppendUvarint(key, uint64(e.charges[i]))
	}
	version, known := e.versions[string(key)]
	if !known {
		version = len(e.versions)
		e.versions[string(key)] = version
	}
	e.version = version
	return max(violations, least)
}
