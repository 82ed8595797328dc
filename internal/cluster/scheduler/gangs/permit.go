package gangs

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
)

// permitLimit is how long a member waits for the others of its plan if nothing else ends the wait: the keeper ends it much earlier.
const permitLimit = 10 * time.Minute

// Reserve ends the hold of a member: the scheduler's own snapshot counts it now.
func (p *Plugin) Reserve(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	if _, member := keyOf(pod); !member {
		return nil
	}
	others, ok := p.gangs.reserve(pod, node)
	if !ok {
		return fwk.NewStatus(fwk.Unschedulable, "the plan of the gang was given up")
	}
	activate(p.handle, others)
	return nil
}

// reserve notes that a member is reserved, and returns the others when it is the first. The result is false if the plan has ended.
func (r *registry) reserve(pod *v1.Pod, node string) (others []*v1.Pod, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.of(pod)
	if g == nil {
		return nil, false
	}
	held := r.holds.byPod[pod.UID]
	if held == nil || held.node != node {
		return nil, false
	}
	r.holds.take(pod.UID)
	if g.plan == nil {
		r.bindAgain(g)
	}
	g.plan.progress = r.clock.Now()
	g.plan.nodes[pod.UID] = node
	first := len(g.plan.reserved) == 0
	g.plan.reserved[pod.UID] = true
	if !first {
		return nil, true
	}
	for uid := range g.plan.nodes {
		if other := g.pods[uid]; other != nil && uid != pod.UID {
			others = append(others, other)
		}
	}
	return others, true
}

// Permit lets a member wait until all members of the plan are reserved, or leaves that to Bind.
func (p *Plugin) Permit(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) (*fwk.Status, time.Duration) {
	if _, member := keyOf(pod); !member {
		return nil, 0
	}
	waiting, complete, ok := p.gangs.permit(pod)
	if !ok {
		return fwk.NewStatus(fwk.Unschedulable, "the plan of the gang was given up"), 0
	}
	if !complete && (p.lead(pod) || p.binds.Load() && !p.prepares(pod)) {
		return nil, 0
	}
	if !complete {
		return fwk.NewStatus(fwk.Wait, "other members of the gang are not reserved yet"), permitLimit
	}
	for _, uid := range waiting {
		if w := p.handle.GetWaitingPod(uid); w != nil {
			w.Allow(Name)
		}
	}
	return nil, 0
}

// Bind lets a member wait until all members of the plan are reserved, and leaves the binding to the next plugin. For a pod that waits at
// Permit the scheduler writes its node to its status first; thousands of these writes would keep the members back long after the plan is
// complete. So members wait here instead, as soon as a call has shown that this plugin comes before the one that binds.
func (p *Plugin) Bind(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) *fwk.Status {
	p.binds.Store(true)
	if _, member := keyOf(pod); !member {
		return fwk.NewStatus(fwk.Skip)
	}
	activate(p.handle, p.gangs.prepared(pod))
	if err := p.gangs.await(ctx, pod); err != nil {
		return fwk.AsStatus(err)
	}
	return fwk.NewStatus(fwk.Skip)
}

// await waits until a reserved member can be bound. It returns an error when it cannot.
func (r *registry) await(ctx context.Context, pod *v1.Pod) error {
	plan, err := r.planWith(pod)
	if err != nil {
		return err
	}
	select {
	case <-plan.decided:
	case <-ctx.Done():
		return fmt.Errorf("wait for the other members of the gang: %w", context.Cause(ctx))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !plan.permitted {
		return r.numbered(errGivenUp)
	}
	return nil
}

// planWith returns the plan in which a pod is reserved, and an error when it has ended.
func (r *registry) planWith(pod *v1.Pod) (*plan, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if g := r.of(pod); g != nil && g.plan != nil && g.plan.reserved[pod.UID] {
		return g.plan, nil
	}
	return nil, r.numbered(errGivenUp)
}

// preempted gives up the plan of a gang of which a member that waits to be bound has to end, and returns what is released. The result is
// false for a pod that does not wait.
func (r *registry) preempted(pod *v1.Pod) (out released, waits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.of(pod)
	if g == nil || g.stage != stagePlacing || !g.plan.reserved[pod.UID] {
		return out, false
	}
	return r.release(g, "a gang of a higher priority gets the place of a member"), true
}

// permit returns the members that wait, once all of the plan are reserved. The result is not ok if the plan has ended since the member was
// reserved.
func (r *registry) permit(pod *v1.Pod) (waiting []types.UID, complete, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.of(pod)
	if g == nil || g.plan == nil || !g.plan.reserved[pod.UID] {
		return nil, false, false
	}
	for uid := range g.plan.nodes {
		if !g.plan.reserved[uid] {
			return nil, false, true
		}
	}
	r.startBinding(g)
	for uid := range g.plan.reserved {
		if uid != pod.UID {
			waiting = append(waiting, uid)
		}
	}
	return waiting, true, true
}

// withoutPlan returns why a member is refused that waits at Permit and is in no plan: the plan ended between Permit and its wait. It
// returns nil for all others.
func (r *registry) withoutPlan(pod *v1.Pod) error {
	if _, member := keyOf(pod); !member {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.of(pod)
	if g != nil && g.plan != nil && g.plan.reserved[pod.UID] {
		return nil
	}
	return r.numbered(errGivenUp)
}

// PostBind notes that a member is bound.
func (p *Plugin) PostBind(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node string) {
	activate(p.handle, p.gangs.bind(pod, node))
}

// bind notes that a member is bound. With the last one of a plan it returns the first of those that came too late for the plan.
func (r *registry) bind(pod *v1.Pod, node string) []*v1.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.of(pod)
	if g == nil {
		return nil
	}
	delete(g.failing, pod.UID)
	if known := g.pods[pod.UID]; known != nil && known.Spec.NodeName == "" {
		g.bound[pod.UID] = node
	}
	return r.finish(g, pod.UID)
}

// placed notes that a member has a node.
func (r *registry) placed(g *gang, pod types.UID) released {
	if g.stage == stagePlacing && g.plan.nodes[pod] != "" {
		r.holds.remove(pod)
		return r.release(g, "something else has bound a member")
	}
	return released{pods: r.finish(g, pod)}
}

// Unreserve releases the whole gang when a member is refused before all are reserved. When the binding of a member fails, its place is
// held until it is tried again.
func (p *Plugin) Unreserve(_ context.Context, state fwk.CycleState, pod *v1.Pod, node string) {
	if c := read(state); c != nil {
		undo(p.handle, p.gangs.unreserve(pod, node, c.plan))
	}
}

// unreserve ends the reservation of a member that it got by a plan. When the plan has ended since, it changes nothing for the next one.
func (r *registry) unreserve(pod *v1.Pod, node string, by *plan) released {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.of(pod)
	if g == nil || g.plan == nil || g.plan.nodes[pod.UID] == "" {
		return released{}
	}
	if g.stage == stagePlacing {
		if g.plan != by {
			return released{}
		}
		return r.release(g, "another member of the gang was refused")
	}
	out := released{pods: r.finish(g, pod.UID)}
	known := g.pods[pod.UID]
	if known == nil {
		return out // It was deleted.
	}
	if g.failing[pod.UID].IsZero() {
		g.failing[pod.UID] = r.clock.Now()
	}
	if until := g.failing[pod.UID].Add(r.limits.Rebind); r.clock.Now().Before(until) {
		r.holds.add(&hold{
			pod:      pod.UID,
			gang:     g.key,
			node:     node,
			requests: r.requests(pod),
			amounts:  gangplan.Amounts(pod),
			until:    until,
		})
	}
	out.pods = append(out.pods, known)
	return out
}
