package fit

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/resource"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// refusals returns why a pod cannot be scheduled to a node, whatever its devices. The scheduler's default is not to compare the values of
// tolerations as numbers.
func refusals(pod *corev1.Pod, node *corev1.Node) (reasons []v1alpha1.FitReason) {
	refuse := func(format string, args ...any) {
		reasons = append(reasons, v1alpha1.FitReason{Code: v1alpha1.FitNodeRefuses, Message: fmt.Sprintf(format, args...)})
	}
	if pod.Spec.NodeName != "" && pod.Spec.NodeName != node.Name {
		refuse("The pod's spec.nodeName is %s.", pod.Spec.NodeName)
	}
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !ok {
		refuse("The pod's node selector or required node affinity does not match the Node's labels.")
	}
	taints := slices.Clone(node.Spec.Taints)
	if node.Spec.Unschedulable {
		cordon := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
		taints = slices.DeleteFunc(taints, func(t corev1.Taint) bool { return t.Key == cordon.Key })
		taints = append(taints, cordon)
	}
	schedules := func(taint *corev1.Taint) bool {
		return taint.Effect == corev1.TaintEffectNoSchedule || taint.Effect == corev1.TaintEffectNoExecute
	}
	if taint, found := schedulinghelpers.FindMatchingUntoleratedTaint(logr.Discard(), taints, pod.Spec.Tolerations, schedules, false); found {
		refuse("The Node has the taint %s, which the pod does not tolerate.", taint.ToString())
	}
	return reasons
}

// availableOn returns whether devices with that selector can be used on a node.
func availableOn(selector *corev1.NodeSelector, node *corev1.Node) bool {
	if selector == nil {
		return true
	}
	parsed, err := nodeaffinity.NewNodeSelector(selector)
	return err == nil && parsed.Match(node)
}

// ExtendedNames returns the extended resources that a pod requests, sorted.
func ExtendedNames(pod *corev1.Pod) (names []corev1.ResourceName) {
	requests := resource.PodRequests(pod, resource.PodResourcesOptions{})
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		quantity := requests[name]
		if isExtended(name) && !quantity.IsZero() {
			names = append(names, name)
		}
	}
	return names
}

// isExtended returns whether a resource is one that a device plugin or a DeviceClass can have: its name has a domain that is not
// Kubernetes' own, or is the implicit one of a class.
func isExtended(name corev1.ResourceName) bool {
	text := string(name)
	if strings.HasPrefix(text, resourceapi.ResourceDeviceClassPrefix) {
		return true
	}
	return strings.Contains(text, "/") && !strings.Contains(text, corev1.ResourceDefaultNamespacePrefix) &&
		!strings.HasPrefix(text, corev1.DefaultResourceRequestsPrefix)
}

// extendedClaim is the scheduler's name of the claim for extended resources before it is stored. No claim of the cluster can have it.
const extendedClaim = "<extended-resources>"

// extended adds to a question the claim that the scheduler would make for a pod's extended resources, and to the answer those that device
// plugins of the node serve. A device plugin comes first wherever the Node has an allocatable device. It returns what is in the way.
func (c *Checker) extended(pod *corev1.Pod, q *question, answer *v1alpha1.FitNode) (reasons []v1alpha1.FitReason) {
	var requests []resourceapi.DeviceRequest
	var plugin []corev1.ResourceName // those of classes that the device plugin serves
	q.labels = map[string]string{}
	for _, name := range ExtendedNames(pod) {
		allocatable, advertised := q.node.Status.Allocatable[name]
		class := c.resources.GetDeviceClass(name)
		switch {
		case class != nil && allocatable.IsZero():
			requests = append(requests, extendedRequests(pod, name, class.Name, q.labels)...)
		case !advertised:
			reasons = append(reasons, v1alpha1.FitReason{Code: v1alpha1.FitResourceMissing, Message: fmt.Sprintf(
				"No device plugin of the node advertises %s, and no DeviceClass has it as extendedResourceName.", name)})
		default:
			if class != nil {
				plugin = append(plugin, name)
			}
			wanted, held := requested(pod, name), c.heldOf(q.node, pod, name)
			answer.DevicePlugin = append(answer.DevicePlugin, v1alpha1.FitPluginResource{Resource: string(name), Requested: wanted, Free: max(0, allocatable.Value()-held)})
			if wanted > allocatable.Value()-held {
				reasons = append(reasons, v1alpha1.FitReason{Code: v1alpha1.FitResourceHeld, Message: fmt.Sprintf(
					"The node's device plugin serves %s: it has %d, the node's pods request %d, and this pod requests %d.", name, allocatable.Value(), held, wanted)})
			}
		}
	}
	if len(plugin) > 0 && len(requests) == 0 && len(pod.Spec.ResourceClaims) > 0 {
		reasons = append(reasons, v1alpha1.FitReason{Code: v1alpha1.FitUnbindable, Message: fmt.Sprintf(
			"Kubernetes cannot bind a pod with ResourceClaims to a node whose device plugin offers %s while a DeviceClass serves it elsewhere.", plugin[0])})
	}
	if len(requests) == 0 || len(reasons) > 0 {
		return reasons
	}
	slices.SortFunc(requests, func(a, b resourceapi.DeviceRequest) int { return strings.Compare(a.Name, b.Name) })
	q.claims = []*resourceapi.ResourceClaim{{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: extendedClaim},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}},
	}}
	return nil
}

func requested(pod *corev1.Pod, name corev1.ResourceName) int64 {
	quantity := resource.PodRequests(pod, resource.PodResourcesOptions{})[name]
	return quantity.Value()
}

// heldOf returns how many devices of a resource the other pods of a node request. As in the scheduler, these include pods that have
// them through DRA.
func (c *Checker) heldOf(node *corev1.Node, but *corev1.Pod, name corev1.ResourceName) (held int64) {
	for _, pod := range c.pods[node.Name] {
		if pod.Namespace != but.Namespace || pod.Name != but.Name {
			held += requested(pod, name)
		}
	}
	return held
}

// extendedRequests returns the requests of the scheduler's claim for one extended resource: one for each container that keeps running,
// and one for the init containers, which use the devices of later containers, if they need more than these have. It adds what each is
// for to labels.
func extendedRequests(pod *corev1.Pod, name corev1.ResourceName, class string, labels map[string]string) (requests []resourceapi.DeviceRequest) {
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	counts := make([]int64, len(containers))
	short := make([]bool, len(containers))
	for i := range containers {
		quantity := containers[i].Resources.Requests[name]
		counts[i] = quantity.Value()
		policy := containers[i].RestartPolicy
		short[i] = i < len(pod.Spec.InitContainers) && (policy == nil || *policy != corev1.ContainerRestartPolicyAlways)
	}
	add := func(at int, count int64) {
		request := extendedRequest(&containers[at], at, name, class, count)
		requests, labels[request.Name] = append(requests, request), fmt.Sprintf("%s of container %s", name, containers[at].Name)
	}
	most, at := int64(0), -1
	for i := range containers {
		if counts[i] == 0 {
			continue
		}
		if !short[i] {
			add(i, counts[i])
			continue
		}
		more := counts[i]
		for later := i; later < len(containers); later++ {
			if !short[later] {
				more -= counts[later]
			}
		}
		if more > most {
			most, at = more, i
		}
	}
	if at >= 0 {
		add(at, most)
	}
	return requests
}

func extendedRequest(container *corev1.Container, index int, name corev1.ResourceName, class string, count int64) resourceapi.DeviceRequest {
	at := slices.Index(slices.Sorted(maps.Keys(container.Resources.Requests)), name)
	return resourceapi.DeviceRequest{
		Name: fmt.Sprintf("container-%d-request-%d", index, at),
		Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
		},
	}
}
