package agent

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/ledger"
)

// askAgain is how long an answer about a pod counts.
const askAgain = time.Second

// orphanPods asks the API server about the pods of orphans only: one that is gone, or has
// finished, is not counted by the scheduler, so its device must be reported unhealthy
// until the process ends; so must those that a pod occupies beyond what it is counted
// for. Without an API server, or without an answer, the pod counts as it did. It is for
// one goroutine.
type orphanPods struct {
	api dynamic.Interface
	// resources are the names of our devices.
	resources func() []string
	clock     clock.PassiveClock
	board     *board
	// answers are by pod UID; those of pods without an orphan are forgotten.
	answers map[string]orphanAnswer
}

type orphanAnswer struct {
	pod ledger.NodePod
	at  time.Time
}

// about says what is known of the orphans among the holdings. A pod that has ended is
// not asked about again, since it cannot come back under its UID.
func (o *orphanPods) about(ctx context.Context, holdings []ledger.Holding) []ledger.NodePod {
	if o.api == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	last := o.answers
	o.answers = map[string]orphanAnswer{}
	var known []ledger.NodePod
	var failed error
	for _, h := range holdings {
		holder := h.Holder
		if _, twice := o.answers[holder.PodUID]; twice || holder.Kind != ledger.Orphan || holder.Pod == "" {
			continue
		}
		answer, ok := last[holder.PodUID]
		if !ok || !answer.pod.Ended && o.clock.Since(answer.at) >= askAgain {
			pod, err := o.ask(ctx, holder)
			if err != nil {
				failed = err
				continue
			}
			answer = orphanAnswer{pod, o.clock.Now()}
		}
		o.answers[holder.PodUID] = answer
		known = append(known, answer.pod)
	}
	o.board.fail("orphans", "ORPHAN_POD_UNKNOWN", failed)
	return known
}

func (o *orphanPods) ask(ctx context.Context, holder ledger.Holder) (ledger.NodePod, error) {
	pods := o.api.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"})
	answer := ledger.NodePod{UID: holder.PodUID, Namespace: holder.Namespace, Name: holder.Pod}
	pod, err := pods.Namespace(holder.Namespace).Get(ctx, holder.Pod, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		answer.Ended = true
	case err != nil:
		return answer, fmt.Errorf("ask whether the pod of an orphan has ended: %w (until there is an answer its GPUs count as the scheduler counts them)", err)
	default:
		answer.Ended = string(pod.GetUID()) != holder.PodUID || finishedPhase(pod)
		answer.Devices = countedDevices(pod, o.resources())
	}
	return answer, nil
}

func finishedPhase(pod *unstructured.Unstructured) bool {
	phase, _, _ := unstructured.NestedString(pod.Object, "status", "phase")
	return phase == "Succeeded" || phase == "Failed"
}

// countedDevices is how many devices of our resources the scheduler counts for a pod, by its
// own rule for init containers and sidecars. It is 0 when that cannot be told.
func countedDevices(pod *unstructured.Unstructured, resources []string) int {
	var typed corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(pod.Object, &typed); err != nil {
		return 0
	}
	limits := resourcehelper.PodLimits(&typed, resourcehelper.PodResourcesOptions{})
	counted := 0
	for _, name := range resources {
		count := limits[corev1.ResourceName(name)]
		counted += int(count.Value())
	}
	return counted
}
