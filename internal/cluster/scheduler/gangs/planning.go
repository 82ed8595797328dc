package gangs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
	core "github.com/berth-gpu/berth/internal/core/fleet/gang"
)

// attempt is one planning of a gang: what is asked, by a copy of what the registry knows of the gang, and what came of it.
type attempt struct {
	// Question is what the planner is asked. Its View has the members that are planned.
	gangplanner.Question
	// key and view are those of the gang, with all members.
	key    gangplan.Key
	view   *gangplan.Gang
	absent map[types.UID]bool
	masks  map[string]mask
	// held is what is held for others.
	held []*hold
	// version, freed and changes are those of the model, of the holds and of the gang that the question knows of.
	version uint64
	freed   uint64
	changes uint64
	// devices is true where members get devices by Kubernetes' own plugin.
	devices bool

	// result is the plan, and short is true where the answer was that the gang does not fit.
	result *gangplanner.Plan
	short  bool
	// pause is how long the gang waits before it is planned again, if it is refused.
	pause time.Duration
	// search is what was found that has to end for the gang; nil where that was not sought yet.
	search *search
}

// members are those that are planned: bound ones, and those that can be given a node now.
func (q *attempt) members() (list, absent []*v1.Pod) {
	for _, pod := range q.view.Members {
		switch {
		case q.Bound[pod.UID] != "":
			list = append(list, pod)
		case len(pod.Spec.SchedulingGates) > 0:
		case q.absent[pod.UID]:
			absent = append(absent, pod)
		default:
			list = append(list, pod)
		}
	}
	return list, absent
}

// decide returns the node of a member, or why it has none. It plans the gang if that was not done for this state, and returns what was
// asked if the gang does not fit.
func (p *Plugin) decide(pod *v1.Pod, nodes []fwk.NodeInfo) (node, text string, asked *attempt, err error) {
	r := p.gangs

	// See whether the stage of the gang has the answer.
	r.mu.Lock()
	g := r.of(pod)
	if g == nil {
		r.mu.Unlock()
		return "", unknownGang, nil, nil
	}
	node, text = r.nodeByStage(g, pod, p.model.Version())
	if node != "" || text != "" {
		r.mu.Unlock()
		return node, text, nil, nil
	}

	// Use the result of the planning beside the cycles.
	if j := g.job; j != nil {
		r.mu.Unlock()
		return p.conclude(pod, g, j, nodes)
	}

	// Plan on a copy of what is known of the gang, without the lock; beside the cycles, if it takes more than a cycle may.
	q := r.ask(g, corev1helpers.PodPriority(pod), p.model.Version(), nodes)
	r.dequeueJob(g)
	r.mu.Unlock()

	began := r.clock.Now()
	planned, text, err := p.plan(&q)
	switch {
	case errors.Is(err, core.ErrSteps):
		return "", p.begin(g, &q, nodes), nil, nil
	case err != nil:
		return "", "", nil, err
	}
	q.pause = pauseAfter(r.clock.Since(began))

	// Keep the answer, if it is still one for this gang.
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gangs[q.key] != g {
		return "", unknownGang, nil, nil
	}
	if g.changes != q.changes {
		g.wakeAt(r.clock.Now())
		return "", "the gang has changed while it was planned", nil, nil
	}
	if node, text = r.answer(g, pod, &q, planned, text); q.short {
		asked = &q
	}
	return node, text, asked, nil
}

// ask returns what to plan for a gang.
func (r *registry) ask(g *gang, priority int32, version uint64, nodes []fwk.NodeInfo) attempt {
	held := r.holds.others(&seeker{key: g.key, priority: priority})
	masks, allowed := g.validMasks(r.clock.Now()), map[string]map[string]bool{}
	for signature, m := range masks {
		allowed[signature] = m.allowed
	}
	return attempt{
		Question: gangplanner.Question{
			Levels:   r.levels,
			Bound:    g.nodes(),
			Allowed:  allowed,
			Nodes:    nodes,
			Taken:    taken(held),
			Left:     r.left(g, nodes),
			Promised: r.promised(held),
			Plans:    1,
			Budget:   core.Budget{Steps: r.limits.CycleSteps},
		},
		key:     g.key,
		view:    r.build(g),
		absent:  maps.Clone(g.absent),
		masks:   masks,
		held:    held,
		version: version,
		freed:   r.holds.freed,
		changes: g.changes,
	}
}

// left returns what the members of a gang can use of nodes where places are reserved for others.
func (r *registry) left(g *gang, nodes []fwk.NodeInfo) map[string]v1.ResourceList {
	if r.line.first == nil && len(r.errands.evictions) == 0 && r.holds.count.Load() == 0 {
		return nil
	}
	now := r.server.now()
	who := together(r.build(g).Members, now)
	who.key, who.priority = g.key, g.priority()
	return r.holds.leftOn(nodes, &who, now)
}

// heldAgainst returns what is held against pods of no gang that are placed together, and what these can use of nodes where places are
// reserved.
func (r *registry) heldAgainst(pods []*v1.Pod, nodes []fwk.NodeInfo) ([]*hold, map[string]v1.ResourceList) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds.expire(r.clock.Now())
	now := r.server.now()
	who := together(pods, now)
	return r.holds.others(&who), r.holds.leftOn(nodes, &who, now)
}

// together returns pods as one that looks for nodes: of their lowest priority, and it ends with the last of them.
func together(pods []*v1.Pod, now time.Time) (who seeker) {
	for i, pod := range pods {
		if priority := corev1helpers.PodPriority(pod); i == 0 || priority < who.priority {
			who.priority = priority
		}
	}
	for _, pod := range pods {
		end, _ := endOf(pod, now.Add(bindTime))
		if pod.Spec.ActiveDeadlineSeconds == nil || end.IsZero() {
			who.ends = time.Time{}
			break
		}
		who.ends = later(who.ends, end)
	}
	return who
}

// unknownGang is why a member waits whose gang has ended in between.
const unknownGang = "the gang of the pod is not known"

// nodeByStage returns the node of a member, or why it has none, as far as the stage of the gang says; both are empty where the gang is to
// be planned.
func (r *registry) nodeByStage(g *gang, pod *v1.Pod, version uint64) (node, text string) {
	now := r.clock.Now()
	r.holds.expire(now)
	if g.absent[pod.UID] {
		delete(g.absent, pod.UID)
		r.forgetRefusal(g)
	}
	if view := r.build(g); !ready(view) {
		return "", view.Problem + view.Waiting
	}
	if g.plan != nil {
		if node := g.plan.nodes[pod.UID]; node != "" {
			return node, ""
		}
		// A member that the plan does not have: there was no capacity for it, or it is new. It is planned once the others are bound.
		g.afterPlan = true
		return "", "the other members of the gang are being placed"
	}
	if held := r.holds.byPod[pod.UID]; held != nil {
		return held.node, ""
	}
	if text, waits := r.waitsForJob(g); waits {
		return "", text
	}
	if now.Before(g.next) {
		return "", r.pausing(g, version)
	}
	if f := g.refusal; f != nil {
		// Claims and slices have no part in the version.
		same := f.version == version && f.freed == r.holds.freed && !f.devices
		if same {
			return "", g.reason(f.reason)
		}
		if repeated := f.when.Add(r.limits.Repeat); now.Before(repeated) && !r.first(g, pod) {
			g.wakeAt(repeated) // No event may bring the first one back.
			return "", g.reason(f.reason)
		}
	}
	return "", ""
}

// pausing returns why a gang is not planned now, and has it planned later.
func (r *registry) pausing(g *gang, version uint64) string {
	if f := g.refusal; f != nil {
		if f.version != version || f.freed != r.holds.freed {
			g.wakeAt(g.next)
		}
		return g.reason(f.reason)
	}
	g.wakeAt(g.next)
	text := fmt.Sprintf("gang %s is planned again in a moment", g.name)
	if g.failures > 0 {
		text += fmt.Sprintf(", since the last %d plans could not be carried out: %s", g.failures, g.failure)
	}
	return text
}

// answer keeps what was planned, or why there is no plan, and returns it for one member.
func (r *registry) answer(g *gang, pod *v1.Pod, q *attempt, planned map[types.UID]gangplanner.Place, text string) (node, why string) {
	if text == "" && len(planned) == 0 {
		text = gangplanner.NoMore(q.view, r.levels)
	}
	if text != "" {
		if len(q.Left) > 0 {
			text += r.besides(g)
		}
		r.refuse(g, &refusal{version: q.version, freed: q.freed, when: r.clock.Now(), reason: text, devices: q.devices})
		g.wakeAfterHold(len(q.held)+len(q.Left) > 0, q.freed)
		if q.pause > 0 {
			g.next = r.clock.Now().Add(q.pause)
		}
		for _, m := range q.masks {
			g.wakeAt(m.until)
		}
		g.setShort(q.short, r.clock.Now())
		return "", g.reason(text)
	}
	if node = planned[pod.UID].Node; node == "" {
		r.leaveToOthers(g)
		g.wakeAt(r.clock.Now()) // One of those that get a node has to take it.
		return "", fmt.Sprintf("gang %s has its least number of members, %d, and there is capacity for others only", g.name, q.view.Min)
	}
	r.adopt(g, planned)
	return node, ""
}

// nodes are those of the members that have one, as far as this scheduler knows.
func (g *gang) nodes() map[types.UID]string {
	nodes := map[types.UID]string{}
	for uid, pod := range g.pods {
		if pod.Spec.NodeName != "" {
			nodes[uid] = pod.Spec.NodeName
		} else if node := g.bound[uid]; node != "" {
			nodes[uid] = node
		}
	}
	return nodes
}

// plan plans a gang: the node of each member that has none and for which there is capacity, or why there is no plan.
func (p *Plugin) plan(q *attempt) (map[types.UID]gangplanner.Place, string, error) {
	// Choose the members, and see whether they are enough.
	view := *q.view
	var absent []*v1.Pod
	if view.Members, absent = q.members(); len(view.Members) < gangplan.Least(q.view) {
		return nil, fmt.Sprintf("berth: gang %s waits as a whole: %s of it cannot be scheduled, see its condition", q.key, absent[0].Name), nil
	}

	// Ask the planner.
	question := p.questionOf(q, &view)
	q.devices = p.planner.Devices != nil && slices.ContainsFunc(view.Members, p.planner.Devices.Needs)
	answer, err := p.planner.Plan(question)

	// Say why there is no plan.
	switch {
	case err != nil:
		return nil, "", fmt.Errorf("plan gang %s: %w", q.key, err)
	case answer.Problem != "":
		return nil, answer.Problem, nil
	case answer.Gone > 0:
		return nil, fmt.Sprintf("berth: gang %s waits as a whole: %d of its members are on nodes that do not exist", q.key, answer.Gone), nil
	case answer.Refusal != nil:
		q.short = true
		return nil, gangplanner.Sentence(q.key, answer.Refusal, p.gangs.levels), nil
	}
	q.result = &answer.Plans[0]
	return q.result.Places, "", nil
}

// questionOf sets what the question has of the plugin: its policy, what its model counts of the holds, and the members that are planned.
func (p *Plugin) questionOf(q *attempt, view *gangplan.Gang) *gangplanner.Question {
	q.Policy, q.Held, q.View = p.policy(), wanted(q.held, p.model), view
	return &q.Question
}
