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
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-gpu/berth/api/crds"
	"github.com/berth-gpu/berth/internal/cluster/operator/attempts"
)

// request names the object to reconcile.
type request struct{ name string }

// reconciler keeps the objects of one kind.
type reconciler struct {
	kind   kind
	wanted map[string]wanted
	client client.Client
	events events.EventRecorder
	// objects bounds the attempts for each object.
	objects *attempts.Objects
	clock   clock.PassiveClock
	log     *slog.Logger
	// stop ends the operator.
	stop func(error)
	// seen has the names of the objects that were there: one that is missing then was deleted. It chooses the words of the report only.
	seen map[string]bool
	// reported has the versions of foreign objects that the log knows already, by name.
	reported map[string]string
	// dropped has the optional fields that the API server dropped, by the name of the object.
	dropped map[string]drop
}

// drop is what the API server dropped of an object, and when.
type drop struct {
	fields []difference
	at     time.Time
}

const (
	// foreignInterval is the time between two looks at an object of somebody else, which the watch does not have.
	foreignInterval = time.Minute
	// droppedInterval is the time until an optional field is written again that the API server dropped: it may have been restarted with
	// another feature gate, which nothing tells.
	droppedInterval = time.Hour
)

// Reconcile brings one object in line with the embedded one.
func (r *reconciler) Reconcile(ctx context.Context, req request) (reconcile.Result, error) {
	return r.objects.Reconcile(ctx, r.object(req.name), func() (reconcile.Result, error) { return r.keep(ctx, req) })
}

func (r *reconciler) object(name string) attempts.Object {
	return attempts.Object{Kind: r.kind.Kind, Name: name}
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
	r.seen[req.name] = true
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
	found, err := differences(live, w)
	if err != nil {
		return reconcile.Result{}, err
	}
	gone, left := r.stillDropped(req.name)
	if found = without(found, gone); len(found) == 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	// 5. Leave alone what belongs to somebody else.
	if r.kind.foreign && !ours(live) && len(ofSpec(found)) > 0 {
		r.reportForeign(live, found)
		return reconcile.Result{RequeueAfter: foreignInterval}, nil
	}
	// 6. Write, and say what was changed.
	before := r.dropped[req.name].fields
	rest, err := r.bring(ctx, live, w)
	if err != nil {
		return reconcile.Result{}, explained("apply", r.kind, req.name, err)
	}
	changed := without(found, rest)
	if edited := without(changed, before); len(edited) > 0 {
		r.reportChange(live, w, edited)
	} else if len(changed) > 0 {
		r.log.Info("Wrote a field that the API server dropped before", "kind", r.kind.Kind, "name", req.name, "fields", list(changed))
	}
	_, left = r.stillDropped(req.name)
	return reconcile.Result{RequeueAfter: left}, nil
}

// stillDropped returns the optional fields of an object that are not written now, since the API server has dropped them, and for how long.
func (r *reconciler) stillDropped(name string) ([]difference, time.Duration) {
	d := r.dropped[name]
	if left := d.at.Add(droppedInterval).Sub(r.clock.Now()); left > 0 && len(d.fields) > 0 {
		return d.fields, left
	}
	return nil, 0
}

// create applies an object that does not exist.
func (r *reconciler) create(ctx context.Context, req request, w wanted) error {
	seen := r.seen[req.name]
	created, err := r.apply(ctx, w, "")
	if err != nil {
		return explained("create", r.kind, req.name, err)
	}
	r.seen[req.name] = true
	if _, err := r.remaining(created, w); err != nil {
		return explained("create", r.kind, req.name, err)
	}
	if seen {
		if r.objects.Undid(r.object(req.name), "it was deleted") {
			r.log.Warn("Created again what was deleted", "kind", r.kind.Kind, "name", req.name)
			recreated(created).record(r.events)
		}
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

// bring writes the wanted fields of an object that exists, and returns the optional ones that the API server drops. Server-side apply
// keeps the fields that others have added, and fails where they contradict the wanted ones: then the spec is replaced. A field that was
// applied and is not there is not written again: the API server would drop it again.
func (r *reconciler) bring(ctx context.Context, live *unstructured.Unstructured, w wanted) ([]difference, error) {
	applied, err := r.apply(ctx, w, live.GetResourceVersion())
	if apierrors.IsInvalid(err) {
		return r.replace(ctx, live.DeepCopy(), w)
	}
	if err != nil {
		return nil, err
	}
	rest, err := differences(applied, w)
	switch {
	case err != nil:
		return nil, err
	case !dropped(rest):
		return r.replace(ctx, applied, w)
	}
	return rest, r.remember(w, rest)
}

// replace replaces the spec of an object.
func (r *reconciler) replace(ctx context.Context, object *unstructured.Unstructured, w wanted) ([]difference, error) {
	object.SetLabels(merged(object.GetLabels(), w.object.GetLabels()))
	object.SetAnnotations(merged(object.GetAnnotations(), w.object.GetAnnotations()))
	object.Object["spec"] = w.object.DeepCopy().Object["spec"]
	if err := r.client.Update(ctx, object, client.FieldOwner(FieldManager)); err != nil {
		return nil, err
	}
	return r.remaining(object, w)
}

// remaining returns the optional fields that the API server has dropped of an object that was written.
func (r *reconciler) remaining(written *unstructured.Unstructured, w wanted) ([]difference, error) {
	rest, err := differences(written, w)
	if err != nil {
		return nil, err
	}
	return rest, r.remember(w, rest)
}

// remember remembers them. Any other difference is an error.
func (r *reconciler) remember(w wanted, rest []difference) error {
	name, absent := w.object.GetName(), ""
	for _, d := range rest {
		text, optional := r.kind.optional[d.path]
		if !d.lacking || !optional {
			return fmt.Errorf("the API server keeps other values of %s (an admission webhook may change them: exclude the object there)", list(rest))
		}
		absent = text
	}
	r.dropped[name] = drop{rest, r.clock.Now()}
	r.objects.SetAbsent(r.object(name), absent)
	return nil
}

// reportChange says what was changed and why: an edit of others, or another version of Berth.
func (r *reconciler) reportChange(before *unstructured.Unstructured, w wanted, fields []difference) {
	log := r.log.With("kind", r.kind.Kind, "name", w.object.GetName(), "fields", list(fields), "lastWriter", cmp.Or(lastWriter(before), "unknown"))
	if r.kind.versioned {
		log = log.With("from", crds.Version(before.GetAnnotations()), "to", crds.Version(w.object.GetAnnotations()))
	}
	switch hash := before.GetAnnotations()[hashAnnotation]; {
	case hash == w.hash || hash == "" && writtenBy(before, FieldManager):
		if r.objects.Undid(r.object(w.object.GetName()), list(fields)+by(before)) {
			log.Warn("Undid an edit")
			restored(before, fields).record(r.events)
		}
	case hash == "":
		log.Info("Took over")
	default:
		log.Info("Updated")
	}
}

// reportForeign says once for each version of an object that its name is taken.
func (r *reconciler) reportForeign(live *unstructured.Unstructured, fields []difference) {
	if r.reported[live.GetName()] == live.GetResourceVersion() {
		return
	}
	r.reported[live.GetName()] = live.GetResourceVersion()
	n := foreign(live, ofSpec(fields))
	r.log.Warn("Left a DeviceClass of somebody else alone", "name", live.GetName(), "note", n.note)
	n.record(r.events)
}
