package validation

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// nodeWakes reports whether a change of a GPUNode can lead to a step.
func nodeWakes(before, now *v1alpha1.GPUNode) bool {
	return !apiequality.Semantic.DeepEqual(before.Status, now.Status)
}

// operationWakes reports whether a change of a NodeOperation can lead to a step. What the controller writes while it
// follows a pod does not: the pod, the GPUNode or the GPUStack leads to the next step.
func operationWakes(before, now *v1alpha1.NodeOperation) bool {
	a, b := before.Status, now.Status
	for _, s := range []*v1alpha1.NodeOperationStatus{&a, &b} {
		s.Steps, s.Message, s.ObservedGeneration = nil, "", 0
	}
	return before.UID != now.UID || before.Generation != now.Generation || (before.DeletionTimestamp == nil) != (now.DeletionTimestamp == nil) ||
		!slices.Equal(before.Finalizers, now.Finalizers) || !apiequality.Semantic.DeepEqual(a, b)
}

// podView is what an operation reads of its pod.
type podView struct {
	uid      types.UID
	node     string
	waitsFor string
	phase    corev1.PodPhase
	deleted  bool
	passed   bool
	evidence string
}

func viewOf(pod *corev1.Pod) podView {
	v := podView{uid: pod.UID, node: pod.Spec.NodeName, waitsFor: waitsFor(pod), phase: pod.Status.Phase, deleted: pod.DeletionTimestamp != nil}
	if finished(pod) {
		v.passed, v.evidence = result(pod)
	}
	return v
}

// podWakes reports whether a change of a pod can lead to a step.
func podWakes(before, now *corev1.Pod) bool {
	return viewOf(before) != viewOf(now) || !maps.Equal(before.Labels, now.Labels) || !maps.Equal(before.Annotations, now.Annotations) ||
		!apiequality.Semantic.DeepEqual(before.OwnerReferences, now.OwnerReferences)
}

// newPodWakes reports whether a pod that the caches did not have can lead to a step. One that waits for the scheduler does not: the
// operation says so since it was made.
func newPodWakes(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || pod.Spec.NodeName != "" || finished(pod) || len(pod.Status.Conditions) > 0
}

// cachedPod returns the pod of an operation as the caches have it; nil when they do not have it, which does not mean that there is none.
func (r *Reconciler) cachedPod(ctx context.Context, op *v1alpha1.NodeOperation) *corev1.Pod {
	pod := &corev1.Pod{}
	if err := r.deps.Cached.Get(ctx, client.ObjectKey{Namespace: r.deps.Namespace, Name: podName(op.Spec.Node)}, pod); err != nil {
		return nil // The API server decides.
	}
	return pod
}

// waitsForPod reports whether an operation that is being deleted only waits until its pod is gone, which wakes it.
func (r *Reconciler) waitsForPod(ctx context.Context, op *v1alpha1.NodeOperation) bool {
	if op.DeletionTimestamp == nil {
		return false
	}
	pod := r.cachedPod(ctx, op)
	return pod != nil && pod.DeletionTimestamp != nil && labelled(pod)
}
