package gangs

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
)

// Members that share a ResourceClaim without an allocation cannot all be reserved before one of them is prepared: the scheduler allocates
// the claim for the first one that is reserved, and refuses the others until PreBind of that one has written it. So the first one, which
// leads, is prepared as soon as all others are reserved but those that follow it, and waits in Bind for these.

// claimsOf returns the claims of a pod that exist.
func (p *Plugin) claimsOf(pod *v1.Pod) (list []*resourceapi.ResourceClaim) {
	if len(pod.Spec.ResourceClaims) == 0 {
		return nil
	}
	manager := p.handle.SharedDRAManager()
	if manager == nil {
		return nil
	}
	for i := range pod.Spec.ResourceClaims {
		if name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i]); err == nil && name != nil {
			if claim, err := manager.ResourceClaims().Get(pod.Namespace, *name); err == nil {
				list = append(list, claim)
			}
		}
	}
	return list
}

// unwritten are the claims of a pod whose allocation is not written yet.
func (p *Plugin) unwritten(pod *v1.Pod) (list []types.UID) {
	for _, claim := range p.claimsOf(pod) {
		if claim.Status.Allocation == nil {
			list = append(list, claim.UID)
		}
	}
	return list
}

// parts returns the members of the plan of a gang that has a pod, those that are reserved and those that are not; none where none share a
// claim, and where all were reserved.
func (r *registry) parts(pod *v1.Pod) (reserved, others []*v1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.of(pod)
	if g == nil || g.stage != stagePlacing || !g.plan.shares {
		return nil, nil
	}
	for uid := range g.plan.nodes {
		switch known := g.pods[uid]; {
		case known == nil:
		case g.plan.reserved[uid]:
			reserved = append(reserved, known)
		default:
			others = append(others, known)
		}
	}
	return reserved, others
}

// leaders returns the reserved members of the plan of a pod that the others wait for; none while one of these waits for something else.
func (p *Plugin) leaders(pod *v1.Pod) (list []*v1.Pod) {
	reserved, others := p.gangs.parts(pod)
	followed := map[types.UID]bool{}
	for _, leader := range reserved {
		for _, claim := range p.unwritten(leader) {
			followed[claim] = false
		}
	}
	for _, other := range others {
		follows := false
		for _, claim := range p.unwritten(other) {
			if _, leads := followed[claim]; leads {
				followed[claim], follows = true, true
			}
		}
		if !follows {
			return nil
		}
	}
	for _, leader := range reserved {
		if slices.ContainsFunc(p.unwritten(leader), func(claim types.UID) bool { return followed[claim] }) {
			list = append(list, leader)
		}
	}
	return list
}

// lead lets the reserved members be prepared that others wait for. It tells whether the pod is one of them.
func (p *Plugin) lead(pod *v1.Pod) (leads bool) {
	for _, leader := range p.leaders(pod) {
		p.gangs.prepare(leader)
		if leads = leads || leader.UID == pod.UID; leader.UID == pod.UID {
			continue
		}
		if w := p.handle.GetWaitingPod(leader.UID); w != nil {
			w.Allow(Name)
		}
	}
	return leads
}

// follows tells whether a member that DynamicResources has refused waits for a reserved one with which it shares a claim. It brings the
// member back where that one has been prepared since.
func (p *Plugin) follows(pod *v1.Pod) bool {
	reserved, others := p.gangs.parts(pod)
	if len(reserved) == 0 {
		return false
	}
	mine := p.claimsOf(pod)
	shares := func(leader *v1.Pod) bool {
		return slices.ContainsFunc(p.claimsOf(leader), func(claim *resourceapi.ResourceClaim) bool {
			return slices.ContainsFunc(mine, func(own *resourceapi.ResourceClaim) bool { return own.UID == claim.UID })
		})
	}
	if !slices.ContainsFunc(others, func(other *v1.Pod) bool { return other.UID == pod.UID }) || !slices.ContainsFunc(reserved, shares) {
		return false
	}
	if len(p.unwritten(pod)) == 0 {
		activate(p.handle, []*v1.Pod{pod})
	}
	return true
}

// prepare notes that a member is prepared before all are reserved: the plan makes progress until prepared.
func (r *registry) prepare(pod *v1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if g := r.of(pod); g != nil && g.stage == stagePlacing {
		g.plan.preparing[pod.UID] = true
	}
}

// prepared notes that a member waits to be bound, and returns those that have waited for it.
func (r *registry) prepared(pod *v1.Pod) (followers []*v1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.of(pod)
	if g == nil || g.plan == nil || !g.plan.preparing[pod.UID] {
		return nil
	}
	delete(g.plan.preparing, pod.UID)
	g.plan.progress = r.clock.Now()
	for uid := range g.plan.nodes {
		if other := g.pods[uid]; other != nil && !g.plan.reserved[uid] {
			followers = append(followers, other)
		}
	}
	return followers
}

// prepares tells whether something is written for a pod before it is bound: it has to wait before that.
func (p *Plugin) prepares(pod *v1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 || p.planner.Devices != nil && p.planner.Devices.Needs(pod) ||
		slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil })
}

// deallocate frees the devices of claims that only members without a node use, for a gang that does not fit with them: they were allocated
// for a plan that was given up. The scheduler's own plugin does so only after its filter, which a gang without a plan does not reach.
func (p *Plugin) deallocate(ctx context.Context, q *attempt) error {
	waits := func(user resourceapi.ResourceClaimConsumerReference) bool {
		return q.Bound[user.UID] == "" && slices.ContainsFunc(q.view.Members, func(pod *v1.Pod) bool { return pod.UID == user.UID })
	}
	done := map[types.UID]bool{}
	for _, pod := range q.view.Members {
		for _, claim := range p.claimsOf(pod) {
			used := slices.ContainsFunc(claim.Status.ReservedFor, func(user resourceapi.ResourceClaimConsumerReference) bool { return !waits(user) })
			if done[claim.UID] || claim.Status.Allocation == nil || used {
				continue
			}
			done[claim.UID] = true
			freed := claim.DeepCopy()
			freed.Status.Allocation, freed.Status.ReservedFor, freed.Status.Devices = nil, nil, nil
			_, err := p.handle.ClientSet().ResourceV1().ResourceClaims(claim.Namespace).UpdateStatus(ctx, freed, metav1.UpdateOptions{})
			if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				return fmt.Errorf("free the devices of ResourceClaim %s/%s: %w", claim.Namespace, claim.Name, err)
			}
		}
	}
	return nil
}

// afterDevices brings the member that plans a gang back when a claim, slice or class has changed. Of claims those matter that give devices
// back, new ones of the namespace, and those of the pod.
func (p *Plugin) afterDevices(_ klog.Logger, pod *v1.Pod, old, changed any) (fwk.QueueingHint, error) {
	if _, member := keyOf(pod); !member || !p.prepares(pod) {
		return fwk.QueueSkip, nil
	}
	if claim, ok := changed.(*resourceapi.ResourceClaim); ok {
		before, known := old.(*resourceapi.ResourceClaim)
		freed := known && before.Status.Allocation != nil && claim.Status.Allocation == nil
		own := slices.ContainsFunc(p.claimsOf(pod), func(own *resourceapi.ResourceClaim) bool { return own.UID == claim.UID })
		if !freed && !own && (known || claim.Namespace != pod.Namespace) {
			return fwk.QueueSkip, nil
		}
	}
	if p.gangs.renew(pod) {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// renew has a gang planned again, if a pod is the member that plans it.
func (r *registry) renew(pod *v1.Pod) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.of(pod)
	if g == nil || !r.first(g, pod) {
		return false
	}
	clear(g.masks)
	r.forgetRefusal(g)
	if g.job != nil {
		g.job.missed = true
	}
	return true
}

// promised returns the pods for which places are held: they get their devices there. The caller holds the lock.
func (r *registry) promised(held []*hold) (list []gangplanner.Place) {
	for _, h := range held {
		g := r.gangs[h.gang]
		if g == nil {
			continue
		}
		if pod := g.pods[types.UID(strings.TrimPrefix(string(h.pod), keptPrefix))]; pod != nil {
			list = append(list, gangplanner.Place{Pod: pod, Node: h.node})
		}
	}
	return list
}
