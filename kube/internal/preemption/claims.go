package preemption

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	"k8s.io/utils/ptr"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// claimsPlugin is the plugin that allocates ResourceClaims. Its filter knows nothing of victims: it refuses a node whose devices are
// allocated, in a way that excludes the node from preemption.
const claimsPlugin = dynamicresources.Name

// mostExpressions is how many compiled CEL expressions are kept.
const mostExpressions = 50

func newCELCache(features feature.Features) *cel.Cache {
	return cel.NewCache(mostExpressions, cel.Features{
		EnableConsumableCapacity: features.EnableDRAConsumableCapacity, EnableListTypeAttributes: features.EnableDRAListTypeAttributes,
	})
}

// claimReader makes the nodes that the filter for claims has refused candidates for preemption.
type claimReader struct{ fwk.NodeToStatusReader }

// resolvable tells whether ended pods can change a status.
func resolvable(status *fwk.Status) bool {
	return status.Code() == fwk.UnschedulableAndUnresolvable && status.Plugin() == claimsPlugin
}

// Get returns the status of a node.
func (r claimReader) Get(node string) *fwk.Status {
	status := r.NodeToStatusReader.Get(node)
	if !resolvable(status) {
		return status
	}
	return fwk.NewStatus(fwk.Unschedulable, status.Reasons()...).WithPlugin(status.Plugin())
}

// NodesForStatusCode returns the nodes whose status has that code.
func (r claimReader) NodesForStatusCode(lister fwk.NodeInfoLister, code fwk.Code) ([]fwk.NodeInfo, error) {
	nodes, err := r.NodeToStatusReader.NodesForStatusCode(lister, code)
	if err != nil || code != fwk.Unschedulable && code != fwk.UnschedulableAndUnresolvable {
		return nodes, err
	}
	changed := func(node fwk.NodeInfo) bool { return resolvable(r.NodeToStatusReader.Get(node.Node().Name)) }
	if code == fwk.UnschedulableAndUnresolvable {
		return slices.DeleteFunc(slices.Clone(nodes), changed), nil
	}
	refused, err := r.NodeToStatusReader.NodesForStatusCode(lister, fwk.UnschedulableAndUnresolvable)
	if err != nil {
		return nil, err
	}
	nodes = slices.Clone(nodes)
	for _, node := range refused {
		if changed(node) {
			nodes = append(nodes, node)
		}
	}
	return nodes, nil
}

// claims returns the tracker of ResourceClaims, or nil.
func (p *Plugin) claims() fwk.ResourceClaimTracker {
	if !p.features.EnableDynamicResourceAllocation {
		return nil
	}
	if manager := p.handle.SharedDRAManager(); manager != nil {
		return manager.ResourceClaims()
	}
	return nil
}

// ofPod returns the claims of a pod. The result is false when one does not exist.
func ofPod(tracker fwk.ResourceClaimTracker, pod *v1.Pod) ([]*resourceapi.ResourceClaim, bool) {
	var claims []*resourceapi.ResourceClaim
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, false
		}
		if name == nil {
			continue
		}
		claim, err := tracker.Get(pod.Namespace, *name)
		if err != nil {
			return nil, false
		}
		claims = append(claims, claim)
	}
	return claims, true
}

// claimed returns how many devices the claims of a pod request that are not allocated, and whether there are such claims.
func (p *Plugin) claimed(pod *v1.Pod) (count int64, pending bool) {
	tracker := p.claims()
	if tracker == nil || len(pod.Spec.ResourceClaims) == 0 {
		return 0, false
	}
	claims, ok := ofPod(tracker, pod)
	if !ok {
		return 0, false
	}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			count, pending = count+devicesOf(claim), true
		}
	}
	return count, pending
}

// devicesOf returns how many devices a claim requests: for a request that several kinds of devices can meet as many as the first kind, for
// all devices of a node at least one.
func devicesOf(claim *resourceapi.ResourceClaim) int64 {
	count := int64(0)
	for i := range claim.Spec.Devices.Requests {
		switch r := &claim.Spec.Devices.Requests[i]; {
		case r.Exactly != nil:
			count += max(1, min(r.Exactly.Count, fleet.MaxGPUs))
		case len(r.FirstAvailable) > 0:
			count += max(1, min(r.FirstAvailable[0].Count, fleet.MaxGPUs))
		}
	}
	return count
}

// claimsFit tells whether the claims of a pod can be allocated on a node without those that end with the victims. It cannot see what
// plugins after that of the claims say about the node.
func (p *Plugin) claimsFit(ctx context.Context, a *attempt, pod *v1.Pod, node *v1.Node, victims []*preemption.DomainVictim) bool {
	tracker := p.claims()
	if tracker == nil {
		return false
	}
	claims, ok := ofPod(tracker, pod)
	if !ok {
		return false
	}
	claims, ok = toAllocate(claims, node)
	if !ok || len(claims) == 0 {
		return false
	}
	allocator, err := p.allocator(ctx, a, node.Name, victims)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot tell whether ResourceClaims fit without victims", "pod", klog.KObj(pod), "node", klog.KObj(node), "err", err)
		return false
	}
	results, err := allocator.Allocate(ctx, node, claims)
	return err == nil && len(results) == len(claims)
}

// toAllocate returns the claims without an allocation. The result is false when another one is allocated for other nodes.
func toAllocate(claims []*resourceapi.ResourceClaim, node *v1.Node) ([]*resourceapi.ResourceClaim, bool) {
	var left []*resourceapi.ResourceClaim
	for _, claim := range claims {
		switch {
		case claim.Status.Allocation == nil:
			left = append(left, claim)
		case !allocatedFor(claim, node):
			return nil, false
		}
	}
	return left, true
}

// allocatedFor tells whether the devices of a claim can be used on a node.
func allocatedFor(claim *resourceapi.ResourceClaim, node *v1.Node) bool {
	if claim.Status.Allocation.NodeSelector == nil {
		return true
	}
	selector, err := nodeaffinity.NewNodeSelector(claim.Status.Allocation.NodeSelector)
	return err == nil && selector.Match(node)
}

// devices is what claims have, as of an attempt.
type devices struct {
	state  *structured.AllocatedState
	byPod  map[types.UID][]*resourceapi.ResourceClaim
	byNode map[string][]*resourceapi.ResourceSlice // "" has those that are not of one node
}

// readDevices reads what claims have.
func (p *Plugin) readDevices() (*devices, error) {
	manager := p.handle.SharedDRAManager()
	state, err := manager.ResourceClaims().GatherAllocatedState()
	if err != nil {
		return nil, err
	}
	claims, err := manager.ResourceClaims().List()
	if err != nil {
		return nil, err
	}
	offered, err := manager.ResourceSlices().ListWithDeviceTaintRules()
	if err != nil {
		return nil, err
	}
	d := &devices{state: state, byPod: map[types.UID][]*resourceapi.ResourceClaim{}, byNode: map[string][]*resourceapi.ResourceSlice{}}
	for _, claim := range claims {
		for _, consumer := range claim.Status.ReservedFor {
			d.byPod[consumer.UID] = append(d.byPod[consumer.UID], claim)
		}
	}
	for _, slice := range offered {
		name := ptr.Deref(slice.Spec.NodeName, "")
		d.byNode[name] = append(d.byNode[name], slice)
	}
	return d, nil
}

// allocator returns the scheduler's allocator for a node without the claims that end with the victims.
func (p *Plugin) allocator(ctx context.Context, a *attempt, node string, victims []*preemption.DomainVictim) (structured.Allocator, error) {
	all, err := a.devices()
	if err != nil {
		return nil, err
	}
	without := *all.state
	without.AllocatedDevices = all.state.AllocatedDevices.Clone()
	ended := sets.New[types.UID]()
	for _, pod := range pods(victims) {
		ended.Insert(pod.UID)
	}
	for uid := range ended {
		for _, claim := range all.byPod[uid] {
			if endsWith(claim, ended) {
				release(claim, without.AllocatedDevices)
			}
		}
	}
	offered := slices.Concat(all.byNode[node], all.byNode[""])
	return structured.NewAllocator(ctx, dynamicresources.AllocatorFeatures(p.features), without, p.handle.SharedDRAManager().DeviceClasses(), offered, p.cel)
}

// endsWith tells whether a claim is reserved for these pods and nothing else.
func endsWith(claim *resourceapi.ResourceClaim, ended sets.Set[types.UID]) bool {
	if claim.Status.Allocation == nil || len(claim.Status.ReservedFor) == 0 {
		return false
	}
	for _, consumer := range claim.Status.ReservedFor {
		if consumer.APIGroup != "" || consumer.Resource != "pods" || !ended.Has(consumer.UID) {
			return false
		}
	}
	return true
}

// release removes the devices that a claim alone has. Devices that are shared by their capacity stay allocated.
func release(claim *resourceapi.ResourceClaim, allocated sets.Set[structured.DeviceID]) {
	for i := range claim.Status.Allocation.Devices.Results {
		r := &claim.Status.Allocation.Devices.Results[i]
		if r.ShareID == nil && (r.AdminAccess == nil || !*r.AdminAccess) {
			allocated.Delete(structured.MakeDeviceID(r.Driver, r.Pool, r.Device))
		}
	}
}

// releasing tells whether a node has devices of claims whose pods have ended or are ending. Until these are released, another attempt
// would end pods that need not end.
func (p *Plugin) releasing(name string) bool {
	tracker := p.claims()
	if tracker == nil || name == "" {
		return false
	}
	info, err := p.handle.SnapshotSharedLister().NodeInfos().Get(name)
	if err != nil {
		return false
	}
	claims, err := tracker.List()
	if err != nil {
		return false
	}
	running := sets.New[types.UID]()
	for _, pod := range info.GetPods() {
		if pod.GetPod().DeletionTimestamp == nil {
			running.Insert(pod.GetPod().UID)
		}
	}
	return slices.ContainsFunc(claims, func(claim *resourceapi.ResourceClaim) bool {
		return claim.Status.Allocation != nil && claim.Status.Allocation.NodeSelector != nil && allocatedFor(claim, info.Node()) && abandoned(claim, running)
	})
}

// abandoned tells whether a claim is reserved for pods of which none is running, or is being deleted.
func abandoned(claim *resourceapi.ResourceClaim, running sets.Set[types.UID]) bool {
	if claim.DeletionTimestamp != nil {
		return true
	}
	for _, consumer := range claim.Status.ReservedFor {
		if consumer.Resource != "pods" || running.Has(consumer.UID) {
			return false
		}
	}
	return len(claim.Status.ReservedFor) > 0
}
