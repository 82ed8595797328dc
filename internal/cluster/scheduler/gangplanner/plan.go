package gangplanner

import (
	"fmt"
	"maps"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/claims"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
	"github.com/berth-gpu/berth/internal/core/fleet"
	"github.com/berth-gpu/berth/internal/core/fleet/gang"
)

// Planner plans gangs of pods.
type Planner struct {
	Model *model.Model
	// Claims is nil where ResourceClaims are not known, as Devices is.
	Claims  *claims.Scorer
	Devices Devices
}

// Question is what to plan.
type Question struct {
	Policy string
	Levels gangplan.Levels
	// View is the gang: its members, of which Min less Done are placed or none.
	View *gangplan.Gang
	// Bound are the nodes of members that have one.
	Bound map[types.UID]string
	// Allowed are the nodes that other plugins let members use, by their signature, where that is known.
	Allowed map[string]map[string]bool
	// Nodes is the snapshot that the model was given last, Within those of it that are considered; nil is all.
	Nodes  []fwk.NodeInfo
	Within map[string]bool
	Held   []model.Held
	// Taken is what others hold of nodes beside what the model counts, by the names of the nodes.
	Taken map[string]v1.ResourceList
	// Left is what members can use of nodes where places are reserved, by the names of these nodes.
	Left map[string]v1.ResourceList
	// Promised are pods that other gangs have promised places, and that have not taken them yet.
	Promised []Place
	// Plans is how many plans are wanted.
	Plans int
	// Budget bounds the work. Where it is used up the error is gang.ErrSteps.
	Budget gang.Budget
	// Beside is true beside the scheduling cycles, where a question may wait for a trial of another one.
	Beside bool
}

// Answer has plans, the best first, or says why there is none.
type Answer struct {
	Plans []Plan
	// Refusal is why the gang does not fit, Problem what is wrong with the question, Gone how many members are on nodes that do not exist,
	// where too few are left without them.
	Refusal *gang.Refusal
	Problem string
	Gone    int
}

// Plan is where the members go that have no node.
type Plan struct {
	Places map[types.UID]Place
	// Level is the label key of the narrowest level of which one domain has all members, Domain the name of the domain; both may be empty.
	Level  string
	Domain string
	// Exact is false where there may be a better plan, which places more members.
	Exact bool

	// needs is what was planned, and solution the plan of package gang. They are not set where members were placed one by one.
	needs    *gangplan.Requirements
	solution gang.Plan
	// devices is true where members get devices by Kubernetes' own plugin.
	devices bool
}

// Place is what a plan says of a member.
type Place struct {
	Pod      *v1.Pod
	Node     string
	Requests []fleet.Shape
}

// Plan plans a gang.
func (p *Planner) Plan(q *Question) (Answer, error) {
	if q.exceeds(len(q.View.Members) * signatureSteps) {
		return Answer{}, gang.ErrSteps
	}

	// See what the gang requires, and what each node can take of it.
	needs, answer, err := p.requirements(q, nil)
	if err != nil || needs == nil {
		return answer, err
	}

	// Plan it on the model, and with its devices.
	made, refusal, err := p.Model.Plans(q.Policy, needs.Keys, &needs.Gang, q.Held, max(1, q.Plans), q.Budget)
	switch {
	case err != nil:
		return Answer{}, err
	case p.needsDevices(needs):
		return p.withDevices(needs, q, made, refusal)
	case refusal != nil:
		return Answer{Refusal: refusal}, nil
	}

	// Name the nodes.
	result := Answer{}
	for i := range made {
		result.Plans = append(result.Plans, p.read(needs, &made[i]))
	}
	return result, nil
}

// requirements returns what the gang of a question requires, or answers why it cannot be planned. Pods that are gone take nothing of their
// nodes.
func (p *Planner) requirements(q *Question, gone map[types.UID]bool) (*gangplan.Requirements, Answer, error) {
	needs, err := gangplan.Require(gangplan.Input{
		View:     q.View,
		Levels:   q.Levels,
		Requests: p.requests,
		Node: func(pod *v1.Pod) (int, bool) {
			node := q.Bound[pod.UID]
			if node == "" {
				return gang.Unbound, true
			}
			return p.Model.Index(node)
		},
	})
	if err != nil || needs.Problem != "" {
		return nil, Answer{Problem: needs.Problem}, err
	}
	if away := len(q.View.Members) - len(needs.Members); away > 0 && gangplan.Least(q.View) > len(needs.Members) {
		return nil, Answer{Gone: away}, nil
	}
	if q.exceeds(len(needs.Classes) * len(q.Nodes) * capacitySteps) {
		return nil, Answer{}, gang.ErrSteps
	}
	p.limit(&needs, q, gone)
	return &needs, Answer{}, nil
}

// read returns a plan by the names of nodes.
func (p *Planner) read(needs *gangplan.Requirements, made *gang.Plan) Plan {
	plan := Plan{
		Places:   map[types.UID]Place{},
		Level:    p.Model.Topology(needs.Keys).Name(made.Level),
		Domain:   made.Domain,
		Exact:    made.Exact,
		needs:    needs,
		solution: *made,
	}
	for at, member := range needs.Gang.Members {
		if node := made.Nodes[at]; node != gang.Unbound && member.Node == gang.Unbound {
			pod := needs.Members[at]
			plan.Places[pod.UID] = Place{pod, p.Model.View(node).Node.Name, needs.Gang.Classes[member.Class].Requests}
		}
	}
	return plan
}

// Sentence says why a gang does not fit.
func Sentence(key gangplan.Key, refusal *gang.Refusal, levels gangplan.Levels) string {
	named := *refusal
	named.Level, named.Wider = levels.NameOf(named.Level), levels.NameOf(named.Wider)
	text := fmt.Sprintf("berth: gang %s waits as a whole: %s", key, &named)
	if named.Wider != "" {
		text += fmt.Sprintf("; it would fit in %s", in(named.Wider))
	}
	return text
}

// NoMore says why none of the members that wait is placed of a gang that has its least number of members.
func NoMore(view *gangplan.Gang, levels gangplan.Levels) string {
	text := fmt.Sprintf("gang %s has its least number of members, %d, and there is no capacity for more", view.Key, view.Min)
	if size := view.Topology.SegmentSize; size > 0 {
		text += fmt.Sprintf(" where their segments have to be, each of %d members in one %s", size, levels.NameOf(view.Topology.SegmentLevel))
	}
	return text
}

// in returns a level with its article.
func in(level string) string {
	if level == "" || level[0] == 't' { // "the whole fleet"
		return level
	}
	return "one " + level
}

// requests returns what a member requests of GPUs, those of its claims as whole GPUs.
func (p *Planner) requests(pod *v1.Pod) []fleet.Shape {
	requests := p.Model.Requests(pod)
	if p.Claims != nil && requests[0].GPUs == 0 && len(pod.Spec.ResourceClaims) > 0 {
		if list := p.Claims.Of(pod); len(list) > 0 {
			return []fleet.Shape{claims.Shape(requests[0], list)}
		}
	}
	return requests
}

// limit sets how many members rules that the model does not know let run on each node without the pods that are gone.
func (p *Planner) limit(needs *gangplan.Requirements, q *Question, gone map[types.UID]bool) {
	for c := range needs.Classes {
		needs.Gang.Classes[c].Capacity = p.capacity(&needs.Classes[c], q, gone)
	}
	needs.Gang.Others = nil
	shared := needs.Shared()
	for _, name := range slices.Sorted(maps.Keys(shared)) {
		if free, limited := p.others(name, q, gone); limited {
			needs.Gang.Others = append(needs.Gang.Others, gang.Other{Wants: shared[name], Free: free})
		}
	}
	// A port of the host that another pod uses is no capacity of the class.
	for _, users := range needs.SharedPorts() {
		needs.Gang.Others = append(needs.Gang.Others, gang.Other{Wants: users, Free: slices.Repeat([]int64{1}, len(q.Nodes))})
	}
}

// others returns how much of a resource all members together can use on each node, beside what the model counts. It is not limited where
// that is no limit on any node.
func (p *Planner) others(name v1.ResourceName, q *Question, gone map[types.UID]bool) (free []int64, limited bool) {
	free = make([]int64, len(q.Nodes))
	for position, node := range q.Nodes {
		if q.Within != nil && !q.Within[node.Node().Name] {
			continue
		}
		most := int64(math.MaxInt64)
		if !p.counted(name, node) {
			most = gangplan.Amount(name, q.free(node, gone)(name))
		}
		if left, has := q.Left[node.Node().Name][name]; has {
			most = min(most, gangplan.Amount(name, left))
		}
		free[p.Model.At(position)] = max(0, most)
		limited = limited || most < math.MaxInt64
	}
	return free, limited
}

// free returns what tells how much of a resource is free on a node without the pods that are gone, beside what others hold.
func (q *Question) free(node fwk.NodeInfo, gone map[types.UID]bool) func(v1.ResourceName) resource.Quantity {
	taken, freed := q.Taken[node.Node().Name], v1.ResourceList{}
	if len(gone) > 0 {
		freed = Amounts(node, func(pod *v1.Pod) bool { return gone[pod.UID] })
	}
	return func(name v1.ResourceName) resource.Quantity {
		quantity := Free(node, name)
		quantity.Add(freed[name])
		quantity.Sub(taken[name])
		return quantity
	}
}

// capacity returns how many members of a class other rules let run on each node without the pods that are gone.
func (p *Planner) capacity(class *gangplan.Class, q *Question, gone map[types.UID]bool) []int32 {
	capacity := make([]int32, len(q.Nodes))
	allowed := q.Allowed[class.Signature]
	for position, node := range q.Nodes {
		name := node.Node().Name
		if allowed != nil && !allowed[name] || q.Within != nil && !q.Within[name] {
			continue
		}
		repels := func(info fwk.PodInfo) bool { return !gone[info.GetPod().UID] && class.Rules.RepelledBy(info.GetPod()) }
		if class.Rules.Repels() && slices.ContainsFunc(node.GetPods(), repels) {
			continue
		}
		most := class.Rules.Capacity(node.Node(), q.free(node, gone), func(name v1.ResourceName) bool { return p.counted(name, node) })
		if left, reserved := q.Left[name]; reserved {
			most = min(most, class.Rules.Times(left))
		}
		capacity[p.Model.At(position)] = most
	}
	return capacity
}

// counted tells whether the members on a node are not limited by what is free there of a resource: the model counts it, or a DeviceClass
// serves it.
func (p *Planner) counted(name v1.ResourceName, node fwk.NodeInfo) bool {
	return name == v1.ResourceCPU || name == v1.ResourceMemory || p.Model.Offered(name) || p.servedOn(name, node)
}

// Amounts returns what some pods of a node request of it.
func Amounts(node fwk.NodeInfo, of func(*v1.Pod) bool) v1.ResourceList {
	sum := v1.ResourceList{}
	for _, info := range node.GetPods() {
		if pod := info.GetPod(); of(pod) {
			Add(sum, gangplan.Amounts(pod))
		}
	}
	return sum
}

// Add adds amounts to a sum.
func Add(sum, amounts v1.ResourceList) {
	for name, amount := range amounts {
		total := sum[name]
		total.Add(amount)
		sum[name] = total
	}
}

// Free returns what no pod of a node has of a resource.
func Free(node fwk.NodeInfo, name v1.ResourceName) resource.Quantity {
	all, used := node.GetAllocatable(), node.GetRequested()
	switch name {
	case v1.ResourceCPU:
		return *resource.NewMilliQuantity(all.GetMilliCPU()-used.GetMilliCPU(), resource.DecimalSI)
	case v1.ResourceMemory:
		return *resource.NewQuantity(all.GetMemory()-used.GetMemory(), resource.BinarySI)
	case v1.ResourceEphemeralStorage:
		return *resource.NewQuantity(all.GetEphemeralStorage()-used.GetEphemeralStorage(), resource.BinarySI)
	case v1.ResourcePods:
		return *resource.NewQuantity(int64(all.GetAllowedPodNumber()-len(node.GetPods())), resource.DecimalSI)
	}
	return *resource.NewQuantity(all.GetScalarResources()[name]-used.GetScalarResources()[name], resource.DecimalSI)
}
