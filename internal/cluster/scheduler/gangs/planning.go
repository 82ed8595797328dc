package gangs

import (
	"context"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangview"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/claims"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
	core "github.com/berth-gpu/berth/internal/core/fleet/gang"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// question is what to plan: a copy of what the registry knows of a gang.
type question struct {
	key     gangview.Key
	view    *gangview.Gang
	bound   map[types.UID]string
	absent  map[types.UID]bool
	masks   map[string]mask
	held    []*hold
	version uint64
	freed   uint64
}

// members are those that are planned: bound ones, and those that can be given a node now.
func (q *question) members() (list, absent []*v1.Pod) {
	for _, pod := range q.view.Members {
		switch {
		case q.bound[pod.UID] != "":
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

// decide returns the node of a member, or why it has none. It plans the gang if that was not done for this state.
func (p *Plugin) decide(ctx context.Context, pod *v1.Pod, nodes []fwk.NodeInfo) (node, text string, err error) {
	r := p.gangs
	r.mu.Lock()
	g := r.of(pod)
	if g == nil {
		r.mu.Unlock()
		return "", "the gang of the pod is not known", nil
	}
	now := r.clock.Now()
	r.holds.expire(now)
	if g.absent[pod.UID] {
		delete(g.absent, pod.UID)
		g.refused = nil
	}
	view := r.build(g)
	if !ready(view) {
		r.mu.Unlock()
		return "", view.Problem + view.Waiting, nil
	}
	if g.plan != nil {
		node, text := g.plan.nodes[pod.UID], ""
		if node == "" {
			// A member that the plan does not have: there was no room for it, or it is new. It is planned once the others are bound.
			text = "the other members of the gang are being placed"
			g.afterPlan = true
		}
		r.mu.Unlock()
		return node, text, nil
	}
	if held := r.holds.byPod[pod.UID]; held != nil {
		r.mu.Unlock()
		return held.node, "", nil
	}
	if now.Before(g.next) && g.refused != nil {
		text := g.refused.text
		if g.refused.version != p.model.Version() || g.refused.freed != r.holds.freed {
			g.wakeAt(g.next)
		}
		r.mu.Unlock()
		return "", text, nil
	}
	if now.Before(g.next) {
		text := fmt.Sprintf("gang %s is planned again in a moment", g.name)
		if g.failures > 0 {
			text += fmt.Sprintf(", since the last %d plans could not be carried out: %s", g.failures, g.failure)
		}
		g.wakeAt(g.next)
		r.mu.Unlock()
		return "", text, nil
	}
	if f := g.refused; f != nil && (f.version == p.model.Version() && f.freed == r.holds.freed || now.Sub(f.at) < r.limits.Repeat && !r.first(g, pod)) {
		r.mu.Unlock()
		return "", f.text, nil
	}
	q := question{
		key: g.key, view: view, bound: g.nodes(), absent: maps.Clone(g.absent), masks: g.validMasks(now), held: r.holds.others(g.key, corev1helpers.PodPriority(pod)),
		version: p.model.Version(), freed: r.holds.freed,
	}
	changes := g.changes
	r.mu.Unlock()

	began := r.clock.Now()
	planned, text, err := p.plan(ctx, &q, nodes)
	if err != nil {
		return "", "", err
	}
	pause := pauseAfter(r.clock.Since(began))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gangs[q.key] != g {
		return "", "the gang of the pod is not known", nil
	}
	if g.changes != changes {
		g.wakeAt(r.clock.Now())
		return "", "the gang has changed while it was planned", nil
	}
	if text == "" && len(planned) == 0 {
		text = fmt.Sprintf("gang %s has its least number of members, %d, and there is no room for more", g.name, view.Min)
	}
	if text != "" {
		g.refused = &refused{version: q.version, freed: q.freed, at: r.clock.Now(), text: text}
		g.afterHold, g.freed = len(q.held) > 0, q.freed
		if pause > 0 {
			g.next = r.clock.Now().Add(pause)
		}
		for _, m := range q.masks {
			g.wakeAt(m.until)
		}
		return "", text, nil
	}
	if node = planned[pod.UID].node; node == "" {
		g.wakeAt(r.clock.Now()) // One of those that get a node has to take it.
		return "", fmt.Sprintf("gang %s has its least number of members, %d, and there is room for others only", g.name, view.Min), nil
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
	return nodes
}

// place is what a plan says of a member.
type place struct {
	pod      *v1.Pod
	node     string
	requests []fleet.Shape
}

// adopt keeps a plan, and holds its places. The caller holds the lock.
func (r *registry) adopt(g *gang, planned map[types.UID]place) {
	g.plan = &plan{nodes: map[types.UID]string{}, reserved: map[types.UID]bool{}, progress: r.clock.Now()}
	g.refused = nil
	if len(g.nodes()) == 0 {
		g.whole, g.followed = false, true
	}
	for uid, at := range planned {
		g.plan.nodes[uid] = at.node
		if lost := r.holds.found(g.key, at.node); lost != nil {
			g.plan.replaced = append(g.plan.replaced, lost)
		}
		r.holds.add(&hold{pod: uid, gang: g.key, node: at.node, requests: at.requests, amounts: amountsOf(at.pod)})
	}
}

// plan plans a gang: the node of each member that has none and for which there is room, or why there is no plan.
func (p *Plugin) plan(ctx context.Context, q *question, nodes []fwk.NodeInfo) (map[types.UID]place, string, error) {
	members, absent := q.members()
	if len(members) < least(q.view) {
		return nil, fmt.Sprintf("berth: gang %s waits as a whole: %s of it cannot be scheduled, see its condition", q.key, absent[0].Name), nil
	}
	topology := q.view.Topology
	if topology.SegmentSize == 0 {
		// The members that are bound count for the least number, whatever their rank.
		slices.SortStableFunc(members, func(a, b *v1.Pod) int { return boolean(q.bound[a.UID] == "") - boolean(q.bound[b.UID] == "") })
	}
	g := &core.Gang{Min: max(1, min(least(q.view), len(members)))}
	levels, err := p.levels(g, topology)
	if err != nil {
		return nil, err.Error(), nil
	}
	var classes classes
	gone := 0
	for _, pod := range members {
		member := core.Member{Node: core.Unbound}
		if node := q.bound[pod.UID]; node != "" {
			i, ok := p.model.Index(node)
			if !ok {
				gone++
				continue // Its node is gone, and the member will be.
			}
			member.Node = i
		}
		if member.Class, err = classes.of(ctx, p, pod, q.masks); err != nil {
			return nil, "", err
		}
		g.Members = append(g.Members, member)
	}
	if g.Min > len(g.Members) {
		return nil, fmt.Sprintf("berth: gang %s waits as a whole: %d of its members are on nodes that do not exist", q.key, gone), nil
	}
	for c := range classes.list {
		g.Classes = append(g.Classes, core.Class{Requests: classes.list[c].requests, Room: classes.list[c].room(p, nodes)})
	}
	if shared := sharedClaim(members); shared != "" {
		g.Required, g.Preferred = len(levels), len(levels)
	}
	var held []model.Held
	for _, h := range q.held {
		if i, ok := p.model.Index(h.node); ok && len(h.requests) > 0 {
			held = append(held, model.Held{Node: i, Requests: h.requests})
		}
	}
	made, refusal, err := p.model.Plan(p.policy(), levels, g, held)
	if err != nil {
		return nil, "", fmt.Errorf("plan gang %s: %w", q.key, err)
	}
	if refusal != nil {
		return nil, p.sentence(q, refusal), nil
	}
	planned := map[types.UID]place{}
	at := 0
	for _, pod := range members {
		if node := q.bound[pod.UID]; node != "" {
			if _, ok := p.model.Index(node); ok {
				at++
			}
			continue
		}
		if i := made.Nodes[at]; i != core.Unbound {
			planned[pod.UID] = place{pod, p.model.View(i).Node.Name, g.Classes[g.Members[at].Class].Requests}
		}
		at++
	}
	return planned, "", nil
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// sentence says why a gang does not fit.
func (p *Plugin) sentence(q *question, refusal *core.Refusal) string {
	text := fmt.Sprintf("berth: gang %s waits as a whole: %s", q.key, refusal)
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

// levels sets the levels of a gang, and returns the labels of its topology, the widest first.
func (p *Plugin) levels(g *core.Gang, t gangview.Topology) ([]string, error) {
	var keys []string
	for _, l := range p.gangs.levels {
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
	g.Required, g.Preferred = core.Anywhere, len(keys)
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
	mask      *mask
}

// classes are those of one gang.
type classes struct {
	list []class
}

// of returns the class of a member.
func (c *classes) of(_ context.Context, p *Plugin, pod *v1.Pod, masks map[string]mask) (int, error) {
	text, err := signature(pod)
	if err != nil {
		return 0, fmt.Errorf("read pod %s: %w", pod.Name, err)
	}
	if i := slices.IndexFunc(c.list, func(k class) bool { return k.signature == text }); i >= 0 {
		return i, nil
	}
	made := class{signature: text, requests: p.requests(pod), rules: newRules(pod)}
	if m, ok := masks[text]; ok {
		made.mask = &m
	}
	c.list = append(c.list, made)
	return len(c.list) - 1, nil
}

// requests returns what a member requests of GPUs, those of its claims as whole GPUs.
func (p *Plugin) requests(pod *v1.Pod) []fleet.Shape {
	requests := p.model.Requests(pod)
	if p.claims != nil && requests[0].GPUs == 0 && len(pod.Spec.ResourceClaims) > 0 {
		if list := p.claims.Of(pod); len(list) > 0 {
			return []fleet.Shape{claims.Shape(requests[0], list)}
		}
	}
	return requests
}

// room returns how many members of the class other rules let run on each node, or nil if these refuse nothing.
func (k *class) room(p *Plugin, nodes []fwk.NodeInfo) []int32 {
	room := make([]int32, len(nodes))
	counted := func(name v1.ResourceName) bool {
		return name == v1.ResourceCPU || name == v1.ResourceMemory || p.model.Offered(name)
	}
	for position, node := range nodes {
		i := p.model.At(position)
		if k.mask != nil && !k.mask.allowed[node.Node().Name] {
			continue
		}
		room[i] = k.rules.room(node, counted)
	}
	return room
}

// sharedClaim returns the ResourceClaim that several members use. Its devices are those of one node, so that these members are on one node.
func sharedClaim(members []*v1.Pod) string {
	seen := map[string]bool{}
	for _, pod := range members {
		for i := range pod.Spec.ResourceClaims {
			name := pod.Spec.ResourceClaims[i].ResourceClaimName
			if name == nil {
				continue
			}
			if seen[*name] {
				return *name
			}
			seen[*name] = true
		}
	}
	return ""
}
