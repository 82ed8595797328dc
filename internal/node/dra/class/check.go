package class

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
)

// Finding is what prevents pods that request an extended resource from getting the driver's devices.
type Finding struct {
	// Code is DEVICE_CLASS_MISSING or DEVICE_CLASS_AMBIGUOUS.
	Code    string
	Message string
}

// The codes of findings.
const (
	Missing   = "DEVICE_CLASS_MISSING"
	Ambiguous = "DEVICE_CLASS_AMBIGUOUS"
)

// Check compares the classes of the cluster with the extended resource names that the driver's devices of a node have, and returns the
// findings in the order of the names. A class belongs to the driver when one of its selectors names the driver; what the selectors
// select is not computed. Of several classes with one name, Kubernetes uses the one that was created last, and of those created at the
// same time the first by name (k8s.io/dynamic-resource-allocation v0.37.1, deviceclass/extendedresourcecache/extendedresourcecache.go:177).
func Check(driver string, served []string, classes []resourceapi.DeviceClass) []Finding {
	var findings []Finding
	for _, name := range slices.Compact(slices.Sorted(slices.Values(served))) {
		var of []resourceapi.DeviceClass
		for i := range classes {
			if extended := classes[i].Spec.ExtendedResourceName; extended != nil && *extended == name {
				of = append(of, classes[i])
			}
		}
		slices.SortFunc(of, precedence)
		if len(of) == 0 && unnamed(driver, classes) {
			findings = append(findings, Finding{Missing, fmt.Sprintf("the DeviceClasses have no extendedResourceName, so pods that request %s get no GPU of this node: "+
				"the API server drops the field while its feature gate DRAExtendedResource is off; use ResourceClaims, switch the gate on, or apply the output of berth classes if it is on", name)})
			continue
		}
		if finding := check1(driver, name, of); finding.Code != "" {
			findings = append(findings, finding)
		}
	}
	return findings
}

// precedence orders classes with one extended resource name: the one that Kubernetes uses comes first.
func precedence(a, b resourceapi.DeviceClass) int {
	if c := b.CreationTimestamp.Compare(a.CreationTimestamp.Time); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}

// check1 judges the classes with one extended resource name, of which Kubernetes uses the first.
func check1(driver, name string, of []resourceapi.DeviceClass) Finding {
	var names []string
	for i := range of {
		names = append(names, of[i].Name)
	}
	switch {
	case len(of) == 0:
		return Finding{Missing, fmt.Sprintf("no DeviceClass has the extendedResourceName %s, so pods that request it get no GPU of this node; apply the output of berth classes", name)}
	case !selects(&of[0], driver):
		return Finding{Missing, fmt.Sprintf("Kubernetes uses DeviceClass %s for the extended resource %s, and none of its selectors names the driver %s, so pods that request it get no GPU of this node; remove its extendedResourceName, and apply the output of berth classes",
			of[0].Name, name, driver)}
	case len(of) > 1:
		return Finding{Ambiguous, fmt.Sprintf("the DeviceClasses %s have the extendedResourceName %s, and Kubernetes uses %s, which was created last; remove it from the others",
			strings.Join(names, ", "), name, of[0].Name)}
	}
	return Finding{}
}

// unnamed reports whether the driver has classes, and none of them an extended resource name.
func unnamed(driver string, classes []resourceapi.DeviceClass) bool {
	own := 0
	for i := range classes {
		if selects(&classes[i], driver) {
			own++
			if classes[i].Spec.ExtendedResourceName != nil {
				return false
			}
		}
	}
	return own > 0
}

func selects(class *resourceapi.DeviceClass, driver string) bool {
	return slices.ContainsFunc(class.Spec.Selectors, func(selector resourceapi.DeviceSelector) bool {
		return selector.CEL != nil && strings.Contains(selector.CEL.Expression, fmt.Sprintf("%q", driver))
	})
}
