package drafleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/berth-gpu/berth/internal/core/fleet/firstfit"
)

// ErrNoClass is wrapped by the error about a DeviceClass that does not exist.
var ErrNoClass = errors.New("the DeviceClass does not exist")

// simple returns why a claim is not of the simple form, as an error that wraps firstfit.ErrNotSimple; nil when it is.
func simple(claim *resourceapi.ResourceClaim) error {
	why := ""
	total := int64(0)
	for i := range claim.Spec.Devices.Requests {
		request := &claim.Spec.Devices.Requests[i]
		if why = unusual(request); why != "" {
			why = fmt.Sprintf("request %s %s", request.Name, why)
			break
		}
		total += min(request.Exactly.Count, firstfit.MaxDevices+1)
	}
	if why == "" && total > firstfit.MaxDevices {
		why = fmt.Sprintf("it wants more than %d devices", firstfit.MaxDevices)
	}
	for i := range claim.Spec.Devices.Constraints {
		constraint := &claim.Spec.Devices.Constraints[i]
		if constraint.MatchAttribute == nil || !strings.Contains(string(*constraint.MatchAttribute), "/") {
			why = fmt.Sprintf("constraint %d is no matchAttribute", i+1)
		}
	}
	if why == "" {
		return nil
	}
	return fmt.Errorf("ResourceClaim %s/%s: %w: %s", claim.Namespace, claim.Name, firstfit.ErrNotSimple, why)
}

// unusual returns what of a request is not of the simple form.
func unusual(request *resourceapi.DeviceRequest) string {
	exact := request.Exactly
	switch {
	case exact == nil:
		return "is a prioritized list"
	case exact.AllocationMode != resourceapi.DeviceAllocationModeExactCount:
		return fmt.Sprintf("has allocationMode %q", exact.AllocationMode)
	case exact.Count < 1:
		return fmt.Sprintf("has count %d", exact.Count)
	case exact.AdminAccess != nil && *exact.AdminAccess:
		return "wants admin access"
	case exact.Capacity != nil:
		return "requests capacity"
	case len(exact.DerivedAttributes) > 0:
		return "has derived attributes"
	}
	if slices.ContainsFunc(exact.Selectors, func(s resourceapi.DeviceSelector) bool { return s.CEL == nil }) {
		return "has a selector without CEL"
	}
	return ""
}

// Claims converts claims that are allocated together, in this order. class returns a DeviceClass, or nil when it does not exist.
// The error wraps firstfit.ErrNotSimple, ErrNoClass, or the cause of a context that ended.
func (n *Node) Claims(
	ctx context.Context, claims []*resourceapi.ResourceClaim, class func(string) *resourceapi.DeviceClass,
) ([]firstfit.Claim, error) {
	list := make([]firstfit.Claim, len(claims))
	for c, claim := range claims {
		if err := simple(claim); err != nil {
			return nil, err
		}
		for i := range claim.Spec.Devices.Requests {
			request := &claim.Spec.Devices.Requests[i]
			verdicts, err := n.verdicts(ctx, request.Exactly, class(request.Exactly.DeviceClassName))
			if err != nil {
				return nil, fmt.Errorf("ResourceClaim %s/%s: request %s: %w", claim.Namespace, claim.Name, request.Name, err)
			}
			list[c].Requests = append(list[c].Requests, firstfit.Request{
				Name: request.Name, Count: int(request.Exactly.Count), Verdicts: verdicts,
			})
		}
		for i := range claim.Spec.Devices.Constraints {
			constraint := &claim.Spec.Devices.Constraints[i]
			list[c].Constraints = append(list[c].Constraints, firstfit.Constraint{
				Attribute: string(*constraint.MatchAttribute), Requests: constraint.Requests,
			})
		}
	}
	return list, nil
}

// verdicts judges the node's devices for a request.
func (n *Node) verdicts(
	ctx context.Context, request *resourceapi.ExactDeviceRequest, class *resourceapi.DeviceClass,
) ([]firstfit.Verdict, error) {
	if class == nil {
		return nil, fmt.Errorf("%w: %s", ErrNoClass, request.DeviceClassName)
	}
	if slices.ContainsFunc(class.Spec.Selectors, func(s resourceapi.DeviceSelector) bool { return s.CEL == nil }) {
		return nil, fmt.Errorf("DeviceClass %s: %w: it has a selector without CEL", class.Name, firstfit.ErrNotSimple)
	}
	selectors := slices.Concat(class.Spec.Selectors, request.Selectors)
	list := make([]firstfit.Verdict, n.Len())
	for i := range n.parts {
		p := &n.parts[i]
		if p.elsewhere {
			continue
		}
		judged, err := n.converter.judge(ctx, p.slice, selectors)
		if err != nil {
			return nil, err
		}
		for k := range judged {
			list[p.first+k] = p.verdict(k, judged[k], request.Tolerations)
		}
	}
	return list, nil
}

// verdict adds to the verdict of the selectors the node and the taints.
func (p *part) verdict(at int, judged verdict, tolerations []resourceapi.DeviceToleration) firstfit.Verdict {
	switch {
	case judged == fails:
		return firstfit.Fails
	case judged != selects || p.here != nil && !p.here[at]:
		return firstfit.No
	}
	for _, taint := range p.current.Spec.Devices[at].Taints {
		if taint.Effect != resourceapi.DeviceTaintEffectNoSchedule && taint.Effect != resourceapi.DeviceTaintEffectNoExecute {
			continue
		}
		if !slices.ContainsFunc(tolerations, func(t resourceapi.DeviceToleration) bool { return resourceclaim.ToleratesTaint(t, taint) }) {
			return firstfit.Tainted
		}
	}
	return firstfit.Yes
}
