package agent

import (
	"context"
	"encoding/json"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

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

// countedDevices is how many devices of a resource the scheduler counts for a pod: those of
// its containers and sidecars together, or of an init container with the sidecars before
// it if that is more. It is 0 when that cannot be told.
func countedDevices(pod *unstructured.Unstructured, resourceName string) int {
	type container struct {
		RestartPolicy string `json:"restartPolicy"`
		Resources     struct {
			Limits map[string]quantity.Quantity `json:"limits"`
		} `json:"resources"`
	}
	var object struct {
		Spec struct {
			Containers     []container `json:"containers"`
			InitContainers []container `json:"initContainers"`
		} `json:"spec"`
	}
	blob, err := pod.MarshalJSON()
	if err != nil || json.Unmarshal(blob, &object) != nil {
		return 0
	}
	asks := func(c container) int {
		limit := c.Resources.Limits[resourceName]
		return int(limit.Value())
	}
	beside, peak := 0, 0
	for _, c := range object.Spec.InitContainers {
		if c.RestartPolicy == "Always" {
			beside += asks(c)
			continue
		}
		peak = max(peak, beside+asks(c))
	}
	for _, c := range object.Spec.Containers {
		beside += asks(c)
	}
	return max(peak, beside)
}
