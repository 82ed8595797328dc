package fit

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/dynamic-resource-allocation/cel"
)

// wanted is a request, or a subrequest of a prioritized list.
type wanted struct {
	// name is REQUEST or REQUEST/SUBREQUEST.
	name        string
	class       string
	selectors   []resourceapi.DeviceSelector
	tolerations []resourceapi.DeviceToleration
	// count is the number of devices; for allocationMode All it is 1, the least that is allocated.
	count int64
	admin bool
	// capacity: it requests a part of the devices' capacity.
	capacity bool
	// choice is the number of subrequests of the list; 0 for a request without one.
	choice int
}

// requestsOf returns the requests of a claim, with each subrequest.
func requestsOf(claim *resourceapi.ResourceClaim) (list []wanted) {
	for i := range claim.Spec.Devices.Requests {
		request := &claim.Spec.Devices.Requests[i]
		if exact := request.Exactly; exact != nil {
			list = append(list, wanted{
				name: request.Name, class: exact.DeviceClassName, selectors: exact.Selectors, tolerations: exact.Tolerations,
				count: max(1, exact.Count), admin: value(exact.AdminAccess), capacity: exact.Capacity != nil,
			})
		}
		for j := range request.FirstAvailable {
			sub := &request.FirstAvailable[j]
			list = append(list, wanted{
				name: request.Name + "/" + sub.Name, class: sub.DeviceClassName, selectors: sub.Selectors, tolerations: sub.Tolerations,
				count: max(1, sub.Count), choice: len(request.FirstAvailable), capacity: sub.Capacity != nil,
			})
		}
	}
	return list
}

// request returns the name without the subrequest.
func (w *wanted) request() string {
	name, _, _ := strings.Cut(w.name, "/")
	return name
}

// complete sets the defaults of the API server, and checks what it checks as far as the answer depends on it.
func complete(spec *resourceapi.ResourceClaimSpec, settings Settings) error {
	devices := &spec.Devices
	if len(devices.Requests) == 0 {
		return errors.New("spec.devices.requests is empty, so it needs no device")
	}
	if len(devices.Requests) > resourceapi.DeviceRequestsMaxSize {
		return fmt.Errorf("spec.devices.requests has %d entries; the limit is %d", len(devices.Requests), resourceapi.DeviceRequestsMaxSize)
	}
	names := map[string]bool{}
	for i := range devices.Requests {
		request := &devices.Requests[i]
		if len(validation.IsDNS1123Label(request.Name)) > 0 || names[request.Name] {
			return fmt.Errorf("spec.devices.requests[%d].name is %q: want a DNS label that no other request has", i, oneLine(request.Name))
		}
		names[request.Name] = true
		if err := completeRequest(request, names, settings); err != nil {
			return fmt.Errorf("request %s: %w", request.Name, err)
		}
	}
	if len(devices.Constraints) > resourceapi.DeviceConstraintsMaxSize {
		return fmt.Errorf("spec.devices.constraints has %d entries; the limit is %d", len(devices.Constraints), resourceapi.DeviceConstraintsMaxSize)
	}
	for i := range devices.Constraints {
		if err := checkConstraint(&devices.Constraints[i], names); err != nil {
			return fmt.Errorf("spec.devices.constraints[%d]: %w", i, err)
		}
	}
	return nil
}

func completeRequest(request *resourceapi.DeviceRequest, names map[string]bool, settings Settings) error {
	if (request.Exactly == nil) == (len(request.FirstAvailable) == 0) {
		return errors.New("want either exactly or firstAvailable")
	}
	if exact := request.Exactly; exact != nil {
		setCount(&exact.AllocationMode, &exact.Count)
		return checkRequest(exact.DeviceClassName, exact.AllocationMode, exact.Count, exact.Selectors, settings)
	}
	if len(request.FirstAvailable) > resourceapi.FirstAvailableDeviceRequestMaxSize {
		return fmt.Errorf("firstAvailable has %d entries; the limit is %d", len(request.FirstAvailable), resourceapi.FirstAvailableDeviceRequestMaxSize)
	}
	for i := range request.FirstAvailable {
		sub := &request.FirstAvailable[i]
		full := request.Name + "/" + sub.Name
		if len(validation.IsDNS1123Label(sub.Name)) > 0 || names[full] {
			return fmt.Errorf("firstAvailable[%d].name is %q: want a DNS label that no other entry has", i, oneLine(sub.Name))
		}
		names[full] = true
		setCount(&sub.AllocationMode, &sub.Count)
		if err := checkRequest(sub.DeviceClassName, sub.AllocationMode, sub.Count, sub.Selectors, settings); err != nil {
			return fmt.Errorf("%s: %w", sub.Name, err)
		}
	}
	return nil
}

func setCount(mode *resourceapi.DeviceAllocationMode, count *int64) {
	if *mode == "" {
		*mode = resourceapi.DeviceAllocationModeExactCount
	}
	if *mode == resourceapi.DeviceAllocationModeExactCount && *count == 0 {
		*count = 1
	}
}

func checkRequest(class string, mode resourceapi.DeviceAllocationMode, count int64, selectors []resourceapi.DeviceSelector, settings Settings) error {
	exact := mode == resourceapi.DeviceAllocationModeExactCount
	switch {
	case class == "":
		return errors.New("deviceClassName is missing")
	case !exact && mode != resourceapi.DeviceAllocationModeAll:
		return fmt.Errorf("allocationMode %q: want ExactCount or All", mode)
	case exact && count < 1:
		return fmt.Errorf("count %d: want at least 1", count)
	case !exact && count != 0:
		return fmt.Errorf("count %d: a request of allocationMode All has no count", count)
	case exact && count > resourceapi.AllocationResultsMaxSize:
		return fmt.Errorf("count %d: a claim can have at most %d devices", count, resourceapi.AllocationResultsMaxSize)
	}
	return checkSelectors(selectors, settings)
}

// checkSelectors checks what the API server checks of CEL expressions.
func checkSelectors(selectors []resourceapi.DeviceSelector, settings Settings) error {
	if len(selectors) > resourceapi.DeviceSelectorsMaxSize {
		return fmt.Errorf("selectors has %d entries; the limit is %d", len(selectors), resourceapi.DeviceSelectorsMaxSize)
	}
	for i, selector := range selectors {
		if selector.CEL == nil || selector.CEL.Expression == "" {
			return fmt.Errorf("selectors[%d]: cel.expression is missing", i)
		}
		if length := len(selector.CEL.Expression); length > resourceapi.CELSelectorExpressionMaxLength {
			return fmt.Errorf("selectors[%d]: the CEL expression has %d bytes; the limit is %d", i, length, resourceapi.CELSelectorExpressionMaxLength)
		}
		result := cel.GetCompiler(settings.CEL).CompileCELExpression(selector.CEL.Expression, cel.Options{})
		if result.Error != nil {
			detail, _, _ := strings.Cut(result.Error.Detail, "\n") // The lines that follow show the expression.
			return fmt.Errorf("selectors[%d]: the CEL expression is invalid: %s", i, oneLine(detail))
		}
		if result.MaxCost > resourceapi.CELSelectorExpressionMaxCost {
			return fmt.Errorf("selectors[%d]: the CEL expression can cost %d; the limit is %d", i, result.MaxCost, resourceapi.CELSelectorExpressionMaxCost)
		}
	}
	return nil
}

func checkConstraint(constraint *resourceapi.DeviceConstraint, names map[string]bool) error {
	if (constraint.MatchAttribute == nil) == (constraint.DistinctAttribute == nil) {
		return errors.New("want either matchAttribute or distinctAttribute")
	}
	attribute := constraint.MatchAttribute
	if attribute == nil {
		attribute = constraint.DistinctAttribute
	}
	if domain, name, ok := strings.Cut(string(*attribute), "/"); !ok || domain == "" || name == "" {
		return fmt.Errorf("attribute %q: want DOMAIN/NAME, such as gpu.berth.dev/nvlinkIsland", *attribute)
	}
	at := slices.IndexFunc(constraint.Requests, func(name string) bool { return !names[name] })
	if at >= 0 {
		return fmt.Errorf("requests[%d]: there is no request %q", at, constraint.Requests[at])
	}
	return nil
}
