package podgroups

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
)

const (
	// maxPlacements is how many placements a group that was planned gets.
	maxPlacements = 8
	// mostRequired is how many of them are planned where all members have to be in one domain: the others are domains.
	mostRequired = 4
)

// GeneratePlacements returns the placements of a group, the best first.
func (p *Plugin) GeneratePlacements(ctx context.Context, state fwk.PodGroupCycleState, info fwk.PodGroupInfo, parent *fwk.Placement) (*fwk.GeneratePlacementsResult, *fwk.Status) {
	if info.GetPodGroup() == nil {
		placements, err := p.ofComposite(info, parent)
		if err != nil {
			return nil, fwk.AsStatus(err)
		}
		return &fwk.GeneratePlacementsResult{Placements: placements}, nil
	}
	scheduled, err := p.scheduledOf(info.GetNamespace(), info.GetName())
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	nodes, err := p.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return nil, fwk.AsStatus(fmt.Errorf("list nodes: %w", err))
	}
	g := &group{object: info.GetPodGroup(), waiting: info.GetUnscheduledPods(), scheduled: scheduled}
	v, err := p.ask(ctx, g, nodes, namesWithin(parent, nodes), maxPlacements-1)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if v.refusal != "" {
		if len(g.waiting) > 0 {
			p.Waits(g.waiting[0])
		}
		return nil, p.Unfit(len(parent.Nodes), v.refusal)
	}
	list, err := p.candidates(g, &v, parent)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	r := &round{candidates: list}
	result := &fwk.GeneratePlacementsResult{}
	for rank, c := range list {
		c.rank = rank
		c.placement.Name = fmt.Sprintf("%d-%s", rank, c.placement.Name)
		result.Placements = append(result.Placements, c.placement)
	}
	state.Write(Name, r)
	return result, nil
}

// namesWithin returns the nodes of the parent placement, nil for all.
func namesWithin(parent *fwk.Placement, nodes []fwk.NodeInfo) map[string]bool {
	if len(parent.Nodes) == len(nodes) {
		return nil
	}
	names := map[string]bool{}
	for _, n := range parent.Nodes {
		names[n.Node().Name] = true
	}
	return names
}

// candidates returns the placements to try: the nodes for which pods have ended, the plans, and the domains of the required level in the
// order of the plans.
func (p *Plugin) candidates(g *group, v *verdict, parent *fwk.Placement) ([]*candidate, error) {
	byName := make(map[string]fwk.NodeInfo, len(parent.Nodes))
	for _, n := range parent.Nodes {
		byName[n.Node().Name] = n
	}
	domains, err := p.stock(v.topology.Required, g.scheduled, parent)
	if err != nil {
		return nil, err
	}
	if len(v.plans) == 0 {
		var list []*candidate
		for _, d := range domains {
			list = append(list, &candidate{placement: d, members: len(g.waiting)})
		}
		return list, nil
	}
	var list []*candidate
	if nominated := nominations(g.waiting); nominated != nil {
		list = append(list, pinned("nominated", nominated, g.waiting, byName))
	}
	plans := v.plans
	if v.topology.Required != "" {
		plans = plans[:min(len(plans), mostRequired)]
	}
	for i := range plans {
		if len(list) < maxPlacements-1 {
			list = append(list, pinned(cmp.Or(plans[i].Domain, "planned"), placesOf(&plans[i]), g.waiting, byName))
		}
	}
	list = slices.DeleteFunc(list, func(c *candidate) bool { return c == nil })
	if v.topology.SegmentSize > 0 {
		return list, nil // Without a plan segments would be ignored.
	}
	v.sort(domains, byName)
	for _, d := range domains[:min(len(domains), maxPlacements-len(list))] {
		list = append(list, &candidate{placement: d, members: len(g.waiting)})
	}
	return list, nil
}

// sort sorts domains of the required level in the order of the plans that have nodes in them.
func (v *verdict) sort(domains []*fwk.Placement, byName map[string]fwk.NodeInfo) {
	first := map[string]int{}
	for i := range v.plans {
		for _, at := range v.plans[i].Places {
			if n := byName[at.Node]; n != nil {
				name := n.Node().Labels[v.topology.Required]
				if _, known := first[name]; !known {
					first[name] = i
				}
			}
		}
	}
	place := func(d *fwk.Placement) int {
		if i, known := first[d.Name]; known {
			return i
		}
		return len(v.plans)
	}
	slices.SortStableFunc(domains, func(a, b *fwk.Placement) int { return place(a) - place(b) })
}

// nominations returns the nodes for which pods have ended for the group, by member, or nil if members have none.
func nominations(pods []*v1.Pod) map[types.UID]string {
	nodes := map[types.UID]string{}
	for _, pod := range pods {
		if pod.Status.NominatedNodeName == "" {
			return nil
		}
		nodes[pod.UID] = pod.Status.NominatedNodeName
	}
	return nodes
}

func placesOf(plan *gangplanner.Plan) map[types.UID]string {
	nodes := make(map[types.UID]string, len(plan.Places))
	for uid, at := range plan.Places {
		nodes[uid] = at.Node
	}
	return nodes
}

// pinned returns the placement with exactly the nodes of members, or nil if it has none. They are in the order of the members.
func pinned(name string, nodes map[types.UID]string, waiting []*v1.Pod, byName map[string]fwk.NodeInfo) *candidate {
	c := &candidate{placement: &fwk.Placement{Name: name}, nodes: nodes}
	seen := map[string]bool{}
	for _, pod := range waiting {
		node := nodes[pod.UID]
		if node == "" {
			continue
		}
		c.members++
		if n := byName[node]; n != nil && !seen[node] {
			seen[node] = true
			c.placement.Nodes = append(c.placement.Nodes, n)
		}
	}
	if len(c.placement.Nodes) == 0 {
		return nil
	}
	return c
}

// ofComposite returns the placements of a composite group, as TopologyPlacementGenerator makes them. Its groups are planned within them.
func (p *Plugin) ofComposite(info fwk.PodGroupInfo, parent *fwk.Placement) ([]*fwk.Placement, error) {
	object := info.GetCompositePodGroup()
	if object == nil {
		return []*fwk.Placement{parent}, nil
	}
	key := ""
	if c := object.Spec.SchedulingConstraints; c != nil && len(c.Topology) > 0 {
		key = c.Topology[0].Key
	}
	var scheduled []*v1.Pod
	var collect func(fwk.PodGroupInfo) error
	collect = func(info fwk.PodGroupInfo) error {
		for _, child := range info.GetChildren() {
			if err := collect(child); err != nil {
				return err
			}
		}
		if info.GetPodGroup() == nil {
			return nil
		}
		pods, err := p.scheduledOf(info.GetNamespace(), info.GetName())
		scheduled = append(scheduled, pods...)
		return err
	}
	if err := collect(info); err != nil {
		return nil, err
	}
	return p.stock(key, scheduled, parent)
}

// stock returns the placements of TopologyPlacementGenerator for a topology key, in the order of their names: the domains within the parent
// placement, only that of the pods which have a node if there are some. Without a key it is the parent.
func (p *Plugin) stock(key string, scheduled []*v1.Pod, parent *fwk.Placement) ([]*fwk.Placement, error) {
	if key == "" {
		return []*fwk.Placement{{Name: "all", Nodes: parent.Nodes}}, nil
	}
	only, fixed := "", false
	for _, pod := range scheduled {
		node, err := p.handle.SnapshotSharedLister().NodeInfos().Get(pod.Spec.NodeName)
		if err != nil {
			return nil, fmt.Errorf("get the node of pod %s: %w", pod.Name, err)
		}
		domain, has := node.Node().Labels[key]
		if !has || fixed && domain != only {
			return nil, fmt.Errorf("pods of the group that have a node are not in one domain of %q: pod %s is in %q, another one in %q", key, pod.Name, domain, only)
		}
		only, fixed = domain, true
	}
	byDomain := map[string]*fwk.Placement{}
	var list []*fwk.Placement
	for _, node := range parent.Nodes {
		domain, has := node.Node().Labels[key]
		if !has || fixed && domain != only {
			continue
		}
		if byDomain[domain] == nil {
			byDomain[domain] = &fwk.Placement{Name: domain}
			list = append(list, byDomain[domain])
		}
		byDomain[domain].Nodes = append(byDomain[domain].Nodes, node)
	}
	slices.SortFunc(list, func(a, b *fwk.Placement) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}
