package gangs

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangview"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplan"
)

// question is what to plan: a copy of what the registry knows of a gang.
type question struct {
	key     gangview.Key
	view    *gangview.Gang
	bound   map[types.UID]string
	masks   map[string]mask
	held    []*hold
	version uint64
}

// decide returns the node of a member, or why it has none. It plans the gang if that was not done for this state.
func (p *Plugin) decide(pod *v1.Pod, nodes []fwk.NodeInfo) (node, text string, err error) {
	r := p.gangs
	r.mu.Lock()
	g := r.of(pod)
	if g == nil {
		r.mu.Unlock()
		return "", "the gang of the pod is not known", nil
	}
	r.holds.expire(r.clock.Now())
	view := r.build(g)
	if !ready(view) {
		r.mu.Unlock()
		return "", view.Problem + view.Waiting, nil
	}
	if g.plan != nil {
		if node := g.plan.nodes[pod.UID]; node != "" {
			r.mu.Unlock()
			return node, "", nil
		}
		if !g.plan.permitted {
			// A member that the plan does not have: there was no room for it, or it is new. It is planned once the others are bound.
			r.mu.Unlock()
			return "", "the other members of the gang are being placed", nil
		}
	}
	if held := r.holds.byPod[pod.UID]; held != nil {
		r.mu.Unlock()
		return held.node, "", nil
	}
	if g.refused != nil && (g.refused.version == p.model.Version() || r.clock.Since(g.refused.at) < refusedFor && !r.first(g, pod)) {
		text = g.refused.text
		r.mu.Unlock()
		return "", text, nil
	}
	q := question{key: g.key, view: view, bound: g.nodes(), masks: g.validMasks(r.clock.Now()), held: r.holds.others(g.key), version: p.model.Version()}
	r.mu.Unlock()

	planned, text, err := p.plan(&q, nodes)
	if err != nil {
		return "", "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gangs[q.key] != g || g.view != view {
		return "", "the gang has changed while it was planned", nil
	}
	if text != "" {
		g.refused = &refused{version: q.version, at: r.clock.Now(), text: text}
		return "", text, nil
	}
	if node = planned[pod.UID].Node; node == "" {
		return "", fmt.Sprintf("gang %s has its least number of members, %d, and there is no room for more", g.key, view.Min), nil
	}
	r.adopt(g, planned)
	return node, "", nil
}

// nodes are those of the members that have one, as far as this scheduler knows. The caller holds the lock.
func (g *gang) nodes() map[types.UID]string {
	nodes := map[types.UID]string{}
	for uid, pod := range g.pods {
		if pod.Spec.NodeName != "" {
			nodes[uid] = pod.Spec.NodeName
		} else if node := g.bound[uid]; node != "" {
			nodes[uid] = node
		}
	}
	if g.plan != nil {
		for uid, node := range g.plan.nodes {
			nodes[uid] = node
		}
	}
	return nodes
}

// adopt keeps a plan, and holds its places. The caller holds the lock.
func (r *registry) adopt(g *gang, planned map[types.UID]gangplan.Place) {
	if g.plan == nil {
		g.plan = &plan{nodes: map[types.UID]string{}, reserved: map[types.UID]bool{}, made: r.clock.Now()}
	}
	g.refused = nil
	for uid, at := range planned {
		g.plan.nodes[uid] = at.Node
		r.holds.found(g.key, at.Node)
		r.holds.add(&hold{pod: uid, gang: g.key, node: at.Node, requests: at.Requests, amounts: gangplan.Amounts(at.Pod)})
	}
}

// plan plans a gang: the node of each member that has none and for which there is room, or why there is no plan.
func (p *Plugin) plan(q *question, nodes []fwk.NodeInfo) (map[types.UID]gangplan.Place, string, error) {
	allowed := map[string]map[string]bool{}
	for text, m := range q.masks {
		allowed[text] = m.allowed
	}
	answer, err := p.planner.Plan(&gangplan.Question{
		Policy: p.policy(), Levels: p.gangs.levels, Members: q.view.Members, Min: least(q.view), Topology: q.view.Topology, Bound: q.bound,
		Allowed: allowed, Nodes: nodes, Held: wanted(q.held, p.model), Plans: 1,
	})
	switch {
	case err != nil:
		return nil, "", fmt.Errorf("plan gang %s: %w", q.key, err)
	case answer.Problem != "":
		return nil, answer.Problem, nil
	case answer.Refusal != nil:
		return nil, gangplan.Sentence(q.key, answer.Refusal), nil
	}
	return answer.Plans[0].Places, "", nil
}
