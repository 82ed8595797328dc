package claims

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	fwk "k8s.io/kube-scheduler/framework"
)

// Unbindable says why Kubernetes cannot bind a pod to a node which its filters allow: one with ResourceClaims that requests an extended
// resource which a DeviceClass serves elsewhere, and the device plugin of this node. DynamicResources makes an empty claim for the
// resource then, and fails with "nil or empty request mappings" at each binding (1.37.1,
// pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go:246, 574). It is empty for all others.
func Unbindable(manager fwk.SharedDRAManager, pod *corev1.Pod, node fwk.NodeInfo) string {
	if manager == nil || len(pod.Spec.ResourceClaims) == 0 {
		return ""
	}
	text := ""
	for name, amount := range resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}) {
		class := manager.DeviceClassResolver().GetDeviceClass(name)
		switch {
		case amount.IsZero() || class == nil:
		case node.GetAllocatable().GetScalarResources()[name] == 0:
			return "" // The claim has the devices of this one.
		case text == "" || string(name) < text:
			text = string(name)
		}
	}
	if text == "" {
		return ""
	}
	return fmt.Sprintf("Kubernetes cannot bind a pod with ResourceClaims to a node whose device plugin offers %s while a DeviceClass serves it elsewhere", text)
}
