package definitions

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-gpu/berth/api/crds"
)

// request names the object to reconcile. deleted only chooses the words of the report: what is done depends on the object alone.
type request struct {
	name    string
	deleted bool
}

// reconciler keeps the objects of one kind.
type reconciler struct {
	kind   kind
	wanted map[string]wanted
	client client.Client
	events events.EventRecorder
	log    *slog.Logger
	// stop ends the operator.
	stop func(error)
	// reported has the versions of foreign objects that the log knows already, by name.
	reported map[string]string
}

// foreignInterval is the time between two looks at an object of somebody else, which the watch does not have.
const foreignInterval = time.Minute

// Reconcile brings one object in line with the embedded one.
func (r *reconciler) Reconcile(ctx context.Context, req request) (reconcile.Result, error) {
	result, err := r.keep(ctx, req)
	if ctx.Err() != nil { // The operator ends; the requests that it interrupts are no errors.
		return reconcile.Result{}, nil
	}
	return result, err
}

func (r *reconciler) keep(ctx context.Context, req request) (reconcile.Result, error) {
	w, ok := r.wanted[req.name]
	if !ok {
		return reconcile.Result{}, nil
	}
	// 1. Read the object.
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(r.kind.GroupVersionKind)
	err := r.client.Get(ctx, client.ObjectKey{Name: req.name}, live)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, r.create(ctx, req, w)
	}
	if err != nil {
		return reconcile.Result{}, explained("read", r.kind, req.name, err)
	}
	// 2. End before any write when it is newer.
	if r.kind.versioned {
		if err := newer(live, w.object); err != nil {
			r.stop(err)
			return reconcile.Result{}, nil
		}
	}
	// 3. One that is being deleted wakes this controller again when it is gone.
	if live.GetDeletionTimestamp() != nil {
		return reconcile.Result{}, nil
	}
	// 4. Compare.
	paths, err := differences(live, w)
	if err != nil || len(paths) == 0 {
		return reconcile.Result{}, err
	}
	// 5. Leave alone what belongs to somebody else.
	if r.kind.foreign && !ours(live) && len(ofSpec(paths)) > 0 {
		r.reportForeign(live, paths)
		return reconcile.Result{RequeueAfter: foreignInterval}, nil
	}
	// 6. Write, and say what was changed.
	if err := r.bring(ctx, live, w); err != nil {
		return reconcile.Result{}, explained("apply", r.kind, req.name, err)
	}
	r.reportChange(live, w, paths)
	return reconcile.Result{}, nil
}

// create applies an object that does not exist.
func (r *reconciler) create(ctx context.Context, req request, w wanted) error {
	created, err := r.apply(ctx, w, "")
	if err != nil {
		return explained("create", r.kind, req.name, err)
	}
	if req.deleted {
		r.log.Warn("Created again what was deleted", "kind", r.kind.Kind, "name", req.name)
		recreated(created).record(r.events)
		return nil
	}
	r.log.Info("Created", "kind", r.kind.Kind, "name", req.name)
	return nil
}

// apply writes the wanted fields by server-side apply, on the given version of the object; "" means that it does not exist.
func (r *reconciler) apply(ctx context.Context, w wanted, version string) (*unstructured.Unstructured, error) {
	object := w.object.DeepCopy()
	object.SetResourceVersion(version)
	err := r.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(FieldManager), client.ForceOwnership)
	return object, err
}

// bring writes the wanted fields of an object that exists. Server-side apply keeps the fields that others have added, and fails where
// they contradict the wanted ones: then the spec is replaced.
func (r *reconciler) bring(ctx context.Context, live *unstructured.Unstructured, w wanted) error {
	applied, err := r.apply(ctx, w, live.GetResourceVersion())
	switch {
	case apierrors.IsInvalid(err):
		applied = live.DeepCopy()
	case err != nil:
		return err
	}
	if paths, err := differences(applied, w); err != nil || len(paths) == 0 {
		return err
	}
	applied.SetLabels(merged(applied.GetLabels(), w.object.GetLabels()))
	applied.SetAnnotations(merged(applied.GetAnnotations(), w.object.GetAnnotations()))
	applied.Object["spec"] = w.object.DeepCopy().Object["spec"]
	if err := r.client.Update(ctx, applied, client.FieldOwner(FieldManager)); err != nil {
		return err
	}
	paths, err := differences(applied, w)
	if err == nil && len(paths) > 0 {
		err = fmt.Errorf("the API server keeps other values of %s (an admission webhook may change them: exclude the object there)", list(paths))
	}
	return err
}

// reportChange says what was changed and why: an edit of others, or another version of Berth.
func (r *reconciler) reportChange(before *unstructured.Unstructured, w wanted, paths []string) {
	log := r.log.With("kind", r.kind.Kind, "name", w.object.GetName(), "fields", list(paths), "lastWriter", cmp.Or(lastWriter(before), "unknown"))
	if r.kind.versioned {
		log = log.With("from", crds.Version(before.GetAnnotations()), "to", crds.Version(w.object.GetAnnotations()))
	}
	switch hash := before.GetAnnotations()[hashAnnotation]; {
	case hash == w.hash || hash == "" && writtenBy(before, FieldManager):
		log.Warn("Undid an edit")
		restored(before, paths).record(r.events)
	case hash == "":
		log.Info("Took over")
	default:
		log.Info("Updated")
	}
}

// reportForeign says once for each version of an object that its name is taken.
func (r *reconciler) reportForeign(live *unstructured.Unstructured, paths []string) {
	if r.reported[live.GetName()] == live.GetResourceVersion() {
		return
	}
	r.reported[live.GetName()] = live.GetResourceVersion()
	n := foreign(live, ofSpec(paths))
	r.log.Warn("Left a DeviceClass of somebody else alone", "name", live.GetName(), "note", n.note)
	n.record(r.events)
}
