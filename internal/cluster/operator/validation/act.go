package validation

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// act goes on with the active operation of a node.
func (r *Reconciler) act(ctx context.Context, node *v1alpha1.GPUNode, op *v1alpha1.NodeOperation) (reconcile.Result, error) {
	now := op.Status.DeepCopy()
	created := step(now, stepCreated)
	pod, err := r.currentPod(ctx, op, created)
	if err != nil {
		return reconcile.Result{}, err
	}
	switch {
	case pod == nil && created != nil:
		return r.fail(ctx, op, now, "somebody deleted the pod before its result was seen")
	case pod == nil:
		return r.createObjects(ctx, node, op, now)
	case !ofOperation(pod, op) || created != nil && created.Evidence != string(pod.UID):
		return r.foreign(ctx, op, now, pod)
	}
	switch {
	case finished(pod):
		return r.judge(ctx, op, now, pod)
	case pod.DeletionTimestamp != nil && created != nil:
		return r.fail(ctx, op, now, "somebody deleted the pod before its result was seen")
	case pod.DeletionTimestamp != nil:
		return reconcile.Result{RequeueAfter: goneInterval}, nil // It is replaced.
	case pod.Spec.NodeName == "" && !free(node):
		return reconcile.Result{}, r.cancel(ctx, op, "somebody else got a device before the pod was scheduled")
	}
	return r.follow(ctx, node, op, now, pod)
}

// currentPod returns the pod of an operation, nil when there is none. The caches can be behind: that does no harm for
// the pod of this attempt once it has started; until then it can be replaced, and is read from the API server.
func (r *Reconciler) currentPod(ctx context.Context, op *v1alpha1.NodeOperation, created *v1alpha1.NodeOperationStep) (*corev1.Pod, error) {
	pod := r.cachedPod(ctx, op)
	if pod != nil && created != nil && created.Evidence == string(pod.UID) && pod.Status.Phase != corev1.PodPending {
		return pod, nil
	}
	return r.pod(ctx, op)
}

// follow says what the pod waits for. One that has not started, and is made from other settings, is replaced.
func (r *Reconciler) follow(ctx context.Context, node *v1alpha1.GPUNode, op *v1alpha1.NodeOperation, now *v1alpha1.NodeOperationStatus, pod *corev1.Pod) (reconcile.Result, error) {
	if pod.Status.Phase == corev1.PodPending {
		outdated, err := r.outdated(ctx, node, op, pod)
		if err != nil {
			return reconcile.Result{}, err
		}
		if outdated {
			forget(now, stepCreated, stepScheduled)
			now.Message = "replaces the pod, since the devices or the GPUStack changed"
			if err := r.write(ctx, op, now); err != nil {
				return reconcile.Result{}, err
			}
			return again(goneInterval, r.delete(ctx, pod))
		}
	}
	r.seePod(now, pod)
	now.Message = waitsFor(pod)
	return reconcile.Result{}, r.write(ctx, op, now)
}

// seePod adds the steps that an operation's pod shows.
func (r *Reconciler) seePod(now *v1alpha1.NodeOperationStatus, pod *corev1.Pod) {
	r.see(now, stepCreated, string(pod.UID))
	if pod.Spec.NodeName != "" {
		r.see(now, stepScheduled, pod.Spec.NodeName)
	}
}

// judge ends the attempt of a pod that has ended, or waits for the agent.
func (r *Reconciler) judge(ctx context.Context, op *v1alpha1.NodeOperation, now *v1alpha1.NodeOperationStatus, pod *corev1.Pod) (reconcile.Result, error) {
	passed, evidence := result(pod)
	r.seePod(now, pod)
	r.see(now, stepFinished, evidence)
	if !passed {
		return r.fail(ctx, op, now, evidence)
	}
	now.Message = "the pod has passed; waits until the agent of the node has read its result"
	return reconcile.Result{}, r.write(ctx, op, now)
}

// createObjects creates the ResourceClaim, when one is needed, and the pod.
func (r *Reconciler) createObjects(ctx context.Context, node *v1alpha1.GPUNode, op *v1alpha1.NodeOperation, now *v1alpha1.NodeOperationStatus) (reconcile.Result, error) {
	if !due(node) {
		return reconcile.Result{}, r.cancel(ctx, op, "somebody else got a device before the pod was created, or none is advertised any more")
	}
	made, why, err := r.wantedObjects(ctx, node, op)
	if err != nil {
		return reconcile.Result{}, err
	}
	if why != "" {
		now.Message = "waits: " + why
		return reconcile.Result{}, r.write(ctx, op, now)
	}
	if made.claim != nil {
		ready, result, err := r.ensureClaim(ctx, op, now, made.claim)
		if !ready || err != nil {
			return result, err
		}
	}
	err = r.deps.Client.Create(ctx, made.pod, client.FieldOwner(fieldManager))
	if refused(err) {
		return r.fail(ctx, op, now, fmt.Sprintf("the API server refuses the pod: %v", err))
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("create pod %s/%s: %w", made.pod.Namespace, made.pod.Name, err)
	}
	r.see(now, stepCreated, string(made.pod.UID))
	now.Message = waitsFor(made.pod)
	return reconcile.Result{}, r.write(ctx, op, now)
}

// refused reports whether the API server will refuse the same object again.
func refused(err error) bool { return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) }

// wantedObjects returns what the operation creates as things are now, or why that is unknown.
func (r *Reconciler) wantedObjects(ctx context.Context, node *v1alpha1.GPUNode, op *v1alpha1.NodeOperation) (objects, string, error) {
	stack := &v1alpha1.GPUStack{}
	err := r.deps.Cached.Get(ctx, client.ObjectKey{Name: v1alpha1.GPUStackName}, stack)
	if apierrors.IsNotFound(err) {
		return objects{}, "there is no GPUStack default, which has the image", nil
	}
	if err != nil {
		return objects{}, "", fmt.Errorf("read GPUStack %s: %w", v1alpha1.GPUStackName, err)
	}
	made, err := r.objectsOf(op, node, &stack.Spec)
	if err != nil {
		return objects{}, err.Error(), nil
	}
	return made, "", nil
}

// outdated reports whether a pod that has not started was made from other settings.
func (r *Reconciler) outdated(ctx context.Context, node *v1alpha1.GPUNode, op *v1alpha1.NodeOperation, pod *corev1.Pod) (bool, error) {
	made, why, err := r.wantedObjects(ctx, node, op)
	if err != nil || why != "" || len(made.pod.Spec.Containers) == 0 {
		return false, err
	}
	return made.pod.Annotations[hashAnnotation] != pod.Annotations[hashAnnotation], nil
}

// ensureClaim creates the ResourceClaim. One that was made from other settings goes first.
func (r *Reconciler) ensureClaim(ctx context.Context, op *v1alpha1.NodeOperation, now *v1alpha1.NodeOperationStatus, wanted *resourceapi.ResourceClaim) (bool, reconcile.Result, error) {
	claim, err := r.claim(ctx, op)
	switch {
	case err != nil:
		return false, reconcile.Result{}, err
	case claim == nil:
		err := r.deps.Client.Create(ctx, wanted, client.FieldOwner(fieldManager))
		if refused(err) || meta.IsNoMatchError(err) {
			result, err := r.fail(ctx, op, now, fmt.Sprintf("the API server refuses the ResourceClaim: %v", err))
			return false, result, err
		}
		if err != nil {
			return false, reconcile.Result{}, fmt.Errorf("create ResourceClaim %s/%s: %w", wanted.Namespace, wanted.Name, err)
		}
		return true, reconcile.Result{}, nil
	case ofOperation(claim, op) && claim.DeletionTimestamp == nil && claim.Annotations[hashAnnotation] == wanted.Annotations[hashAnnotation]:
		return true, reconcile.Result{}, nil
	}
	result, err := r.foreign(ctx, op, now, claim)
	return false, result, err
}

// foreign removes an object that has the name of the operation's own, if it has Berth's label, and else waits until it is gone.
func (r *Reconciler) foreign(ctx context.Context, op *v1alpha1.NodeOperation, now *v1alpha1.NodeOperationStatus, object client.Object) (reconcile.Result, error) {
	name := object.GetNamespace() + "/" + object.GetName()
	if !labelled(object) {
		now.Message = fmt.Sprintf("%s exists, and Berth did not make it; fix: delete it", kindAndName(object, name))
		return again(foreignInterval, r.write(ctx, op, now))
	}
	now.Message = fmt.Sprintf("waits until %s, which is not of this operation, is gone", kindAndName(object, name))
	if err := r.write(ctx, op, now); err != nil {
		return reconcile.Result{}, err
	}
	return again(goneInterval, r.remove(ctx, object))
}

func kindAndName(object client.Object, name string) string {
	if _, ok := object.(*resourceapi.ResourceClaim); ok {
		return "ResourceClaim " + name
	}
	return "pod " + name
}

// cleanUp removes the pod and the ResourceClaim of an operation. It reports whether both are gone. What has their name without Berth's
// label stays.
func (r *Reconciler) cleanUp(ctx context.Context, op *v1alpha1.NodeOperation) (gone bool, err error) {
	// One that the caches have is deleted by its UID; that none is there says the API server alone.
	pod := r.cachedPod(ctx, op)
	if pod == nil {
		if pod, err = r.pod(ctx, op); err != nil {
			return false, err
		}
	}
	if pod != nil && labelled(pod) {
		return false, r.remove(ctx, pod)
	}
	claim, err := r.claim(ctx, op)
	if err != nil {
		return false, err
	}
	if claim != nil && labelled(claim) {
		return false, r.remove(ctx, claim)
	}
	return true, nil
}

// remove deletes an object, unless that is under way.
func (r *Reconciler) remove(ctx context.Context, object client.Object) error {
	if object.GetDeletionTimestamp() != nil {
		return nil
	}
	return r.delete(ctx, object)
}

// pod reads the pod of an operation; nil when there is none.
func (r *Reconciler) pod(ctx context.Context, op *v1alpha1.NodeOperation) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	name := client.ObjectKey{Namespace: r.deps.Namespace, Name: podName(op.Spec.Node)}
	err := r.deps.Client.Get(ctx, name, pod)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read pod %s: %w", name, err)
	}
	return pod, nil
}

// claim reads the ResourceClaim of an operation; nil when there is none, also where the API server serves none.
func (r *Reconciler) claim(ctx context.Context, op *v1alpha1.NodeOperation) (*resourceapi.ResourceClaim, error) {
	claim := &resourceapi.ResourceClaim{}
	name := client.ObjectKey{Namespace: r.deps.Namespace, Name: podName(op.Spec.Node)}
	err := r.deps.Client.Get(ctx, name, claim)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read ResourceClaim %s: %w", name, err)
	}
	return claim, nil
}
