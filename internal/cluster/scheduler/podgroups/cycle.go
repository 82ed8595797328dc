package podgroups

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
)

// round is what is known of a group in one evaluation of all its placements. It is in the state of the pod group cycle.
type round struct {
	// candidates are in the order in which the scheduler evaluates them; next is the first that it has not begun with.
	candidates []*candidate
	next       int
	// done is the first of them of which all members were reserved.
	done *candidate
	// refusal is why no member is placed.
	refusal string
}

// candidate is a placement. It is in the state of the placement, and in that of each member's cycle.
type candidate struct {
	rank      int
	placement *fwk.Placement
	// nodes are those of the members; nil lets each use any node. A node that is a hint is preferred only.
	nodes map[types.UID]string
	hint  bool
	// members is how many can be placed, reserved which were.
	members  int
	reserved map[types.UID]bool
}

// Clone returns the round itself.
func (r *round) Clone() fwk.StateData { return r }

// Clone returns the candidate itself.
func (c *candidate) Clone() fwk.StateData { return c }

// reader is the state of a cycle, of a placement or of a member.
type reader interface {
	Read(key fwk.StateKey) (fwk.StateData, error)
}

func roundOf(state reader) *round {
	data, err := state.Read(Name)
	if err != nil {
		return nil
	}
	r, _ := data.(*round)
	return r
}

func candidateOf(state reader) *candidate {
	data, err := state.Read(Name)
	if err != nil {
		return nil
	}
	c, _ := data.(*candidate)
	return c
}

// at returns the candidate that is evaluated with the state of a placement: the next one when it is asked for the first time. Each
// placement has a state of its own, and the scheduler evaluates them in the order in which they were generated.
func (r *round) at(state fwk.PlacementCycleState) *candidate {
	if c := candidateOf(state); c != nil {
		return c
	}
	if r.next >= len(r.candidates) {
		return nil
	}
	c := r.candidates[r.next]
	r.next++
	state.Write(Name, c)
	return c
}

// PreFilter lets a member only go to its node of the placement.
func (p *Plugin) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if pod.Spec.SchedulingGroup == nil || !state.IsPodGroupSchedulingCycle() || state.GetPlacementCycleState() == nil {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	r := roundOf(state.GetPodGroupSchedulingCycle())
	if r == nil {
		if p.topologyAware {
			return nil, fwk.NewStatus(fwk.Skip) // Another plugin generates the placements.
		}
		var err error
		if r, err = p.alone(ctx, pod, nodes); err != nil {
			return nil, fwk.AsStatus(err)
		}
		state.GetPodGroupSchedulingCycle().Write(Name, r)
	}
	if r.refusal != "" {
		// With this status the other plugins at preFilter run, without which some fail when the group is refused.
		return nil, fwk.NewStatus(fwk.Unschedulable, r.refusal)
	}
	c := r.at(state.GetPlacementCycleState())
	if c == nil {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	if r.done != nil && r.done != c {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "the group fits in a better placement")
	}
	state.Write(Name, c)
	node := c.nodes[pod.UID]
	switch {
	case c.nodes == nil || c.hint:
		return nil, fwk.NewStatus(fwk.Skip)
	case node == "":
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "the plan of the pod group has no place for this pod")
	}
	return &fwk.PreFilterResult{NodeNames: sets.New(node)}, nil
}

// alone plans a group in a cycle without placements. Where rules that the plan does not know may refuse a node, and nothing is required of
// the topology, the planned nodes are only preferred, since there is no other placement to try.
func (p *Plugin) alone(ctx context.Context, pod *v1.Pod, nodes []fwk.NodeInfo) (*round, error) {
	g, err := p.members(pod)
	if err != nil {
		return nil, err
	}
	if nominations(g.waiting) != nil {
		return &round{}, nil // Pods have ended for these nodes, which the scheduler tries first.
	}
	v, err := p.ask(ctx, g, nodes, nil, 1)
	switch {
	case err != nil:
		return nil, err
	case v.refusal != "":
		p.Waits(pod)
		return &round{refusal: v.refusal}, nil
	case len(v.plans) == 0:
		return &round{}, nil
	}
	c := &candidate{nodes: placesOf(&v.plans[0]), members: len(v.plans[0].Places)}
	if v.topology.Required == "" && v.topology.SegmentSize == 0 {
		repelled, err := p.handle.SnapshotSharedLister().NodeInfos().HavePodsWithRequiredAntiAffinityList()
		if err != nil {
			return nil, fmt.Errorf("list nodes with anti-affinity: %w", err)
		}
		c.hint = len(repelled) > 0 || slices.ContainsFunc(g.waiting, func(member *v1.Pod) bool { return !plain(&member.Spec) })
	}
	return &round{candidates: []*candidate{c}}, nil
}

// plain tells whether no rules concern a pod but those that a plan keeps.
func plain(spec *v1.PodSpec) bool {
	if len(spec.ResourceClaims) > 0 || spec.Affinity != nil && (spec.Affinity.PodAffinity != nil || spec.Affinity.PodAntiAffinity != nil) {
		return false
	}
	for i := range spec.Volumes {
		if v := &spec.Volumes[i]; v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.CSI != nil {
			return false
		}
	}
	for i := range spec.TopologySpreadConstraints {
		if spec.TopologySpreadConstraints[i].WhenUnsatisfiable == v1.DoNotSchedule {
			return false
		}
	}
	return !gangplan.UsesHostPort(spec)
}

// PreFilterExtensions returns nil: the node of a member does not depend on pods that are added or removed.
func (p *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter refuses all nodes but that of the member, also one that the scheduler tries first.
func (p *Plugin) Filter(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	c := candidateOf(state)
	if c == nil || c.nodes == nil || c.hint || c.nodes[pod.UID] == node.Node().Name {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node is not that of the pod group's plan")
}

// Reserve notes which members of a placement have a node. As the last plugin at this point it knows that no other one refuses.
func (p *Plugin) Reserve(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ string) *fwk.Status {
	if !state.IsPodGroupSchedulingCycle() {
		return nil
	}
	r, c := roundOf(state.GetPodGroupSchedulingCycle()), candidateOf(state)
	if r == nil || c == nil {
		return nil
	}
	if c.reserved == nil {
		c.reserved = map[types.UID]bool{}
	}
	c.reserved[pod.UID] = true
	if len(c.reserved) >= c.members && r.done == nil {
		r.done = c
	}
	return nil
}

// Unreserve changes nothing: the scheduler ends each evaluation with it, also of a placement that fits.
func (p *Plugin) Unreserve(context.Context, fwk.CycleState, *v1.Pod, string) {}

// Refusal returns why a group was refused in a cycle without placements, for the condition of its PodGroup.
func Refusal(state fwk.PodGroupCycleState) string {
	if r := roundOf(state); r != nil {
		return r.refusal
	}
	return ""
}
