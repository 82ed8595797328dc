package gangplanner

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/budgets"
	"github.com/berth-gpu/berth/internal/core/fleet"
	"github.com/berth-gpu/berth/internal/core/fleet/gang"
)

// Holder is pods on nodes that end together.
type Holder struct {
	Pods []*v1.Pod
	// Rank is what is compared first: holders of a lower one end rather than those of a higher one.
	Rank int32
	// Surplus are positions of holders that end when this one does.
	Surplus []int
}

// Ending is what has to end for a gang, and what it gets then.
type Ending struct {
	Pods []*v1.Pod
	Plan Plan
}

// End returns which of some holders, the most important first, have to end so that the gang fits: the fewest violations of budgets first,
// then the lowest of the highest ranks, then the fewest pods. It returns nil for a gang that does not fit even without all of them, for one
// that fits beside them, and for one whose devices cannot be planned: those of ResourceClaims, and of an extended
// resource that a DeviceClass serves. It also returns nil where other rules, such as the number of pods of a node, keep the gang from
// its places until more have ended. Where the budget is used up the error is gang.ErrSteps.
func (p *Planner) End(q *Question, holders []Holder, disruptions *budgets.Budgets) (*Ending, error) {
	if len(holders) == 0 || usesClaims(q.View.Members) {
		return nil, nil
	}

	// Ask what has to end as if all of the holders had ended.
	gone := map[types.UID]bool{}
	for i := range holders {
		for _, pod := range holders[i].Pods {
			gone[pod.UID] = true
		}
	}
	needs, _, err := p.requirements(q, gone)
	if err != nil || needs == nil {
		return nil, err
	}
	ended, err := p.Model.End(q.Policy, needs.Keys, &needs.Gang, q.Held, p.holders(holders, disruptions), q.Budget)
	if err != nil || ended == nil {
		return nil, err
	}

	// Name the pods of those that have to.
	ending := &Ending{Plan: p.read(needs, &ended.Plan)}
	if p.usesServed(q, &ending.Plan) {
		return nil, nil
	}
	for _, i := range ended.Holders {
		ending.Pods = append(ending.Pods, holders[i].Pods...)
	}

	// Check the places with these only. What other rules allow was asked as if all holders had ended.
	if stands, err := p.Stands(q, ending, func(*v1.Pod) bool { return true }); err != nil || !stands {
		return nil, err
	}
	return ending, nil
}

// usesServed tells whether a member of a plan gets an extended resource from a DeviceClass on its node.
func (p *Planner) usesServed(q *Question, plan *Plan) bool {
	if p.Devices == nil {
		return false
	}
	nodes := map[string]fwk.NodeInfo{}
	for _, node := range q.Nodes {
		nodes[node.Node().Name] = node
	}
	for _, at := range plan.Places {
		for name, amount := range gangplan.Amounts(at.Pod) {
			if node := nodes[at.Node]; !amount.IsZero() && node != nil && p.servedOn(name, node) {
				return true
			}
		}
	}
	return false
}

func usesClaims(pods []*v1.Pod) bool {
	return slices.ContainsFunc(pods, func(pod *v1.Pod) bool { return len(pod.Spec.ResourceClaims) > 0 })
}

// Started returns when the first of some pods started, in nanoseconds; 0 if none has.
func Started(pods []*v1.Pod) (first int64) {
	for _, pod := range pods {
		if start := pod.Status.StartTime; start != nil && (first == 0 || start.UnixNano() < first) {
			first = start.UnixNano()
		}
	}
	return first
}

// holders describes holders by what is free on nodes when they have ended.
func (p *Planner) holders(list []Holder, disruptions *budgets.Budgets) *gang.Holders {
	// Each holder has its budgets, and its share of the nodes.
	made := &gang.Holders{Budgets: disruptions.Allowed}
	at, nodes := map[types.UID]int{}, map[int]bool{}
	for i := range list {
		h := gang.Holder{Pods: len(list[i].Pods), Priority: list[i].Rank, Started: Started(list[i].Pods), With: list[i].Surplus}
		for _, pod := range list[i].Pods {
			at[pod.UID] = i
			if counted := disruptions.Of(pod); len(counted) > 0 {
				h.Budgets = append(h.Budgets, counted)
			}
			if node, known := p.Model.Index(pod.Spec.NodeName); known {
				nodes[node] = true
				h.Parts = add(h.Parts, node, pod)
			}
		}
		made.List = append(made.List, h)
	}

	// The GPUs of a node become free with all the holders that use them.
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		for _, held := range p.Model.View(node).Held() {
			positions, ends := held.EndsWith(func(uid string) (int, bool) {
				i, found := at[types.UID(uid)]
				return i, found
			})
			if ends {
				made.Held = append(made.Held, gang.Held{Node: node, Holders: positions, GPUs: held.GPUs, Traffic: held.Traffic})
			}
		}
	}
	return made
}

// add adds what a pod has of a node to the parts of its holder.
func add(parts []gang.Part, node int, pod *v1.Pod) []gang.Part {
	i := slices.IndexFunc(parts, func(part gang.Part) bool { return part.Node == node })
	if i < 0 {
		i, parts = len(parts), append(parts, gang.Part{Node: node})
	}
	cpu, memory := fleetview.Taken(pod)
	parts[i].CPU, parts[i].Memory = min(fleet.MaxAmount, parts[i].CPU+cpu), min(fleet.MaxAmount, parts[i].Memory+memory)
	return parts
}
