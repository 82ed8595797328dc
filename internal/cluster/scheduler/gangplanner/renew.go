package gangplanner

import (
	"errors"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/budgets"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
	"github.com/berth-gpu/berth/internal/core/fleet/gang"
)

// What a question costs before it comes to the planner of package gang, in steps of gang.Budget: to read a member, and to apply the rules
// of a class of members to a node.
const signatureSteps, capacitySteps = 1000, 50

// exceeds tells whether so many steps are more than the budget has.
func (q *Question) exceeds(steps int) bool {
	return q.Budget.Steps > 0 && uint64(steps) > q.Budget.Steps
}

// errOther is why a plan is of no use that was made for members on other nodes.
var errOther = errors.New("members of the gang are on other nodes than the plan was made for")

// Renew returns a plan, which was made of an earlier state of the cluster, as it is in that of the question: members whose places are
// still free keep them, and the others are planned beside them. It returns nil where there is no plan with these, or the budget is used
// up, and then the places that are still free. The members of the gang are those for which the plan was made.
func (p *Planner) Renew(q *Question, old *Plan) (*Plan, map[types.UID]Place, error) {
	if old.devices {
		return p.renewDevices(q, old)
	}
	needs, made, err := p.present(q, old, nil)
	if err != nil {
		return nil, nil, err
	}
	plan, kept, refusal, err := p.Model.Renew(q.Policy, needs.Keys, &needs.Gang, q.Held, made, q.Budget)
	over := errors.Is(err, gang.ErrSteps)
	if err != nil && !over {
		return nil, nil, err
	}
	if refusal != nil || over {
		made.Nodes = kept
		return nil, p.read(needs, made).Places, nil
	}
	renewed := p.read(needs, &plan)
	return &renewed, nil, nil
}

// renewDevices returns a plan whose members get devices by Kubernetes' own plugin as it is, if what the model knows of its places is still
// free: which devices are is known only by asking the plugin about each member, which the cycles of the members do.
func (p *Planner) renewDevices(q *Question, old *Plan) (*Plan, map[types.UID]Place, error) {
	kept := map[types.UID]Place{}
	err := p.Model.Try(q.Policy, q.Held, func(trial *model.Trial) error {
		for _, uid := range slices.Sorted(maps.Keys(old.Places)) {
			at := old.Places[uid]
			if node, known := p.Model.Index(at.Node); known && q.Bound[uid] == "" && trial.Place(node, at.Requests) {
				kept[uid] = at
			}
		}
		return nil
	})
	if err != nil || len(kept) < len(old.Places) {
		return nil, kept, err
	}
	return old, nil, nil
}

// Stands tells whether pods, which were to end for a gang by an earlier state of the cluster, still have to end for it: it gets its places
// when those have ended that are on their nodes, and does not fit before.
func (p *Planner) Stands(q *Question, ending *Ending, present func(*v1.Pod) bool) (bool, error) {
	var holders []Holder
	gone := map[types.UID]bool{}
	for _, pod := range ending.Pods {
		if present(pod) {
			holders = append(holders, Holder{Pods: []*v1.Pod{pod}})
			gone[pod.UID] = true
		}
	}
	needs, made, err := p.present(q, &ending.Plan, gone)
	if err != nil {
		return false, err
	}
	return p.Model.Stands(q.Policy, needs.Keys, &needs.Gang, q.Held, p.holders(holders, budgets.New(nil)), made, q.Budget)
}

// present returns what a plan was made for, and the plan, by the nodes that there are now. That of a member is gang.Gone where it does
// not exist any more.
func (p *Planner) present(q *Question, old *Plan, gone map[types.UID]bool) (*gangplan.Requirements, *gang.Plan, error) {
	needs, made := *old.needs, old.solution
	needs.Gang.Members, needs.Gang.Classes = slices.Clone(needs.Gang.Members), slices.Clone(needs.Gang.Classes)
	made.Nodes = slices.Repeat([]int{gang.Unbound}, len(needs.Members))
	planned := map[string]bool{}
	for i, pod := range needs.Members {
		member := &needs.Gang.Members[i]
		was := member.Node != gang.Unbound
		member.Node = gang.Unbound
		if node := q.Bound[pod.UID]; node != "" {
			at, known := p.Model.Index(node)
			if !known || !was {
				return nil, nil, errOther
			}
			member.Node, made.Nodes[i] = at, at
			continue
		}
		if was {
			return nil, nil, errOther
		}
		if place, has := old.Places[pod.UID]; has {
			planned[place.Node] = true
			made.Nodes[i] = gang.Gone
			if at, known := p.Model.Index(place.Node); known {
				made.Nodes[i] = at
			}
		}
	}
	narrow := *q
	if q.exceeds(len(needs.Classes) * len(q.Nodes) * capacitySteps) {
		narrow.Within = planned // Members of so many kinds are planned again for these nodes only.
	}
	p.limit(&needs, &narrow, gone)
	return &needs, &made, nil
}
