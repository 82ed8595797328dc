package podwatch

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Pod has the data of a pod that Berth needs.
type Pod struct {
	// UID is the kubelet's UID of the pod: for a static pod it differs from the UID of its mirror.
	UID       string
	Namespace string
	Name      string
	// Finished is true when the phase is Succeeded or Failed, and Refused when the kubelet has not admitted it for lack of its devices.
	Finished bool
	Refused  bool
	// Static is true for a static pod, of which the API server has at most a mirror. It follows from the form of the
	// UID.
	Static bool
	// Containers are in the order in which the kubelet allocates devices: init containers and sidecars
	// in the order of the specification, then the others.
	Containers []Container
	// Counted has the devices that the scheduler counts for the pod, by resource, with its rule for init containers and
	// sidecars. Only extended resources are in it.
	Counted map[string]int
	// Validation is nil for a pod that is no validation pod of the operator.
	Validation *Validation
}

// Container is a container of a pod's specification.
type Container struct {
	Name string
	// Init is true for an init container that is no sidecar.
	Init bool
	// Devices are the limits of extended resources.
	Devices map[string]int
}

// Annotations of the kubelet. A mirror has the first with the static pod's UID as its value.
const mirrorAnnotation = "kubernetes.io/config.mirror"

// refusedReason is the reason in the status of a pod whose devices the kubelet could not allocate, although the scheduler had found them
// on the Node. The end-to-end test TestDRA/Refused compares it with the kubelet's.
const refusedReason = "UnexpectedAdmissionError"

// parse reads an object of the API.
func parse(object *unstructured.Unstructured) (Pod, error) {
	var typed corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &typed); err != nil {
		return Pod{}, fmt.Errorf("read pod %s/%s: %w", object.GetNamespace(), object.GetName(), err)
	}
	pod := Pod{
		UID: string(typed.UID), Namespace: typed.Namespace, Name: typed.Name,
		Finished: typed.Status.Phase == corev1.PodSucceeded || typed.Status.Phase == corev1.PodFailed,
		Refused:  typed.Status.Phase == corev1.PodFailed && typed.Status.Reason == refusedReason,
		Counted:  devices(resourcehelper.PodLimits(&typed, resourcehelper.PodResourcesOptions{})),
	}
	// A static pod's UID has 32 hexadecimal digits (kubelet, config/common.go applyDefaults); with any other value the
	// annotation could name another user's pod.
	if uid := typed.Annotations[mirrorAnnotation]; isStaticUID(uid) {
		pod.UID, pod.Static = uid, true
	}
	pod.Validation = validationOf(&typed)
	for i := range typed.Spec.InitContainers {
		c := &typed.Spec.InitContainers[i]
		sidecar := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		pod.Containers = append(pod.Containers, Container{Name: c.Name, Init: !sidecar, Devices: devices(c.Resources.Limits)})
	}
	for i := range typed.Spec.Containers {
		c := &typed.Spec.Containers[i]
		pod.Containers = append(pod.Containers, Container{Name: c.Name, Devices: devices(c.Resources.Limits)})
	}
	return pod, nil
}

// devices returns the extended resources of a list: those whose name has a domain.
func devices(list corev1.ResourceList) map[string]int {
	var found map[string]int
	for name, quantity := range list {
		if count := quantity.Value(); count > 0 && isExtended(string(name)) {
			if found == nil {
				found = map[string]int{}
			}
			found[string(name)] = int(count)
		}
	}
	return found
}

func isExtended(name string) bool {
	for i := range len(name) {
		if name[i] == '/' {
			return true
		}
	}
	return false
}

// isStaticUID reports whether a UID has the form of a static pod's.
func isStaticUID(uid string) bool {
	if len(uid) != 32 {
		return false
	}
	for i := range len(uid) {
		if c := uid[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
