package gangplanner

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/claims"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
	"github.com/berth-gpu/berth/internal/core/fleet"
	"github.com/berth-gpu/berth/internal/core/fleet/gang"
)

// mostSteps bounds how often members are tried on nodes for one plan, beside a few times for each member. trySteps is what a try costs, in
// steps of gang.Budget: some 0.5 ms.
const mostSteps, trySteps = 4000, 1 << 15

// withDevices returns those of some plans with which every member gets its devices. Where there is none, it plans the gang as Kubernetes
// places pods: member after member, each on a node on which it gets its devices beside those before it. The model of GPUs does not know all
// devices: those of other drivers, and of nodes that serve an extended resource by ResourceClaims.
func (p *Planner) withDevices(needs *gangplan.Requirements, q *Question, plans []gang.Plan, refusal *gang.Refusal) (answer Answer, err error) {
	err = p.Model.Try(q.Policy, q.Held, func(places *model.Trial) error {
		beside := q.Budget.Steps == 0 || q.Beside
		devices := p.Devices.Try(beside)
		if devices == nil {
			return gang.ErrSteps // A gang is planned beside the cycles, which must not wait for that.
		}
		defer devices.End()
		o := p.oneByOne(needs, q, places, devices)
		if !beside {
			o.steps = min(o.steps, int(q.Budget.Steps/trySteps)) - len(q.Promised)
			if o.steps <= 0 || q.exceeds(len(needs.Members)*len(q.Nodes)*capacitySteps) {
				return gang.ErrSteps
			}
		}
		for _, place := range q.Promised {
			if i, known := p.Model.Index(place.Node); known {
				devices.Place(place.Pod, o.nodes[i])
			}
		}
		answer = o.answer(plans, refusal)
		if len(answer.Plans) == 0 && o.steps <= 0 && !beside {
			return gang.ErrSteps
		}
		return nil
	})
	return answer, err
}

// answer returns those of some plans with which every member gets its devices, or else a plan that places the members one by one, or why
// there is none. A plan that was made with the last step may lack members that fit: it is none.
func (o *oneByOne) answer(plans []gang.Plan, refusal *gang.Refusal) (answer Answer) {
	for i := range plans {
		if o.carries(&plans[i]) {
			plan := o.read(o.needs, &plans[i])
			plan.devices = true
			answer.Plans = append(answer.Plans, plan)
		}
	}
	if len(answer.Plans) > 0 {
		return answer
	}
	plan, found := o.plan()
	if cut := o.steps <= 0 && o.q.Budget.Steps > 0 && !o.q.Beside; found && !cut {
		plan.devices = true
		return Answer{Plans: []Plan{plan}}
	}
	if answer.Refusal = refusal; refusal == nil || !refusal.Apart && refusal.Domains > 0 {
		answer.Refusal = o.refusal()
	}
	return answer
}

// oneByOne places members one by one.
type oneByOne struct {
	*Planner
	needs    *gangplan.Requirements
	q        *Question
	places   *model.Trial
	devices  Trial
	topology *gang.Topology
	// nodes are those of the snapshot by the index of the model, capacity is by class and node what other rules allow.
	nodes    []fwk.NodeInfo
	capacity [][]int32
	// units are members that are placed together, since they share ResourceClaims; most have one.
	units [][]int
	// placed are the members that have a place. refused is true for a class on a node that has no capacity for it beside them, why is the
	// reason of the last time that it had none. steps is how often members can still be tried.
	placed  []placed
	refused map[[2]int]bool
	why     map[[2]int]string
	steps   int
	// best is the best plan of all domains. lack is why the next member has no place, on a node that is nearest to have one.
	best       []placed
	bestLevel  int
	bestDomain string
	lackNode   string
	lack       string
}

// placed is a member on a node.
type placed struct {
	member   int
	node     int
	requests []fleet.Shape
	// mark and claims are the state before it.
	mark   fleet.Mark
	claims int
}

func (p *Planner) oneByOne(needs *gangplan.Requirements, q *Question, places *model.Trial, devices Trial) *oneByOne {
	o := &oneByOne{
		Planner:   p,
		needs:     needs,
		q:         q,
		places:    places,
		devices:   devices,
		topology:  p.Model.Topology(needs.Keys),
		nodes:     make([]fwk.NodeInfo, p.Model.Len()),
		refused:   map[[2]int]bool{},
		why:       map[[2]int]string{},
		units:     units(needs),
		bestLevel: needs.Required,
		steps:     mostSteps + 4*len(needs.Members),
	}
	for position, node := range q.Nodes {
		o.nodes[p.Model.At(position)] = node
	}
	for c := range needs.Classes {
		o.capacity = append(o.capacity, needs.Gang.Classes[c].Capacity)
	}
	return o
}

// units returns the members without a node, those that share ResourceClaims together, in the order of the first of each.
func units(needs *gangplan.Requirements) (list [][]int) {
	of := map[string]int{} // the unit of a claim
	for i, pod := range needs.Members {
		if needs.Gang.Members[i].Node != gang.Unbound {
			continue
		}
		unit := len(list)
		list = append(list, []int{i})
		for k := range pod.Spec.ResourceClaims {
			name := pod.Spec.ResourceClaims[k].ResourceClaimName
			if name == nil {
				continue
			}
			if other, known := of[*name]; known && other != unit {
				first, second := min(unit, other), max(unit, other)
				list[first] = append(list[first], list[second]...)
				list[second] = nil
				for claim, at := range of {
					if at == second {
						of[claim] = first
					}
				}
				unit = first
			}
			of[*name] = unit
		}
	}
	list = slices.DeleteFunc(list, func(unit []int) bool { return len(unit) == 0 })
	for _, unit := range list {
		slices.Sort(unit)
	}
	return list
}

// carries tells whether each member of a plan gets its devices on its node.
func (o *oneByOne) carries(plan *gang.Plan) bool {
	mark := o.devices.Mark()
	defer o.devices.Undo(mark)
	for i, node := range plan.Nodes {
		if node == gang.Unbound || o.needs.Gang.Members[i].Node != gang.Unbound {
			continue
		}
		pod := o.needs.Members[i]
		if o.steps--; o.over() || claims.Unbindable(o.manager(), pod, o.nodes[node]) != "" || o.devices.Place(pod, o.nodes[node]) != "" {
			return false
		}
	}
	return true
}

// plan places the members in the first domain of the narrowest level that has capacity for all of them, or in the one with capacity for
// most.
func (o *oneByOne) plan() (Plan, bool) {
	all := 0
	for _, unit := range o.units {
		all += len(unit)
	}
	bound := len(o.needs.Members) - all
	for level := o.needs.Preferred; level >= o.needs.Required; level-- {
		for _, nodes := range o.topology.Domains(level, o.needs.Required) {
			if len(o.best) < all && o.hasBound(nodes) {
				o.onDomain(level, nodes, bound)
			}
		}
	}
	if bound+len(o.best) < o.needs.Gang.Min {
		return Plan{}, false
	}
	plan := Plan{Places: map[types.UID]Place{}, Level: o.topology.Name(o.bestLevel), Domain: o.bestDomain}
	for _, at := range o.best {
		pod := o.needs.Members[at.member]
		plan.Places[pod.UID] = Place{pod, o.nodes[at.node].Node().Name, at.requests}
	}
	return plan, true
}

// onDomain notes the plan for a domain of a level if it has more members than those before.
func (o *oneByOne) onDomain(level int, nodes []int, bound int) {
	clear(o.refused)
	clear(o.why)
	keep := func() {
		o.best, o.bestLevel, o.bestDomain = slices.Clone(o.placed), level, o.topology.Domain(level, nodes[0])
	}
	o.inDomain(nodes, bound)
	if len(o.placed) > len(o.best) || o.best == nil {
		keep()
		o.nearest(nodes)
	}
	if level == o.needs.Required && len(o.needs.Classes) > 1 && o.needs.Gang.Segment.Size == 0 && bound+len(o.best) < o.needs.Gang.Min {
		if o.reorder(nodes, bound); bound+len(o.placed) >= o.needs.Gang.Min {
			keep()
		}
	}
	o.undo(0)
}

// hasBound tells whether a domain has the nodes of all bound members.
func (o *oneByOne) hasBound(nodes []int) bool {
	return !slices.ContainsFunc(o.needs.Gang.Members, func(m gang.Member) bool { return m.Node != gang.Unbound && !slices.Contains(nodes, m.Node) })
}

// inDomain places as many members as fit on the nodes of a domain: all up to the first that does not.
func (o *oneByOne) inDomain(nodes []int, bound int) {
	if size := o.needs.Gang.Segment.Size; size > 0 {
		for first := 0; first < len(o.needs.Members); first += size {
			if !o.segment(first, min(first+size, len(o.needs.Members)), nodes) {
				return
			}
		}
		return
	}
	o.inOrder(o.units, nodes, bound)
}

// mostOrders bounds the orders in which the members of a gang are placed on one domain.
const mostOrders = 8

// reorder places the least number of members on a domain in other orders, where they do not fit in their own: a unit that does not, since
// others have taken the only nodes that it can use, is placed before them.
func (o *oneByOne) reorder(nodes []int, bound int) {
	first, count := 0, bound
	for ; first < len(o.units) && count < o.needs.Gang.Min; first++ {
		count += len(o.units[first])
	}
	order, moved := slices.Clone(o.units[:first]), map[int]bool{}
	for range mostOrders {
		o.undo(0)
		at := o.inOrder(order, nodes, bound)
		if at == len(order) {
			o.inOrder(o.units[first:], nodes, bound)
			return
		}
		if moved[order[at][0]] {
			return
		}
		moved[order[at][0]] = true
		order = slices.Concat(order[at:at+1], order[:at], order[at+1:])
	}
}

// inOrder places units on the nodes of a domain up to the first that does not fit, and returns its position.
func (o *oneByOne) inOrder(units [][]int, nodes []int, bound int) (at int) {
	for at, unit := range units {
		if !o.unit(unit, nodes, max(1, o.needs.Gang.Min-bound-len(o.placed))) {
			return at
		}
	}
	return len(units)
}

// segment places the members of a segment, from first to before last, on nodes of a domain that are in one domain of the segments' level.
func (o *oneByOne) segment(first, last int, nodes []int) bool {
	before := len(o.placed)
	for _, cell := range o.topology.Domains(o.needs.Gang.Segment.Level, o.needs.Required) {
		cell = slices.DeleteFunc(slices.Clone(cell), func(i int) bool { return !slices.Contains(nodes, i) })
		away := func(m gang.Member) bool { return m.Node != gang.Unbound && !slices.Contains(cell, m.Node) }
		if len(cell) == 0 || slices.ContainsFunc(o.needs.Gang.Members[first:last], away) {
			continue
		}
		whole := true
		for _, unit := range o.units {
			part := slices.DeleteFunc(slices.Clone(unit), func(i int) bool { return i < first || i >= last })
			if len(part) > 0 && !o.unit(part, cell, len(part)) {
				whole = false
				break
			}
		}
		if whole {
			return true
		}
		o.undo(before)
	}
	return false
}

// unit places members that are placed together: the first on a node beside which the others fit, wherever their claims let them be. It
// is true where all are placed, and places a part of them, of at least so many, where no more fit.
func (o *oneByOne) unit(members, nodes []int, least int) bool {
	before, most, at := len(o.placed), 0, 0
	try := func(node int) int {
		if !o.place(members[0], node) {
			return 0
		}
		for _, other := range members[1:] {
			if !slices.ContainsFunc(o.order(nodes), func(node int) bool { return o.place(other, node) }) {
				break
			}
		}
		return len(o.placed) - before
	}
	for _, node := range o.order(nodes) {
		count := try(node)
		if count == len(members) {
			return true
		}
		if count > most {
			most, at = count, node
		}
		o.undo(before)
	}
	if most >= least && len(members) > 1 {
		try(at)
	}
	return false
}

// order returns the nodes of a domain in the order in which they are tried: those that the gang uses already, then those with the fewest
// free GPUs.
func (o *oneByOne) order(nodes []int) []int {
	uses := map[int]int{}
	for _, at := range o.placed {
		uses[at.node]++
	}
	sorted := slices.Clone(nodes)
	slices.SortStableFunc(sorted, func(a, b int) int {
		return cmp.Or(cmp.Compare(min(1, uses[b]), min(1, uses[a])), cmp.Compare(o.places.Idle(a), o.places.Idle(b)))
	})
	return sorted
}

// over tells whether no member is tried any more: the steps are used up, or the planning was stopped.
func (o *oneByOne) over() bool {
	if stop := o.q.Budget.Stop; stop != nil && o.steps > 0 && stop() {
		o.steps = 0
	}
	return o.steps <= 0
}

// place places a member on a node, if it fits there.
func (o *oneByOne) place(member, node int) bool {
	class := o.needs.Gang.Members[member].Class
	key := [2]int{class, node}
	if o.refused[key] || o.over() {
		return false
	}
	at := placed{member: member, node: node, mark: o.places.Mark(), claims: o.devices.Mark()}
	at.requests = o.requestsOn(o.needs.Members[member], o.nodes[node])
	if why := o.try(&at, class); why != "" {
		o.places.Undo(at.mark)
		o.refused[key], o.why[key] = true, why
		return false
	}
	o.placed = append(o.placed, at)
	return true
}

// try places a member, or says why that cannot be.
func (o *oneByOne) try(at *placed, class int) string {
	pod, node, count := o.needs.Members[at.member], o.nodes[at.node], int32(1)
	used := gangplan.Amounts(pod)
	for _, other := range o.placed {
		if other.node == at.node {
			Add(used, gangplan.Amounts(o.needs.Members[other.member]))
			if o.needs.Gang.Members[other.member].Class == class {
				count++
			}
		}
	}
	if count > o.capacity[class][at.node] {
		return otherRules
	}
	free, left := o.q.free(node, nil), o.q.Left[node.Node().Name]
	for name, amount := range used {
		// The model counts CPU, memory and GPUs.
		if free := free(name); !o.counted(name, node) && !amount.IsZero() && free.Cmp(amount) < 0 {
			return "it has too little " + string(name)
		}
		if most, limited := left[name]; limited && !amount.IsZero() && most.Cmp(amount) < 0 {
			return otherRules
		}
	}
	if !o.places.Place(at.node, at.requests) {
		return cmp.Or(o.places.Lack(at.node, at.requests), "it has too few GPUs")
	}
	if why := claims.Unbindable(o.manager(), pod, node); why != "" || !o.Devices.Needs(pod) {
		return why
	}
	o.steps--
	return o.devices.Place(pod, node)
}

// otherRules is why a node is refused to a member by node selectors, taints, affinity, or what is held there.
const otherRules = "other rules keep the pod from it"

// undo takes back all members but the first that were placed.
func (o *oneByOne) undo(keep int) {
	if keep < len(o.placed) {
		first := &o.placed[keep]
		o.places.Undo(first.mark)
		o.devices.Undo(first.claims)
		o.placed = o.placed[:keep]
		clear(o.refused)
	}
}

// nearest notes why the next member does not fit in a domain: what the plugin for devices says of a node, or what else is lacking there.
func (o *oneByOne) nearest(nodes []int) {
	o.lackNode, o.lack = "", ""
	next := o.next()
	if next < 0 {
		return
	}
	for _, node := range nodes {
		why := o.why[[2]int{o.needs.Gang.Members[next].Class, node}]
		if why != "" && (o.lack == "" || o.lack == otherRules) {
			o.lackNode, o.lack = o.nodes[node].Node().Name, why
		}
	}
}

// next returns the first member that has no place, or -1.
func (o *oneByOne) next() int {
	for i, m := range o.needs.Gang.Members {
		if m.Node == gang.Unbound && !slices.ContainsFunc(o.placed, func(at placed) bool { return at.member == i }) {
			return i
		}
	}
	return -1
}

// refusal says why the members do not fit.
func (o *oneByOne) refusal() *gang.Refusal {
	bound := 0
	for _, m := range o.needs.Gang.Members {
		if m.Node != gang.Unbound {
			bound++
		}
	}
	return &gang.Refusal{
		Min: o.needs.Gang.Min, Most: bound + len(o.best), Level: o.topology.Name(o.needs.Required), Domain: o.bestDomain,
		Domains: len(o.topology.Domains(o.needs.Required, o.needs.Required)), Node: o.lackNode, Devices: o.lack, Rough: o.steps <= 0,
	}
}
