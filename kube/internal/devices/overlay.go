package devices

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"
)

// overlay is the scheduler's view of the claims with those of a trial.
type overlay struct {
	fwk.SharedDRAManager
	// shares is true where devices can be allocated in shares.
	shares bool
	// base is what was allocated when it was asked for first.
	base *structured.AllocatedState
	// claims are those that have changed, by UID, and changes what they were before.
	claims  map[types.UID]state
	changes []change
}

// state is that of a claim in the trial, which has allocated it or only reserved it for pods. It is empty for one as outside of the trial.
type state struct {
	*resourceapi.ResourceClaim
	allocated bool
}

// change is that of one claim, whose state was another one before.
type change struct {
	uid types.UID
	old state
}

// begin forgets all changes.
func (o *overlay) begin() { o.base, o.claims, o.changes = nil, map[types.UID]state{}, nil }

func (o *overlay) set(claim state) {
	o.changes = append(o.changes, change{claim.UID, o.claims[claim.UID]})
	o.claims[claim.UID] = claim
}

// undo takes back all changes but the first ones.
func (o *overlay) undo(mark int) {
	for _, c := range slices.Backward(o.changes[mark:]) {
		if c.old.ResourceClaim == nil {
			delete(o.claims, c.uid)
		} else {
			o.claims[c.uid] = c.old
		}
	}
	o.changes = o.changes[:mark]
}

// reserve notes that a pod uses its claims: the number of pods of a claim is limited.
func (o *overlay) reserve(pod *v1.Pod) {
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue
		}
		claim, err := o.Get(pod.Namespace, *name)
		if err != nil || resourceclaim.IsReservedForPod(pod, claim, false) {
			continue
		}
		changed := *claim
		changed.Status.ReservedFor = append(slices.Clip(claim.Status.ReservedFor), resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
		o.set(state{&changed, o.claims[claim.UID].allocated})
	}
}

// ResourceClaims returns the claims with those of the trial.
func (o *overlay) ResourceClaims() fwk.ResourceClaimTracker { return o }

// outside are the claims without those of the trial.
func (o *overlay) outside() fwk.ResourceClaimTracker { return o.SharedDRAManager.ResourceClaims() }

// List returns all claims.
func (o *overlay) List() ([]*resourceapi.ResourceClaim, error) {
	list, err := o.outside().List()
	for i, claim := range list {
		if changed, ok := o.claims[claim.UID]; ok {
			list[i] = changed.ResourceClaim
		}
	}
	return list, err
}

// Get returns a claim.
func (o *overlay) Get(namespace, name string) (*resourceapi.ResourceClaim, error) {
	claim, err := o.outside().Get(namespace, name)
	if err != nil {
		return nil, err
	}
	if changed, ok := o.claims[claim.UID]; ok {
		return changed.ResourceClaim, nil
	}
	return claim, nil
}

// ListAllAllocatedDevices returns the devices that are allocated.
func (o *overlay) ListAllAllocatedDevices() (sets.Set[structured.DeviceID], error) {
	list, err := o.outside().ListAllAllocatedDevices()
	if err != nil {
		return nil, err
	}
	sum := &structured.AllocatedState{AllocatedDevices: list}
	o.addTo(sum, false)
	return sum.AllocatedDevices, nil
}

// GatherAllocatedState returns what is allocated. The error is one after which the plugin asks again.
func (o *overlay) GatherAllocatedState() (*structured.AllocatedState, error) {
	if o.base == nil {
		base, err := o.outside().GatherAllocatedState()
		if err != nil {
			return nil, err
		}
		o.base = base
	}
	sum := &structured.AllocatedState{
		AllocatedDevices: o.base.AllocatedDevices.Clone(), AllocatedSharedDeviceIDs: o.base.AllocatedSharedDeviceIDs.Clone(),
		AggregatedCapacity: o.base.AggregatedCapacity.Clone(),
	}
	o.addTo(sum, o.shares)
	return sum, nil
}

// addTo adds the devices that the trial has allocated, as the scheduler counts them (1.37.1,
// pkg/scheduler/framework/plugins/dynamicresources/allocateddevices.go:41).
func (o *overlay) addTo(sum *structured.AllocatedState, shares bool) {
	for _, claim := range o.claims {
		if !claim.allocated {
			continue
		}
		for i := range claim.Status.Allocation.Devices.Results {
			result := &claim.Status.Allocation.Devices.Results[i]
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			switch {
			case ptr.Deref(result.AdminAccess, false):
			case shares && result.ShareID != nil:
				sum.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
				if result.ConsumedCapacity != nil {
					sum.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
				}
			default:
				sum.AllocatedDevices.Insert(id)
			}
		}
	}
}

// SignalClaimPendingAllocation allocates a claim in the trial.
func (o *overlay) SignalClaimPendingAllocation(_ types.UID, claim *resourceapi.ResourceClaim) error {
	o.set(state{claim, true})
	return nil
}

// GetPendingAllocation returns what the scheduler is writing for a claim; of the trial nothing is being written.
func (o *overlay) GetPendingAllocation(claim types.UID) *resourceapi.AllocationResult {
	if _, changed := o.claims[claim]; changed {
		return nil
	}
	return o.outside().GetPendingAllocation(claim)
}

// MaybeRemoveClaimPendingAllocation is for the binding of pods, which a trial does not have.
func (o *overlay) MaybeRemoveClaimPendingAllocation(types.UID, bool) bool { return false }

// AssumeClaimAfterAPICall is for the binding of pods, which a trial does not have.
func (o *overlay) AssumeClaimAfterAPICall(*resourceapi.ResourceClaim) error { return nil }

// AssumedClaimRestore is for the binding of pods, which a trial does not have.
func (o *overlay) AssumedClaimRestore(string, string) {}
