package gangs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
)

// cycle is what is known of the pod in a scheduling cycle.
type cycle struct {
	member bool
	// node is that of the plan, empty for a pod of no gang.
	node string
	// seeker is the pod as one that looks for a node.
	seeker
	// plan is that of the gang when the node was chosen, nil where there was none.
	plan *plan
	// asked is the question that was answered with a refusal for lack of capacity in this cycle; nil for none.
	asked *attempt
	// probe is true while PostFilter asks the other plugins.
	probe bool
}

// Clone returns the cycle itself, which does not change but for probe.
func (c *cycle) Clone() fwk.StateData { return c }

func read(state fwk.CycleState) *cycle {
	data, err := state.Read(model.GangState)
	if err != nil {
		return nil
	}
	c, _ := data.(*cycle)
	return c
}

// PreFilter plans the gang of a member, and lets it go only to its node.
func (p *Plugin) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	p.gangs.elect()
	p.first.Do(func() { p.wait(ctx) })
	key, member := keyOf(pod)
	if !member {
		if p.gangs.holds.count.Load() == 0 {
			return nil, fwk.NewStatus(fwk.Skip)
		}
		state.Write(model.GangState+"/holds", &cycle{seeker: p.gangs.seeker(pod, key)})
		return nil, nil
	}
	c := &cycle{member: true, seeker: p.gangs.seeker(pod, key)}
	state.Write(model.GangState, c)

	p.model.Sync(nodes)
	node, text, asked, err := p.decide(pod, nodes)
	c.asked = asked
	switch {
	case err != nil:
		return nil, fwk.AsStatus(err)
	case node == "":
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, text)
	}
	c.node, c.plan = node, p.gangs.planOf(pod)
	return &fwk.PreFilterResult{NodeNames: sets.New(node)}, nil
}

// bindTime is how long after its node is chosen a pod starts at the latest, as far as its end matters.
const bindTime = 2 * time.Second

// seeker returns a pod as one that looks for a node.
func (r *registry) seeker(pod *v1.Pod, key gangplan.Key) seeker {
	who := seeker{
		key:      key,
		priority: corev1helpers.PodPriority(pod),
		amounts:  gangplan.Amounts(pod),
		devices:  len(pod.Spec.ResourceClaims) > 0,
	}
	if pod.Spec.ActiveDeadlineSeconds != nil {
		who.ends, _ = endOf(pod, r.server.now().Add(bindTime))
	}
	return who
}

// planOf returns the plan of the gang of a pod, nil for none.
func (r *registry) planOf(pod *v1.Pod) *plan {
	r.mu.Lock()
	defer r.mu.Unlock()
	if g := r.of(pod); g != nil {
		return g.plan
	}
	return nil
}

// PreFilterExtensions returns nil: Filter looks at the node that it gets.
func (p *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter refuses all nodes but that of the plan to a member, and to any pod what is held for members of other gangs.
func (p *Plugin) Filter(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	c := read(state)
	if c == nil {
		if data, err := state.Read(model.GangState + "/holds"); err == nil {
			c, _ = data.(*cycle)
		}
	}
	if c == nil {
		return nil
	}
	if c.member && !c.probe && node.Node().Name != c.node {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node is not that of the gang's plan")
	}
	return p.lacks(c, pod, node)
}

// lacks refuses a node that has too little for a pod beside what is held there for other gangs.
func (p *Plugin) lacks(c *cycle, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	p.gangs.mu.Lock()
	defer p.gangs.mu.Unlock()
	name, held := p.gangs.holds.lacks(node, &c.seeker, p.gangs.server.now())
	if held == nil {
		return nil
	}
	if !c.member {
		p.gangs.blocked.note(pod)
	}
	what := "devices are"
	if name != "" {
		what = string(name) + " is"
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, what+" "+p.gangs.keeps(held))
}

// PostFilter learns which nodes the other plugins refuse when they have refused that of the plan, and has the gang planned again. It ends
// the search of other plugins for pods to end: ending pods for one member is of no use. It also ends the nomination of a member, which
// would keep others from a node without that the plan is for it.
func (p *Plugin) PostFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, refused fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	p.gangs.elect()
	if _, member := keyOf(pod); !member {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	unnominated := &fwk.PostFilterResult{NominatingInfo: &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride}}
	c := read(state)

	// Another plugin has refused the member before it could be planned.
	if c == nil && refusedBy(refused, claimsPlugin) && p.follows(pod) {
		return unnominated, fwk.NewStatus(fwk.UnschedulableAndUnresolvable)
	}
	if c == nil {
		undo(p.handle, p.gangs.setAbsent(pod))
		return unnominated, fwk.NewStatus(fwk.UnschedulableAndUnresolvable)
	}

	// The gang has no plan: look for pods that have to end for it.
	if c.node == "" {
		text, err := "", error(nil)
		if c.asked != nil {
			if err := p.deallocate(ctx, c.asked); err != nil {
				return nil, fwk.AsStatus(err)
			}
			text, err = p.makeWay(pod, c.asked)
		}
		switch {
		case err != nil:
			return nil, fwk.AsStatus(err)
		case text == "":
			return unnominated, fwk.NewStatus(fwk.UnschedulableAndUnresolvable)
		}
		return unnominated, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, text)
	}

	// Another plugin has refused the node of the plan: learn which nodes it lets the member use, and have the gang planned again.
	text := fmt.Sprintf("berth: gang %s is planned again, since %s was refused", c.key, c.node)
	if status := refused.Get(c.node); status != nil && len(status.Reasons()) > 0 {
		text += ": " + status.Reasons()[0]
	}
	allowed, err := p.probe(ctx, state, c, pod)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	undo(p.handle, p.gangs.replan(pod, allowed, text))
	return unnominated, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, text)
}

// claimsPlugin is the plugin that allocates ResourceClaims.
const claimsPlugin = "DynamicResources"

// refusedBy tells whether a plugin has refused all nodes at once.
func refusedBy(refused fwk.NodeToStatusReader, plugin string) bool {
	status := refused.Get("")
	return status != nil && status.Plugin() == plugin
}

// setAbsent notes that a member cannot be planned, and gives up a plan that has it.
func (r *registry) setAbsent(pod *v1.Pod) (out released) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.of(pod)
	if g == nil || g.pods[pod.UID] == nil {
		return out
	}
	g.absent[pod.UID] = true
	r.forgetRefusal(g)
	if g.stage == stagePlacing && g.plan.nodes[pod.UID] != "" {
		return r.release(g, "another plugin refuses "+pod.Name)
	}
	r.holds.remove(pod.UID)
	if g.cancelWake(); len(r.leader(g)) > 0 {
		g.wakeAt(r.clock.Now()) // The others may do without it.
	}
	return out
}

// probe returns the nodes that all plugins let the pod use, but for that of the plan, which was refused. What other members have reserved
// does not count: they are planned again, too.
func (p *Plugin) probe(ctx context.Context, state fwk.CycleState, c *cycle, pod *v1.Pod) (map[string]bool, error) {
	nodes, err := p.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	c.probe = true
	defer func() { c.probe = false }()
	allowed, reserved := make([]bool, len(nodes)), p.gangs.reservedWith(pod)
	p.handle.Parallelizer().Until(ctx, len(nodes), func(i int) {
		if nodes[i].Node().Name == c.node {
			return
		}
		state, node, err := p.without(ctx, state, pod, nodes[i], reserved)
		allowed[i] = err == nil && p.handle.RunFilterPluginsWithNominatedPods(ctx, state, pod, node).IsSuccess()
	}, Name)
	names := map[string]bool{}
	for i, node := range nodes {
		if allowed[i] {
			names[node.Node().Name] = true
		}
	}
	return names, nil
}

// without returns a node without some of its pods, and the state of the cycle for it.
func (p *Plugin) without(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo, gone map[types.UID]bool) (fwk.CycleState, fwk.NodeInfo, error) {
	has := func(info fwk.PodInfo) bool { return gone[info.GetPod().UID] }
	if !slices.ContainsFunc(node.GetPods(), has) {
		return state, node, nil
	}
	state, bare := state.Clone(), node.Snapshot()
	for _, info := range node.GetPods() {
		if !has(info) {
			continue
		}
		if err := bare.RemovePod(klog.FromContext(ctx), info.GetPod()); err != nil {
			return nil, nil, fmt.Errorf("take %s from %s: %w", info.GetPod().Name, node.Node().Name, err)
		}
		if status := p.handle.RunPreFilterExtensionRemovePod(ctx, state, pod, info, bare); !status.IsSuccess() {
			return nil, nil, status.AsError()
		}
	}
	return state, bare, nil
}

// reservedWith returns the members that are reserved by the plan of the gang of a pod.
func (r *registry) reservedWith(pod *v1.Pod) map[types.UID]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if g := r.of(pod); g != nil && g.stage == stagePlacing {
		return maps.Clone(g.plan.reserved)
	}
	return nil
}

// replan notes which nodes members like the pod can use, and gives up the plan. The result is what has to be released.
func (r *registry) replan(pod *v1.Pod, allowed map[string]bool, reason string) released {
	text, err := gangplan.Signature(pod)
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.of(pod)
	if g == nil || err != nil {
		return released{}
	}
	g.masks[text] = mask{allowed: allowed, until: r.clock.Now().Add(r.limits.maskFor(g.failures))}
	r.forgetRefusal(g)
	r.holds.remove(pod.UID)
	if g.stage != stagePlacing {
		// It was tried again after its binding had failed.
		return released{pods: append(r.finish(g, pod.UID), pod)}
	}
	return r.release(g, reason)
}

// validMasks returns the masks whose time is not over.
func (g *gang) validMasks(now time.Time) map[string]mask {
	valid := map[string]mask{}
	for text, m := range g.masks {
		if now.After(m.until) {
			delete(g.masks, text)
			continue
		}
		valid[text] = m
	}
	return valid
}
