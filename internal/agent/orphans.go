package agent

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-gpu/berth/internal/ledger"
)

// endedOrphans asks the API server about the pods of orphans only: one that is
// gone, or has finished, is not counted by the scheduler, so its device must be
// reported unhealthy until the process ends; so must those that a pod occupies beyond
// what it is counted for. Without an API server, or without an answer, the pod counts as
// it did.
func (a *Agent) endedOrphans(ctx context.Context) []ledger.NodePod {
	if a.api == nil {
		return nil
	}
	pods := a.api.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"})
	asked := map[string]bool{}
	var known []ledger.NodePod
	for _, h := range a.ledger.Holdings() {
		holder := h.Holder
		if holder.Kind != ledger.Orphan || holder.Pod == "" || asked[holder.PodUID] {
			continue
		}
		asked[holder.PodUID] = true
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		pod, err := pods.Namespace(holder.Namespace).Get(ctx, holder.Pod, metav1.GetOptions{})
		cancel()
		answer := ledger.NodePod{UID: holder.PodUID, Namespace: holder.Namespace, Name: holder.Pod}
		switch {
		case apierrors.IsNotFound(err):
			answer.Ended = true
		case err != nil:
			continue
		default:
			answer.Ended = string(pod.GetUID()) != holder.PodUID || finishedPhase(pod)
			answer.Devices = countedDevices(pod, a.config.ResourceName)
		}
		known = append(known, answer)
	}
	return known
}

func finishedPhase(pod *unstructured.Unstructured) bool {
	phase, _, _ := unstructured.NestedString(pod.Object, "status", "phase")
	return phase == "Succeeded" || phase == "Failed"
}

// countedDevices is how many devices of a resource the scheduler counts for a pod, by its
// own rule for init containers and sidecars. It is 0 when that cannot be told.
func countedDevices(pod *unstructured.Unstructured, resourceName string) int {
	var typed corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(pod.Object, &typed); err != nil {
		return 0
	}
	limits := resourcehelper.PodLimits(&typed, resourcehelper.PodResourcesOptions{})
	count := limits[corev1.ResourceName(resourceName)]
	return int(count.Value())
}
