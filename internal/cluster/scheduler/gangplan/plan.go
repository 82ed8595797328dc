package gangplan

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangview"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/claims"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
	"github.com/berth-gpu/berth/internal/core/fleet"
	"github.com/berth-gpu/berth/internal/core/fleet/gang"
)

// Planner plans gangs of pods.
type Planner struct {
	Model *model.Model
	// Claims is nil where ResourceClaims are not known.
	Claims *claims.Scorer
}

// Question is what to plan.
type Question struct {
	Policy string
	Levels gangview.Levels
	// Members are in the order of their rank, Min is how many of them are placed or none.
	Members  []*v1.Pod
	Min      int
	Topology gangview.Topology
	// Bound are the nodes of members that have one.
	Bound map[types.UID]string
	// Allowed are the nodes that other plugins let members use, by their signature, where that is known.
	Allowed map[string]map[string]bool
	// Nodes is the snapshot that the model was given last, Within those of it that are considered; nil is all.
	Nodes  []fwk.NodeInfo
	Within map[string]bool
	Held   []model.Held
	// Plans is how many plans are wanted.
	Plans int
}

// Answer has plans, the best first, or says why there is none.
type Answer struct {
	Plans []Plan
	// Refusal is why the gang does not fit, Problem what is wrong with the question.
	Refusal *gang.Refusal
	Problem string
}

// Plan is where the members go that have no node.
type Plan struct {
	Places map[types.UID]Place
	// Level is the name of the narrowest level of which one domain has all members, Domain the name of the domain; both may be empty.
	Level, Domain string
	// Exact is false where there may be a better plan, which places more members.
	Exact bool
}

// Place is what a plan says of a member.
type Place struct {
	Pod      *v1.Pod
	Node     string
	Requests []fleet.Shape
}

// Plan plans a gang.
func (p *Planner) Plan(q *Question) (Answer, error) {
	members := slices.Clone(q.Members)
	if q.Topology.SegmentSize == 0 {
		// The members that are bound count for the least number, whatever their rank.
		slices.SortStableFunc(members, func(a, b *v1.Pod) int { return boolean(q.Bound[a.UID] == "") - boolean(q.Bound[b.UID] == "") })
	}
	g := &gang.Gang{}
	levels, err := setLevels(g, q.Levels, q.Topology)
	if err != nil {
		return Answer{Problem: err.Error()}, nil
	}
	var list classes
	members = slices.DeleteFunc(members, func(pod *v1.Pod) bool {
		node := q.Bound[pod.UID]
		_, known := p.Model.Index(node)
		return node != "" && !known // Its node is gone, and the member will be.
	})
	for _, pod := range members {
		member := gang.Member{Node: gang.Unbound}
		if i, ok := p.Model.Index(q.Bound[pod.UID]); ok {
			member.Node = i
		}
		if member.Class, err = list.of(p, pod, q.Allowed); err != nil {
			return Answer{}, err
		}
		g.Members = append(g.Members, member)
	}
	g.Min = max(1, min(q.Min, len(members)))
	for c := range list {
		g.Classes = append(g.Classes, gang.Class{Requests: list[c].requests, Room: list[c].room(p, q)})
	}
	if sharesClaim(members) {
		g.Required, g.Preferred = len(levels), len(levels)
	}
	made, refusal, err := p.Model.Plans(q.Policy, levels, g, q.Held, max(1, q.Plans))
	if err != nil || refusal != nil {
		return Answer{Refusal: refusal}, err
	}
	topology := p.Model.Topology(levels)
	answer := Answer{}
	for i := range made {
		plan := Plan{Places: map[types.UID]Place{}, Level: topology.Name(made[i].Level), Domain: made[i].Domain, Exact: made[i].Exact}
		for at, pod := range members {
			if node := made[i].Nodes[at]; node != gang.Unbound && g.Members[at].Node == gang.Unbound {
				plan.Places[pod.UID] = Place{pod, p.Model.View(node).Node.Name, g.Classes[g.Members[at].Class].Requests}
			}
		}
		answer.Plans = append(answer.Plans, plan)
	}
	return answer, nil
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Sentence says why a gang does not fit.
func Sentence(key gangview.Key, refusal *gang.Refusal) string {
	text := fmt.Sprintf("berth: gang %s waits as a whole: %s", key, refusal)
	if refusal.Wider != "" {
		text += fmt.Sprintf("; it would fit in %s", in(refusal.Wider))
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

// setLevels sets the levels of a gang, and returns the labels of its topology, the widest first.
func setLevels(g *gang.Gang, known gangview.Levels, t gangview.Topology) ([]string, error) {
	var keys []string
	for _, l := range known {
		if l.Key != v1.LabelHostname {
			keys = append(keys, l.Key)
		}
	}
	for _, key := range []string{t.Required, t.Preferred, t.SegmentLevel} {
		if key != "" && key != v1.LabelHostname && !slices.Contains(keys, key) {
			// A level that the configuration does not have stands alone: it is neither wider nor narrower than the others.
			keys = []string{key}
		}
	}
	position := func(key string) (int, error) {
		if key == v1.LabelHostname {
			return len(keys), nil
		}
		if i := slices.Index(keys, key); i >= 0 {
			return i, nil
		}
		return 0, fmt.Errorf("the topology level %q cannot be combined with one that the configuration of the scheduler does not have: use levels of topologyLevels", key)
	}
	var err error
	g.Required, g.Preferred = gang.Anywhere, len(keys)
	if t.Required != "" {
		if g.Required, err = position(t.Required); err != nil {
			return nil, err
		}
	}
	if t.Preferred != "" {
		if g.Preferred, err = position(t.Preferred); err != nil {
			return nil, err
		}
		g.Preferred = max(g.Preferred, g.Required)
	}
	if t.Unconstrained {
		g.Preferred = g.Required
	}
	if t.SegmentSize > 0 {
		if g.Segment.Level, err = position(t.SegmentLevel); err != nil {
			return nil, err
		}
		g.Segment.Size = int(t.SegmentSize)
	}
	return keys, nil
}

// class are members that request the same and that other plugins let run on the same nodes.
type class struct {
	signature string
	requests  []fleet.Shape
	rules     rules
	// allowed are the nodes that other plugins let the members use; nil is not known.
	allowed map[string]bool
}

// classes are those of one gang.
type classes []class

// of returns the class of a member.
func (c *classes) of(p *Planner, pod *v1.Pod, allowed map[string]map[string]bool) (int, error) {
	text, err := Signature(pod)
	if err != nil {
		return 0, fmt.Errorf("read pod %s: %w", pod.Name, err)
	}
	if i := slices.IndexFunc(*c, func(k class) bool { return k.signature == text }); i >= 0 {
		return i, nil
	}
	made := class{signature: text, requests: p.requests(pod), rules: newRules(pod), allowed: allowed[text]}
	*c = append(*c, made)
	return len(*c) - 1, nil
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

// room returns how many members of the class other rules let run on each node.
func (k *class) room(p *Planner, q *Question) []int32 {
	room := make([]int32, len(q.Nodes))
	counted := func(name v1.ResourceName) bool {
		return name == v1.ResourceCPU || name == v1.ResourceMemory || p.Model.Offered(name)
	}
	for position, node := range q.Nodes {
		i, name := p.Model.At(position), node.Node().Name
		if k.allowed != nil && !k.allowed[name] || q.Within != nil && !q.Within[name] {
			continue
		}
		room[i] = k.rules.room(node, counted)
	}
	return room
}

// sharesClaim tells whether several members use one ResourceClaim. Its devices are those of one node, so that these members are on one
// node.
func sharesClaim(members []*v1.Pod) bool {
	seen := map[string]bool{}
	for _, pod := range members {
		for i := range pod.Spec.ResourceClaims {
			name := pod.Spec.ResourceClaims[i].ResourceClaimName
			if name == nil {
				continue
			}
			if seen[*name] {
				return true
			}
			seen[*name] = true
		}
	}
	return false
}
