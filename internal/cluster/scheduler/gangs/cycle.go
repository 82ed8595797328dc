package gangs

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/gangview"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
)

const (
	// permitLimit is how long a member waits for the others of its plan: they follow one another in the queue.
	permitLimit = 10 * time.Second
	// planLimit is how long a plan is kept of which not all members are reserved.
	planLimit = permitLimit + 5*time.Second
	// refusedFor is how long members repeat the refusal of the first one, which plans again whenever anything has changed.
	refusedFor = 5 * time.Second
	// maskLimit is how long it is remembered which nodes other plugins refuse.
	maskLimit = 10 * time.Second
)

// cycle is what is known of the pod in a scheduling cycle.
type cycle struct {
	key    gangview.Key
	member bool
	// node is that of the plan, empty for a pod of no gang.
	node string
	// amounts are what the pod requests, where something is held.
	amounts v1.ResourceList
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
func (p *Plugin) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	key, member := keyOf(pod)
	if !member {
		if p.gangs.holds.count.Load() == 0 {
			return nil, fwk.NewStatus(fwk.Skip)
		}
		state.Write(model.GangState+"/holds", &cycle{amounts: gangplan.Amounts(pod)})
		return nil, nil
	}
	c := &cycle{key: key, member: true, amounts: gangplan.Amounts(pod)}
	state.Write(model.GangState, c)
	p.model.Sync(nodes)
	node, text, err := p.decide(pod, nodes)
	switch {
	case err != nil:
		return nil, fwk.AsStatus(err)
	case node == "":
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, text)
	}
	c.node = node
	return &fwk.PreFilterResult{NodeNames: sets.New(node)}, nil
}

// PreFilterExtensions returns nil: Filter looks at the node that it gets.
func (p *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter refuses all nodes but that of the plan to a member, and to any pod what is held for members of other gangs.
func (p *Plugin) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) *fwk.Status {
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
	p.gangs.mu.Lock()
	defer p.gangs.mu.Unlock()
	if name, of, lacks := p.gangs.holds.lacks(node, c.key, c.amounts); lacks {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("%s is held for gang %s", name, of))
	}
	return nil
}

// PostFilter learns which nodes the other plugins refuse when they have refused that of the plan, and has the gang planned again. It ends
// the search of other plugins for pods to end: ending pods for one member is of no use.
func (p *Plugin) PostFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, refused fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	c := read(state)
	if c == nil {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	if c.node == "" {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable)
	}
	text := fmt.Sprintf("berth: gang %s is planned again, since %s was refused", c.key, c.node)
	if status := refused.Get(c.node); status != nil && len(status.Reasons()) > 0 {
		text += ": " + status.Reasons()[0]
	}
	allowed, err := p.probe(ctx, state, c, pod)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	undo(p.handle, p.gangs.again(pod, allowed))
	return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, text)
}

// probe returns the nodes that all plugins let the pod use.
func (p *Plugin) probe(ctx context.Context, state fwk.CycleState, c *cycle, pod *v1.Pod) (map[string]bool, error) {
	nodes, err := p.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	c.probe = true
	defer func() { c.probe = false }()
	allowed := make([]bool, len(nodes))
	p.handle.Parallelizer().Until(ctx, len(nodes), func(i int) {
		allowed[i] = p.handle.RunFilterPluginsWithNominatedPods(ctx, state, pod, nodes[i]).IsSuccess()
	}, Name)
	names := map[string]bool{}
	for i, node := range nodes {
		if allowed[i] {
			names[node.Node().Name] = true
		}
	}
	return names, nil
}

// again notes which nodes members like the pod can use, and gives up the plan. The result is what has to be released.
func (r *registry) again(pod *v1.Pod, allowed map[string]bool) released {
	text, err := gangplan.Signature(pod)
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.of(pod)
	if g == nil || err != nil {
		return released{}
	}
	g.masks[text] = mask{allowed: allowed, until: r.clock.Now().Add(maskLimit)}
	g.refused = nil
	r.holds.remove(pod.UID)
	return r.giveUp(g, pod.UID, "a node of the plan was refused")
}

// giveUp gives up the plan of a gang; of one that is being bound only what is planned for one member. The caller holds the lock.
func (r *registry) giveUp(g *gang, pod types.UID, reason string) released {
	if g.plan != nil && g.plan.permitted {
		delete(g.plan.nodes, pod)
		r.holds.remove(pod)
		return released{pods: slices.DeleteFunc(r.pending(g), func(other *v1.Pod) bool { return other.UID != pod })}
	}
	out := r.release(g, reason)
	if len(out.pods) == 0 {
		out.pods = r.pending(g)
	}
	return out
}

// validMasks returns the masks whose time is not over. The caller holds the lock.
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
