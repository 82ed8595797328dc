package podgroups

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
	"github.com/berth-gpu/berth/internal/core/fleet/gang"
)

// mostSteps is how much work a group may be, in steps of gang.Budget: some 50 ms, and as much again where it is planned class by class. The
// pod group cycle has no other time to plan a group: without an answer it tries the placements that Kubernetes would.
const mostSteps = 1 << 22

// group is a PodGroup with its pods.
type group struct {
	object *schedulingv1beta1.PodGroup
	// waiting are the pods that the cycle places, scheduled those that have a node.
	waiting   []*v1.Pod
	scheduled []*v1.Pod
}

// verdict is what is known of a group in this state of the cluster.
type verdict struct {
	topology gangplan.Topology
	// plans are the best first. Without one, refusal says why, and is empty where the planner has no answer.
	plans   []gangplanner.Plan
	refusal string
}

// ask plans a group on nodes of the snapshot; within is nil for all.
func (p *Plugin) ask(ctx context.Context, g *group, nodes []fwk.NodeInfo, within map[string]bool, plans int) (verdict, error) {
	p.Ready(ctx)
	p.Model.Sync(nodes)
	if len(g.waiting)+len(g.scheduled) > gangplan.MaxMembers {
		return verdict{}, nil
	}
	bound, members := map[types.UID]string{}, g.waiting
	for _, pod := range g.scheduled {
		bound[pod.UID] = pod.Spec.NodeName
		members = append(slices.Clip(members), pod)
	}
	view := gangplan.OfKubernetes(g.object, members, p.Levels())
	if view.Problem != "" {
		return verdict{refusal: "berth: " + view.Problem}, nil
	}
	if int(view.Min) > len(members) {
		return verdict{}, nil // GangScheduling says so.
	}
	question := gangplanner.Question{
		Policy: p.Policy(p.handle.ProfileName()), Levels: p.Levels(), View: &view, Bound: bound,
		Nodes: nodes, Within: within, Plans: plans, Budget: gang.Budget{Steps: mostSteps, Rough: true},
	}
	p.Hold(&question, g.waiting)
	answer, err := p.planner.Plan(&question)
	v := verdict{topology: view.Topology, plans: answer.Plans}
	switch {
	case errors.Is(err, gang.ErrSteps) && view.Topology.SegmentSize == 0:
		return verdict{topology: view.Topology}, nil
	case errors.Is(err, gang.ErrSteps):
		v.refusal = fmt.Sprintf("berth: the segments of %s take too long to plan: let more of its pods request the same", view.Key)
	case err != nil:
		return verdict{}, fmt.Errorf("plan pod group %s: %w", view.Key, err)
	case answer.Problem != "":
		v.refusal = "berth: " + answer.Problem
	case answer.Refusal != nil && !answer.Refusal.Rough:
		v.refusal = gangplanner.Sentence(view.Key, answer.Refusal, p.Levels())
	case len(v.plans) > 0 && v.plans[0].Exact && len(v.plans[0].Places) == 0:
		v.refusal = "berth: " + gangplanner.NoMore(&view, p.Levels())
	}
	return v, nil
}

// scheduledOf returns the pods of a PodGroup that have a node.
func (p *Plugin) scheduledOf(namespace, name string) ([]*v1.Pod, error) {
	state, err := p.handle.SnapshotSharedLister().PodGroupStates().Get(namespace, name)
	if err != nil {
		return nil, fmt.Errorf("get the pods of pod group %s/%s: %w", namespace, name, err)
	}
	return state.ScheduledPods(), nil
}

// members returns the group of a pod as the scheduler's cache has it, for a cycle in which no placements are generated. Pods with
// scheduling gates, and those that are being deleted, are not placed.
func (p *Plugin) members(pod *v1.Pod) (*group, error) {
	lister, name := p.handle.SnapshotSharedLister(), *pod.Spec.SchedulingGroup.PodGroupName
	object, err := lister.PodGroups().Get(pod.Namespace, name)
	if err != nil {
		return nil, fmt.Errorf("get pod group %s/%s: %w", pod.Namespace, name, err)
	}
	state, err := lister.PodGroupStates().Get(pod.Namespace, name)
	if err != nil {
		return nil, fmt.Errorf("get the pods of pod group %s/%s: %w", pod.Namespace, name, err)
	}
	g := &group{object: object, scheduled: state.ScheduledPods()}
	for _, other := range state.UnscheduledPods() {
		if len(other.Spec.SchedulingGates) == 0 && other.DeletionTimestamp == nil {
			g.waiting = append(g.waiting, other)
		}
	}
	return g, nil
}
