package gangs

import (
	"cmp"
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// PreEnqueue keeps a member out of the queue until its gang can be placed as far as nodes do not matter.
func (p *Plugin) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	if text := p.gangs.why(pod); text != "" {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, text)
	}
	return nil
}

// why returns what a member waits for before the queue.
func (r *registry) why(pod *v1.Pod) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.of(pod)
	if g == nil {
		if _, member := keyOf(pod); member {
			return "the gang is not known yet" // The pod has not come through the informer; its event brings it back.
		}
		return ""
	}
	if g.view == nil && !g.ready && len(g.pods) < g.least {
		return "members of the gang do not exist yet"
	}
	view := r.build(g)
	return view.Problem + view.Waiting
}

// Less sorts the queue by priority and time, as Kubernetes does. The time of a member is that at which its gang was complete first, so
// that its members follow one another; but see place.
func (p *Plugin) Less(a, b fwk.QueuedEntityInfo) bool {
	if x, y := a.GetPriority(), b.GetPriority(); x != y {
		return x > y
	}
	ta, ga, ra := p.gangs.place(a)
	tb, gb, rb := p.gangs.place(b)
	if c := ta.Compare(tb); c != 0 {
		return c < 0
	}
	return cmp.Or(cmp.Compare(ga, gb), cmp.Compare(ra, rb)) < 0
}

const (
	// atOnce are how many members of a gang come before all pods that are newer than the gang. Each further one comes memberTime later, so
	// that the cycles of thousands of members do not keep newer pods waiting for seconds.
	atOnce     = 32
	memberTime = 4 * time.Millisecond
)

// position is the place of a gang in the queue.
type position struct {
	// since is when the least number of members existed first. After a restart it is the same, unless members were replaced.
	since time.Time
	// turns are the positions of the members, brought is when all of them were brought to the queue last: see place.
	turns   map[types.UID]int
	brought time.Time
}

// turns returns the positions of members, nil for few.
func turns(members []*v1.Pod) map[types.UID]int {
	if len(members) <= atOnce {
		return nil
	}
	positions := make(map[types.UID]int, len(members))
	for i, pod := range members {
		positions[pod.UID] = i
	}
	return positions
}

// place returns the place of a pod in the queue: the time, then the gang, then the pod's name. The time of a member beyond the first ones
// is counted from when the members were brought to the queue last.
func (r *registry) place(entity fwk.QueuedEntityInfo) (since time.Time, gang, name string) {
	since = entity.GetTimestamp()
	info, ok := entity.(interface{ GetPod() *v1.Pod })
	if !ok || info.GetPod() == nil {
		return since, "", ""
	}
	pod := info.GetPod()
	if _, member := keyOf(pod); !member {
		return since, "", ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if g := r.of(pod); g != nil && !g.since.IsZero() {
		since = g.since
		if behind := g.turns[pod.UID] - atOnce; behind >= 0 {
			since = later(since, g.brought).Add(time.Duration(behind+1) * memberTime)
		}
		return since, g.name, pod.Name
	}
	return since, "", pod.Name
}

// EventsToRegister returns the events after which a gang that did not fit may fit: a pod ends, or a node changes. What GPUNodes say comes
// through the plugin BerthPlacement, and what its own pods and PodGroups say through the registry.
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}, QueueingHintFn: p.afterChange},
		{Event: fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.UpdatePodScaleDown | fwk.UpdatePodToleration | fwk.UpdatePodLabel}},
		{
			Event:          fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeAllocatable | fwk.UpdateNodeLabel | fwk.UpdateNodeTaint},
			QueueingHintFn: p.afterChange,
		},
		{Event: fwk.ClusterEvent{Resource: fwk.ResourceClaim, ActionType: fwk.Add | fwk.Update | fwk.Delete}, QueueingHintFn: p.afterDevices},
		{Event: fwk.ClusterEvent{Resource: fwk.ResourceSlice, ActionType: fwk.Add | fwk.Update}, QueueingHintFn: p.afterDevices},
		{Event: fwk.ClusterEvent{Resource: fwk.DeviceClass, ActionType: fwk.Add | fwk.Update}, QueueingHintFn: p.afterDevices},
	}, nil
}

// afterChange brings one member of a gang back: it plans for all of them, and brings the others back when there is a plan.
func (p *Plugin) afterChange(_ klog.Logger, pod *v1.Pod, old, _ any) (fwk.QueueingHint, error) {
	gone, _ := old.(*v1.Pod)
	if p.gangs.leads(pod, gone) {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// leads tells whether a change is one for a pod: it is the member that plans its gang, or of no gang. What is gone is a pod, nil where a
// node has changed. What other plugins refuse may be another thing after the change, but for one: the end of a reservation is the end of
// a plan, which comes as an event of a pod that is gone, too.
func (r *registry) leads(pod, gone *v1.Pod) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.of(pod)
	if g == nil {
		return true
	}
	reservation := false
	if gone != nil {
		if of := r.gangs[r.ofPod[gone.UID]]; of != nil {
			known := of.pods[gone.UID]
			reservation = known != nil && known.Spec.NodeName == ""
			if reservation && of == g {
				return false
			}
		}
	}
	if !r.first(g, pod) {
		return false
	}
	if !reservation {
		clear(g.masks)
	}
	return true
}

// first tells whether a pod is the member of its gang that plans it.
func (r *registry) first(g *gang, pod *v1.Pod) bool {
	list := r.leader(g)
	return len(list) == 0 || list[0].UID == pod.UID
}
