package stack

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/operator/attempts"
	"github.com/berth-gpu/berth/internal/core/phrase"
)

// Reconciler keeps the GPUStack.
type Reconciler struct {
	deps Deps
	// seen is true once the GPUStack was there: what is missing then was deleted. It only chooses the words of the report.
	seen bool
	// said is the last problem with the ConfigMap that the log knows.
	said string
	// tried is the hash of the spec that was tried last, and status is what was written last.
	tried  string
	status *v1alpha1.GPUStackStatus
}

// New returns a reconciler.
func New(deps Deps) *Reconciler { return &Reconciler{deps: deps} }

// notServed is the time between two attempts while the API server does not serve GPUStacks: the definition was deleted, and comes back.
const notServed = 5 * time.Second

// What the attempts are counted for: a spec that cannot be written does not delay the status.
func specOf() attempts.Object {
	return attempts.Object{Kind: v1alpha1.KindGPUStack, Name: v1alpha1.GPUStackName}
}
func statusOf() attempts.Object {
	return attempts.Object{Kind: "status of GPUStack", Name: v1alpha1.GPUStackName}
}

// Reconcile brings the GPUStack, and its status, in line with the ConfigMap and the nodes.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	return r.deps.Objects.Reconcile(ctx, statusOf(), func() (reconcile.Result, error) { return r.keep(ctx) })
}

func (r *Reconciler) keep(ctx context.Context) (reconcile.Result, error) {
	// 1. What is wanted.
	w, wrong, err := r.wanted(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	// 2. What is there.
	live := &v1alpha1.GPUStack{}
	err = r.deps.Client.Get(ctx, client.ObjectKey{Name: v1alpha1.GPUStackName}, live)
	switch {
	case apierrors.IsNotFound(err):
		live = nil
	case meta.IsNoMatchError(err):
		return reconcile.Result{RequeueAfter: notServed}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("read GPUStack %s: %w", v1alpha1.GPUStackName, err)
	case live.DeletionTimestamp != nil:
		return reconcile.Result{}, nil // It wakes this controller again when it is gone.
	}
	// 3. Write what differs. Without a spec to apply the last one stays; where it cannot be written, the status says so.
	after := time.Duration(0)
	if wrong == nil {
		live, after, err = r.attempt(ctx, live, w)
		if apierrors.IsInvalid(err) {
			wrong = invalid(r.deps.Namespace+"/"+v1alpha1.GPUStackConfigMap, err)
		}
	}
	r.say(wrong)
	if live == nil {
		return reconcile.Result{RequeueAfter: after}, nil
	}
	r.seen = true
	// 4. Say how far the nodes are.
	return reconcile.Result{RequeueAfter: after}, r.report(ctx, live, wrong)
}

// wanted reads the ConfigMap.
func (r *Reconciler) wanted(ctx context.Context) (wanted, *problem, error) {
	config := &corev1.ConfigMap{}
	name := r.deps.Namespace + "/" + v1alpha1.GPUStackConfigMap
	err := r.deps.Cached.Get(ctx, client.ObjectKey{Namespace: r.deps.Namespace, Name: v1alpha1.GPUStackConfigMap}, config)
	switch {
	case apierrors.IsNotFound(err):
		return wanted{}, &problem{reasonConfigMissing, "ConfigMap " + name + " is missing, and the last spec stays in force; fix: helm upgrade"}, nil
	case err != nil:
		return wanted{}, nil, fmt.Errorf("read ConfigMap %s: %w", name, err)
	}
	w, err := read(config)
	if err != nil {
		return wanted{}, invalid(name, err), nil
	}
	return w, nil, nil
}

func invalid(name string, err error) *problem {
	return &problem{reasonConfigInvalid, fmt.Sprintf("ConfigMap %s is refused, and the last spec stays in force: %v; fix: correct the values of the release, "+
		"and helm upgrade", name, err)}
}

// attempt brings the GPUStack in line with a spec, unless it has to wait after the last attempt with the same one.
func (r *Reconciler) attempt(ctx context.Context, live *v1alpha1.GPUStack, w wanted) (now *v1alpha1.GPUStack, after time.Duration, err error) {
	if hash := w.annotations[hashAnnotation]; r.tried != hash {
		r.deps.Objects.Forget(specOf())
		r.tried = hash
	}
	unserved := time.Duration(0)
	after, err = r.deps.Objects.Attempt(ctx, specOf(), func() (err error) {
		now, err = r.bring(ctx, live, w)
		if live == nil && apierrors.IsNotFound(err) {
			unserved, err = notServed, nil
		}
		return err
	})
	return cmp.Or(now, live), attempts.Sooner(after, unserved), err
}

// bring applies the wanted spec where the live object differs; live is nil when there is none. It returns the object as it is then.
func (r *Reconciler) bring(ctx context.Context, live *v1alpha1.GPUStack, w wanted) (*v1alpha1.GPUStack, error) {
	var paths []string
	if live != nil {
		if paths = w.differences(live); len(paths) == 0 {
			return live, nil
		}
	}
	applied, err := r.apply(ctx, live, w)
	if err != nil {
		return nil, fmt.Errorf("apply GPUStack %s: %w", v1alpha1.GPUStackName, err)
	}
	if live == nil {
		r.reportCreated(applied)
	} else {
		r.reportChanged(live, w, paths)
	}
	return applied, nil
}

// apply writes the wanted fields on the version that was read. An apply leaves what others have added to the spec; then it is replaced.
func (r *Reconciler) apply(ctx context.Context, live *v1alpha1.GPUStack, w wanted) (*v1alpha1.GPUStack, error) {
	object, err := w.object()
	if err != nil {
		return nil, err
	}
	if live != nil {
		object.SetResourceVersion(live.ResourceVersion)
	}
	if err := r.deps.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(fieldManager), client.ForceOwnership); err != nil {
		return nil, err
	}
	applied := &v1alpha1.GPUStack{}
	if err := r.deps.Client.Get(ctx, client.ObjectKey{Name: v1alpha1.GPUStackName}, applied); err != nil {
		return nil, err
	}
	if len(w.differences(applied)) == 0 {
		return applied, nil
	}
	applied.Spec = w.spec
	if err := r.deps.Client.Update(ctx, applied, client.FieldOwner(fieldManager)); err != nil {
		return nil, err
	}
	if paths := w.differences(applied); len(paths) > 0 {
		return nil, fmt.Errorf("the API server keeps other values of %s (an admission webhook may change them: exclude the object there)", phrase.Some(paths, mostPaths))
	}
	return applied, nil
}

func (r *Reconciler) reportCreated(applied *v1alpha1.GPUStack) {
	r.status = nil
	if !r.seen {
		r.deps.Log.Info("Created the GPUStack", "version", applied.Spec.Version)
		return
	}
	if !r.deps.Objects.Undid(specOf(), "it was deleted") {
		return
	}
	r.deps.Log.Warn("Created the GPUStack again, which was deleted")
	r.deps.Events.Eventf(applied, nil, corev1.EventTypeWarning, "DeletionUndone", "Apply",
		"it was deleted; berth-operator created it again. To remove it, uninstall Berth first")
}

// reportChanged says what was changed and why: an edit of others, or another ConfigMap.
func (r *Reconciler) reportChanged(before *v1alpha1.GPUStack, w wanted, paths []string) {
	hash := before.Annotations[hashAnnotation]
	if hash != "" && hash != w.annotations[hashAnnotation] {
		r.deps.Log.Info("Updated the GPUStack", "fields", phrase.Some(paths, mostPaths), "version", w.spec.Version)
		return
	}
	if !r.deps.Objects.Undid(specOf(), phrase.Some(paths, mostPaths)) {
		return
	}
	r.deps.Log.Warn("Undid an edit of the GPUStack", "fields", phrase.Some(paths, mostPaths))
	r.deps.Events.Eventf(before, nil, corev1.EventTypeWarning, "EditUndone", "Apply", "%s differed from the ConfigMap %s/%s of the release; "+
		"berth-operator restored it. To change it, change the values of the release", phrase.Some(paths, mostPaths), r.deps.Namespace, v1alpha1.GPUStackConfigMap)
}

// say logs a problem with the ConfigMap once.
func (r *Reconciler) say(wrong *problem) {
	message := ""
	if wrong != nil {
		message = wrong.message
	}
	switch {
	case message == r.said:
	case message != "":
		r.deps.Log.Warn("Cannot apply the ConfigMap of the release", "reason", wrong.reason, "message", message)
	default:
		r.deps.Log.Info("The ConfigMap of the release is in force again")
	}
	r.said = message
}

// report writes the status, if it differs.
func (r *Reconciler) report(ctx context.Context, live *v1alpha1.GPUStack, wrong *problem) error {
	nodes := &v1alpha1.GPUNodeList{}
	if err := r.deps.Cached.List(ctx, nodes); err != nil {
		return fmt.Errorf("list GPUNodes: %w", err)
	}
	now := live.DeepCopy()
	reason, message := counts(&now.Status, nodes.Items)
	c := condition(wrong, r.deps.Objects, reason, message)
	now.Status.ObservedGeneration, c.ObservedGeneration = live.Generation, live.Generation
	c.LastTransitionTime = metav1.NewTime(r.deps.Clock.Now())
	meta.SetStatusCondition(&now.Status.Conditions, c)
	if apiequality.Semantic.DeepEqual(live.Status, now.Status) {
		return nil
	}
	written := now.Status.DeepCopy()
	if err := r.deps.Client.Status().Patch(ctx, now, client.MergeFrom(live)); err != nil {
		return fmt.Errorf("write status of GPUStack %s: %w", live.Name, err)
	}
	// Another status than the one that was written last follows from the nodes; the same one was edited by others.
	if last := r.status; last != nil && sameStatus(last, written) && r.deps.Objects.Undid(statusOf(), "its fields") {
		r.deps.Log.Warn("Undid an edit of the status of the GPUStack")
	}
	r.status = written
	return nil
}
