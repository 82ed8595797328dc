package fit

import (
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/api/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// current returns the workload's claims. One of the cluster stands for the one of its name in the file, if it is allocated. The claim
// that the scheduler has made for a pod's extended resources is the last.
func (c *Checker) current(w *Workload) []*resourceapi.ResourceClaim {
	claims := slices.Clone(w.Claims)
	for i, claim := range claims {
		if there := c.existing(w, claim); there != nil && there.Status.Allocation != nil {
			claims[i] = there
		}
	}
	if w.Pod != nil {
		if own := c.ownExtended(w.Pod); own != nil {
			claims = append(claims, own)
		}
	}
	return claims
}

// existing returns the claim of the cluster that a claim of the workload is or would be; nil when there is none.
func (c *Checker) existing(w *Workload, claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	if w.made[claim.Name] {
		return nil
	}
	return c.claims[claim.Namespace+"/"+claim.Name]
}

// ownExtended returns the allocated claim of the cluster for the extended resources of a pod of the cluster; nil when it has none.
func (c *Checker) ownExtended(pod *corev1.Pod) *resourceapi.ResourceClaim {
	status := pod.Status.ExtendedResourceClaimStatus
	if status == nil || pod.UID == "" {
		return nil
	}
	claim := c.claims[pod.Namespace+"/"+status.ResourceClaimName]
	if claim == nil || claim.Status.Allocation == nil || !metav1.IsControlledBy(claim, pod) {
		return nil
	}
	return claim
}

// missing returns what keeps a workload from every node.
func (c *Checker) missing(w *Workload, claims []*resourceapi.ResourceClaim) (reasons []v1alpha1.FitReason) {
	refuse := func(code v1alpha1.FitReasonCode, format string, args ...any) {
		reasons = append(reasons, v1alpha1.FitReason{Code: code, Message: fmt.Sprintf(format, args...)})
	}
	for _, claim := range w.Claims {
		switch there := c.existing(w, claim); {
		case there == nil:
		case there.DeletionTimestamp != nil:
			refuse(v1alpha1.FitClaimDeleted, "ResourceClaim %s of the cluster is being deleted.", claim.Name)
		case !sameDevices(&there.Spec.Devices, &claim.Spec.Devices):
			refuse(v1alpha1.FitClaimDiffers, "The cluster has a ResourceClaim %s with other requests or constraints, and a claim cannot be changed: "+
				"delete it first, or give this one another name.", claim.Name)
		}
	}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			for _, wanted := range requestsOf(claim) {
				if c.classes[wanted.class] == nil {
					refuse(v1alpha1.FitClassMissing, "DeviceClass %s of request %s of ResourceClaim %s does not exist.", wanted.class, wanted.name, claim.Name)
				}
			}
			continue
		}
		full := len(claim.Status.ReservedFor) >= resourceapi.ResourceClaimReservedForMaxSize
		if w.Pod != nil && full && !resourceclaim.IsReservedForPod(w.Pod, claim, false) {
			refuse(v1alpha1.FitClaimInUse, "ResourceClaim %s is used by %d pods, which is the limit.", claim.Name, len(claim.Status.ReservedFor))
		}
	}
	return reasons
}

// sameDevices returns whether two claims request the same.
func sameDevices(a, b *resourceapi.DeviceClaim) bool {
	return apiequality.Semantic.DeepEqual(a.Requests, b.Requests) && apiequality.Semantic.DeepEqual(a.Constraints, b.Constraints)
}
