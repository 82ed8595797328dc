package validation

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/operator/attempts"
	"github.com/berth-gpu/berth/internal/core/nodeop"
)

const (
	fieldManager = "berth-operator"
	// owner is the owner of the operations.
	owner = "operator/validation"
)

// The times after which something is looked at again that no watch reports: an object that was deleted and whose end the caches do not
// show (a ResourceClaim), a pod without Berth's label, a kind that the API server does not serve.
const (
	goneInterval    = 2 * time.Second
	foreignInterval = time.Minute
	servedInterval  = 5 * time.Second
)

// Reconciler validates nodes.
type Reconciler struct {
	deps Deps
	// created has the keys of the operations that were made and not ended, by name: one that is missing then was deleted by others.
	created sync.Map
}

// New returns a reconciler.
func New(deps Deps) *Reconciler { return &Reconciler{deps: deps} }

// again asks for another look after some time, or returns the error, after which the queue chooses the time.
func again(after time.Duration, err error) (reconcile.Result, error) {
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: after}, nil
}

// Reconcile brings the operation of one node in line with its GPUNode.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	return r.deps.Objects.Reconcile(ctx, objectOf(req.Name), func() (reconcile.Result, error) { return r.keep(ctx, req) })
}

// objectOf is what the attempts for a node are counted for.
func objectOf(node string) attempts.Object {
	return attempts.Object{Kind: v1alpha1.KindNodeOperation, Name: operationName(node)}
}

func (r *Reconciler) keep(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	// 1. Read the GPUNode. Most nodes need nothing; that they do not is in the caches.
	node := &v1alpha1.GPUNode{}
	err := r.deps.Cached.Get(ctx, client.ObjectKey{Name: req.Name}, node)
	if apierrors.IsNotFound(err) {
		node = nil
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("read GPUNode %s: %w", req.Name, err)
	}
	op := &v1alpha1.NodeOperation{}
	key := client.ObjectKey{Name: operationName(req.Name)}
	err = r.deps.Cached.Get(ctx, key, op)
	switch {
	case apierrors.IsNotFound(err) && (node == nil || !due(node)):
		r.created.Delete(key.Name)
		return reconcile.Result{}, nil
	case apierrors.IsNotFound(err):
		return r.create(ctx, node)
	case err == nil && r.waitsForPod(ctx, op):
		return reconcile.Result{RequeueAfter: goneInterval}, nil
	}
	// 2. Read the operation as it is now.
	op = &v1alpha1.NodeOperation{}
	err = r.deps.Client.Get(ctx, key, op)
	switch {
	case meta.IsNoMatchError(err):
		return reconcile.Result{RequeueAfter: servedInterval}, nil
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil // The caches will have that it is gone, which wakes this controller.
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("read NodeOperation %s: %w", key.Name, err)
	case op.Spec.Owner != owner || op.Spec.Node != req.Name:
		return reconcile.Result{}, fmt.Errorf("NodeOperation %s, which node %s needs for its validation, is of owner %q; delete it", op.Name, req.Name, op.Spec.Owner)
	}
	return r.advance(ctx, node, op)
}

// create makes the operation of a node. What it has to restore is what it will create. One that the caches do not have yet wakes this
// controller when they have it.
func (r *Reconciler) create(ctx context.Context, node *v1alpha1.GPUNode) (reconcile.Result, error) {
	key, _ := keyOf(node)
	op := &v1alpha1.NodeOperation{
		ObjectMeta: metav1.ObjectMeta{Name: operationName(node.Name), Labels: map[string]string{"app.kubernetes.io/part-of": "berth", "app.kubernetes.io/managed-by": fieldManager},
			Finalizers: []string{v1alpha1.NodeOperationFinalizer}},
		Spec: v1alpha1.NodeOperationSpec{Node: node.Name, Kind: v1alpha1.OperationValidate, Owner: owner, Key: key,
			Restore: []string{"Pod " + r.deps.Namespace + "/" + podName(node.Name)}},
	}
	for _, d := range demands(node) {
		if d.dra {
			op.Spec.Restore = append(op.Spec.Restore, "ResourceClaim "+r.deps.Namespace+"/"+podName(node.Name))
			break
		}
	}
	err := r.deps.Client.Create(ctx, op, client.FieldOwner(fieldManager))
	switch {
	case apierrors.IsAlreadyExists(err):
		return reconcile.Result{}, nil
	case meta.IsNoMatchError(err):
		return reconcile.Result{RequeueAfter: servedInterval}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("create NodeOperation %s: %w", op.Name, err)
	}
	if last, again := r.created.Swap(op.Name, key); again && last == key {
		r.deps.Objects.Undid(objectOf(node.Name), "it was deleted")
	}
	r.deps.Log.Info("Created a validation", "node", node.Name, "resources", resources(demands(node)))
	return reconcile.Result{}, nil
}

// advance takes an operation one step further.
func (r *Reconciler) advance(ctx context.Context, node *v1alpha1.GPUNode, op *v1alpha1.NodeOperation) (reconcile.Result, error) {
	// 3. One that is being deleted restores what it has to, and goes.
	if op.DeletionTimestamp != nil {
		return r.end(ctx, op)
	}
	before := op.DeepCopy()
	if controllerutil.AddFinalizer(op, v1alpha1.NodeOperationFinalizer) {
		// Somebody has removed it, or the operation is made by hand.
		r.deps.Objects.Undid(objectOf(op.Spec.Node), "its finalizers")
		return reconcile.Result{}, r.writeFinalizers(ctx, before, op)
	}
	// 4. One that has reached its goal, or that is obsolete, is deleted.
	if accepted(node, op.Spec.Key) {
		return reconcile.Result{}, r.succeed(ctx, node, op)
	}
	if key, wanted := keyOf(node); !wanted || key != op.Spec.Key || op.Spec.Kind != v1alpha1.OperationValidate {
		return reconcile.Result{}, r.cancel(ctx, op, "the node waits for no such validation")
	}
	// 5. One that is not the active one of its node waits.
	other, waits, err := r.waits(ctx, op)
	if err != nil {
		return reconcile.Result{}, err
	}
	switch {
	case waits && other == op.Name:
		return reconcile.Result{}, nil // Its arrival in the caches wakes it.
	case waits:
		return r.wait(ctx, op, other)
	}
	// 6. The active one goes on.
	switch op.Status.Phase {
	case v1alpha1.OperationActive:
		return r.act(ctx, node, op)
	case v1alpha1.OperationFailed:
		return r.rest(ctx, node, op)
	default:
		if !due(node) {
			return reconcile.Result{}, r.cancel(ctx, op, "the devices are in use, or none is advertised")
		}
		return reconcile.Result{}, r.begin(ctx, op)
	}
}

// waits returns the operation that acts on the node in place of this one. The caches have all operations that are older than one that they
// have; so one that they do not have yet waits for them.
func (r *Reconciler) waits(ctx context.Context, op *v1alpha1.NodeOperation) (string, bool, error) {
	list := &v1alpha1.NodeOperationList{}
	if err := r.deps.Cached.List(ctx, list); err != nil {
		return "", false, fmt.Errorf("list NodeOperations: %w", err)
	}
	var all []nodeop.Operation
	known := false
	for i := range list.Items {
		if o := &list.Items[i]; o.Spec.Node == op.Spec.Node {
			all = append(all, nodeop.Operation{Name: o.Name, Created: o.CreationTimestamp.Time})
			known = known || o.UID == op.UID
		}
	}
	if !known {
		return op.Name, true, nil
	}
	other, waits := nodeop.WaitsFor(op.Name, all)
	return other, waits, nil
}

// wait says for whom an operation waits. One that had begun, since the other was not known then, removes its pod before.
func (r *Reconciler) wait(ctx context.Context, op *v1alpha1.NodeOperation, other string) (reconcile.Result, error) {
	if op.Status.Phase == v1alpha1.OperationActive || op.Status.Phase == v1alpha1.OperationFailed {
		if gone, err := r.cleanUp(ctx, op); err != nil || !gone {
			return again(goneInterval, err)
		}
	}
	now := op.Status.DeepCopy()
	now.Phase, now.Message, now.Steps, now.NextAttempt = v1alpha1.OperationWaiting, "waits for NodeOperation "+other, nil, metav1.Time{}
	return reconcile.Result{}, r.write(ctx, op, now)
}

// begin starts an attempt. Nothing of one before is left then.
func (r *Reconciler) begin(ctx context.Context, op *v1alpha1.NodeOperation) error {
	now := op.Status.DeepCopy()
	if op.Status.Phase == v1alpha1.OperationFailed || now.Attempt == 0 {
		now.Attempt++
	}
	now.Phase, now.Message, now.Steps, now.NextAttempt = v1alpha1.OperationActive, "creates the pod", nil, metav1.Time{}
	r.see(now, stepStarted, fmt.Sprintf("attempt %d; no device has a holder", now.Attempt))
	return r.write(ctx, op, now)
}

// rest removes what is left of a failed attempt, and begins the next one when its time has come and the devices are free.
func (r *Reconciler) rest(ctx context.Context, node *v1alpha1.GPUNode, op *v1alpha1.NodeOperation) (reconcile.Result, error) {
	if gone, err := r.cleanUp(ctx, op); err != nil || !gone {
		return again(goneInterval, err)
	}
	// Another operator, whose clock is ahead of this one's, may have written the time: it is at most a pause away.
	if left := op.Status.NextAttempt.Sub(r.deps.Clock.Now()); left > 0 && left <= nodeop.Pause(op.Status.Attempt) {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	if !due(node) {
		return reconcile.Result{}, nil // The GPUNode wakes it.
	}
	return reconcile.Result{}, r.begin(ctx, op)
}

// fail ends an attempt.
func (r *Reconciler) fail(ctx context.Context, op *v1alpha1.NodeOperation, now *v1alpha1.NodeOperationStatus, why string) (reconcile.Result, error) {
	pause := nodeop.Pause(now.Attempt)
	now.Phase, now.Message, now.NextAttempt = v1alpha1.OperationFailed, short(why), metav1.NewTime(r.deps.Clock.Now().Add(pause))
	if err := r.write(ctx, op, now); err != nil {
		return reconcile.Result{}, err
	}
	r.deps.Log.Warn("A validation failed", "node", op.Spec.Node, "attempt", now.Attempt, "again", pause, "why", why)
	r.deps.Events.Eventf(op, nil, corev1.EventTypeWarning, "ValidationFailed", "Validate", "attempt %d on node %s: %s", now.Attempt, op.Spec.Node, cut(why, mostNote))
	return reconcile.Result{}, nil // The operation's new phase wakes it.
}

// succeed ends an operation that the agent has accepted.
func (r *Reconciler) succeed(ctx context.Context, node *v1alpha1.GPUNode, op *v1alpha1.NodeOperation) error {
	if op.Status.Phase != v1alpha1.OperationSucceeded {
		now := op.Status.DeepCopy()
		r.see(now, stepAccepted, fmt.Sprintf("GPUNode %s is Validated by pod: %s", node.Name, node.Status.Gate.Message))
		now.Phase, now.Message, now.NextAttempt = v1alpha1.OperationSucceeded, "the node is validated", metav1.Time{}
		if err := r.write(ctx, op, now); err != nil {
			return err
		}
		r.deps.Log.Info("A node is validated", "node", op.Spec.Node, "attempt", now.Attempt)
	}
	r.created.Delete(op.Name)
	return r.delete(ctx, op)
}

// cancel deletes an operation that is not wanted any more.
func (r *Reconciler) cancel(ctx context.Context, op *v1alpha1.NodeOperation, why string) error {
	r.deps.Log.Info("Canceled a validation", "node", op.Spec.Node, "why", why)
	r.created.Delete(op.Name)
	return r.delete(ctx, op)
}

// end lets an operation go when all that it has to restore is restored.
func (r *Reconciler) end(ctx context.Context, op *v1alpha1.NodeOperation) (reconcile.Result, error) {
	if gone, err := r.cleanUp(ctx, op); err != nil || !gone {
		return again(goneInterval, err)
	}
	before := op.DeepCopy()
	if controllerutil.RemoveFinalizer(op, v1alpha1.NodeOperationFinalizer) {
		return reconcile.Result{}, r.writeFinalizers(ctx, before, op)
	}
	return reconcile.Result{}, nil
}

// writeFinalizers writes the finalizers of an operation, on the version that was read.
func (r *Reconciler) writeFinalizers(ctx context.Context, before, op *v1alpha1.NodeOperation) error {
	err := r.deps.Client.Patch(ctx, op, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(fieldManager))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the finalizers of NodeOperation %s: %w", op.Name, err)
	}
	return nil
}

// write writes the status of an operation, if it differs, on the version that was read.
func (r *Reconciler) write(ctx context.Context, op *v1alpha1.NodeOperation, now *v1alpha1.NodeOperationStatus) error {
	now.ObservedGeneration = op.Generation
	if apiequality.Semantic.DeepEqual(&op.Status, now) {
		return nil
	}
	before := op.DeepCopy()
	op.Status = *now
	if err := r.deps.Client.Status().Patch(ctx, op, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("write status of NodeOperation %s: %w", op.Name, err)
	}
	return nil
}

// delete deletes an object, unless another one has its name by now.
func (r *Reconciler) delete(ctx context.Context, object client.Object) error {
	uid := object.GetUID()
	err := r.deps.Client.Delete(ctx, object, client.Preconditions{UID: &uid})
	if apierrors.IsConflict(err) {
		return nil // It is another one.
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete %T %s: %w", object, object.GetName(), err)
	}
	return nil
}
