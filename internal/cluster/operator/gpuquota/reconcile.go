package gpuquota

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/operator/attempts"
	"github.com/berth-gpu/berth/internal/core/quota"
)

// Reconciler keeps the ResourceQuotas of GPUQuotas.
type Reconciler struct {
	deps Deps
	// quotas has what is known of each GPUQuota besides the API server's objects, by name.
	quotas map[string]*kept
}

// New returns a reconciler.
func New(deps Deps) *Reconciler { return &Reconciler{deps: deps, quotas: map[string]*kept{}} }

// nameOf returns the name of the ResourceQuotas of a GPUQuota.
func nameOf(quota string) string { return "gpu-quota-" + quota }

// objectOf and quotaOf are what the attempts are counted for.
func objectOf(q string) attempts.Object {
	return attempts.Object{Kind: v1alpha1.KindGPUQuota, Name: q}
}

func quotaOf(q, namespace string) attempts.Object {
	return attempts.Object{Kind: "ResourceQuota", Namespace: namespace, Name: nameOf(q)}
}

// Reconcile brings the ResourceQuotas of one GPUQuota, and its status, in line with it.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	return r.deps.Objects.Reconcile(ctx, objectOf(req.Name), func() (reconcile.Result, error) { return r.keep(ctx, req) })
}

func (r *Reconciler) keep(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	// 1. Read the GPUQuota. With it go the ResourceQuotas, which it owns.
	q := &v1alpha1.GPUQuota{}
	err := r.deps.Cached.Get(ctx, req.NamespacedName, q)
	if apierrors.IsNotFound(err) || err == nil && q.DeletionTimestamp != nil {
		r.forget(req.Name)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read GPUQuota %s: %w", req.Name, err)
	}
	own, err := r.own(ctx, q)
	if err != nil {
		return reconcile.Result{}, err
	}
	known := r.known(q, own)
	// 2. Which names limit what it means. What was limited stays limited, also when the nodes that had such devices are gone.
	nodes := &v1alpha1.GPUNodeList{}
	if err := r.deps.Cached.List(ctx, nodes); err != nil {
		return reconcile.Result{}, fmt.Errorf("list GPUNodes: %w", err)
	}
	plan := known.plan(q, append(wellKnown(r.deps.Classes), counted(nodes.Items, r.deps.Classes)...))
	// 3. In which namespaces.
	namespaces, err := r.namespaces(ctx, q)
	if err != nil {
		return reconcile.Result{}, r.report(ctx, q, outcome{plan: plan, err: err})
	}
	// 4. Write what differs, and remove what is not wanted.
	done := r.bring(ctx, q, known, own, plan, namespaces)
	// 5. Say what was done.
	return reconcile.Result{RequeueAfter: done.after}, r.report(ctx, q, done)
}

func limits(q *v1alpha1.GPUQuota) []quota.Limit {
	var all []quota.Limit
	for _, l := range q.Spec.Limits {
		all = append(all, quota.Limit{Model: l.Model, Kind: quota.Kind(l.Sharing), Max: l.Max})
	}
	return all
}

// namespaces returns the names of the namespaces that a GPUQuota selects, sorted. One that is going away takes no more pods.
func (r *Reconciler) namespaces(ctx context.Context, q *v1alpha1.GPUQuota) ([]string, error) {
	selector := labels.Nothing()
	if q.Spec.NamespaceSelector != nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(q.Spec.NamespaceSelector); err != nil {
			return nil, fmt.Errorf("read namespaceSelector of GPUQuota %s: %w", q.Name, err)
		}
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	if err := r.deps.Cached.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	var names []string
	for i := range list.Items {
		n := &list.Items[i]
		if n.DeletionTimestamp == nil && (slices.Contains(q.Spec.Namespaces, n.Name) || selector.Matches(labels.Set(n.Labels))) {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// bring writes the ResourceQuotas that differ and deletes those that are not wanted. A namespace in which that fails does not keep it from
// the others.
func (r *Reconciler) bring(ctx context.Context, q *v1alpha1.GPUQuota, known *kept, own map[string]*corev1.ResourceQuota, plan quota.Plan, namespaces []string) outcome {
	done := outcome{plan: plan, namespaces: namespaces}
	wanted := map[string]bool{}
	if len(plan.Hard) > 0 {
		for _, namespace := range namespaces {
			wanted[namespace] = true
		}
	}
	all := slices.Concat(slices.Collect(maps.Keys(own)), slices.Collect(maps.Keys(wanted)))
	slices.Sort(all)
	for _, namespace := range slices.Compact(all) {
		if last, tried := known.tried[namespace]; tried && wanted[namespace] && !maps.Equal(last, plan.Hard) {
			r.deps.Objects.Forget(quotaOf(q.Name, namespace)) // Other limits do not wait for what kept the last ones away.
		}
		known.tried[namespace] = plan.Hard
		after, err := r.deps.Objects.Attempt(ctx, quotaOf(q.Name, namespace), func() error {
			if !wanted[namespace] {
				return r.remove(ctx, own[namespace])
			}
			taken, err := r.bringOne(ctx, q, known, own[namespace], plan, namespace)
			if taken {
				done.taken = append(done.taken, namespace)
			}
			return err
		})
		done.after = attempts.Sooner(done.after, after)
		if err != nil {
			done.failed, done.err = done.failed+1, cmp.Or(done.err, err)
		}
	}
	for namespace := range known.tried {
		if !wanted[namespace] && own[namespace] == nil {
			delete(known.tried, namespace)
			delete(known.written, namespace)
			r.deps.Objects.Forget(quotaOf(q.Name, namespace))
		}
	}
	return done
}

func (r *Reconciler) remove(ctx context.Context, rq *corev1.ResourceQuota) error {
	if err := r.deps.Client.Delete(ctx, rq); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete ResourceQuota %s/%s: %w", rq.Namespace, rq.Name, err)
	}
	r.deps.Log.Info("Removed a ResourceQuota", "namespace", rq.Namespace, "name", rq.Name)
	return nil
}

// bringOne writes the ResourceQuota of a namespace, if it differs. It returns true where somebody else has one of the name.
func (r *Reconciler) bringOne(ctx context.Context, q *v1alpha1.GPUQuota, known *kept, have *corev1.ResourceQuota, plan quota.Plan, namespace string) (taken bool, err error) {
	stay := stayText(plan.Stay)
	wanted := func(rq *corev1.ResourceQuota) bool {
		return rq != nil && sameHard(rq.Spec.Hard, plan.Hard) && rq.Annotations[v1alpha1.AnnotationQuotaNames] == stay &&
			rq.Labels[managedBy] == fieldManager && rq.Annotations[ofQuota] == q.Name && metav1.IsControlledBy(rq, q)
	}
	if !wanted(have) {
		if have, taken, err = r.read(ctx, q, namespace); taken || err != nil {
			return taken, err
		}
	}
	if wanted(have) {
		known.written[namespace] = plan.Hard
		return false, nil
	}
	if err := r.write(ctx, q, namespace, have, plan.Hard, stay); err != nil {
		return false, err
	}
	// What differs from the limits that were written last and are wanted still, others have edited.
	edited := maps.Equal(known.written[namespace], plan.Hard)
	known.written[namespace] = plan.Hard
	if !edited {
		r.deps.Log.Info("Wrote a ResourceQuota", "namespace", namespace, "name", nameOf(q.Name), "names", len(plan.Hard))
	} else if r.deps.Objects.Undid(quotaOf(q.Name, namespace), "its limits or labels") {
		r.deps.Log.Warn("Undid an edit of a ResourceQuota", "namespace", namespace, "name", nameOf(q.Name))
	}
	return false, nil
}

// own returns the ResourceQuotas of a GPUQuota by namespace.
func (r *Reconciler) own(ctx context.Context, q *v1alpha1.GPUQuota) (map[string]*corev1.ResourceQuota, error) {
	list := &corev1.ResourceQuotaList{}
	if err := r.deps.Cached.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list ResourceQuotas: %w", err)
	}
	own := map[string]*corev1.ResourceQuota{}
	for i := range list.Items {
		if rq := &list.Items[i]; rq.Name == nameOf(q.Name) && rq.Annotations[ofQuota] == q.Name {
			own[rq.Namespace] = rq
		}
	}
	return own, nil
}

// read returns the ResourceQuota of a namespace as it is now, nil for none, and true for one that the operator did not make. The caches may
// be late, and have only its own.
func (r *Reconciler) read(ctx context.Context, q *v1alpha1.GPUQuota, namespace string) (rq *corev1.ResourceQuota, foreign bool, err error) {
	rq = &corev1.ResourceQuota{}
	err = r.deps.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: nameOf(q.Name)}, rq)
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read ResourceQuota %s/%s: %w", namespace, nameOf(q.Name), err)
	}
	// One whose labels somebody has removed is still owned.
	return rq, rq.Annotations[ofQuota] != q.Name && !metav1.IsControlledBy(rq, q), nil
}

// write writes a ResourceQuota. Further names are removed before: server-side apply keeps those that others have added.
func (r *Reconciler) write(ctx context.Context, q *v1alpha1.GPUQuota, namespace string, have *corev1.ResourceQuota, hard map[string]int64, stay string) error {
	quantities := corev1.ResourceList{}
	for name, most := range hard {
		quantities[corev1.ResourceName(name)] = *resource.NewQuantity(most, resource.DecimalSI)
	}
	if have != nil && slices.ContainsFunc(slices.Collect(maps.Keys(have.Spec.Hard)), func(name corev1.ResourceName) bool {
		_, ok := quantities[name]
		return !ok
	}) {
		replaced := have.DeepCopy()
		replaced.Spec.Hard = quantities
		if err := r.deps.Client.Update(ctx, replaced, client.FieldOwner(fieldManager)); err != nil {
			return fmt.Errorf("replace ResourceQuota %s/%s: %w", namespace, nameOf(q.Name), err)
		}
	}
	rq := corev1ac.ResourceQuota(nameOf(q.Name), namespace).
		WithLabels(map[string]string{managedBy: fieldManager, "app.kubernetes.io/part-of": "berth"}).
		WithAnnotations(map[string]string{ofQuota: q.Name, v1alpha1.AnnotationQuotaNames: stay}).
		WithOwnerReferences(metav1ac.OwnerReference().WithAPIVersion(v1alpha1.APIVersion).WithKind("GPUQuota").WithName(q.Name).WithUID(q.UID).WithController(true)).
		WithSpec(corev1ac.ResourceQuotaSpec().WithHard(quantities))
	if err := r.deps.Client.Apply(ctx, rq, client.FieldOwner(fieldManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply ResourceQuota %s/%s: %w", namespace, nameOf(q.Name), err)
	}
	return nil
}

func sameHard(have corev1.ResourceList, want map[string]int64) bool {
	if len(have) != len(want) {
		return false
	}
	for name, most := range want {
		quantity, ok := have[corev1.ResourceName(name)]
		if !ok || quantity.Value() != most {
			return false
		}
	}
	return true
}

// sameQuota reports whether two states of a ResourceQuota differ in nothing that the operator keeps.
func sameQuota(a, b *corev1.ResourceQuota) bool {
	return apiequality.Semantic.DeepEqual(a.Spec, b.Spec) && maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations) &&
		apiequality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences)
}

// outcome is what a reconcile did.
type outcome struct {
	plan       quota.Plan
	namespaces []string
	taken      []string
	// failed is in how many namespaces it failed, and err the error of the first.
	failed int
	err    error
	// after is the time until another attempt; 0 for none.
	after time.Duration
}

// condition returns the condition Ready.
func (o outcome) condition() metav1.Condition {
	c := metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse}
	switch {
	case o.err != nil:
		c.Reason, c.Message = "Failed", o.err.Error()
		if apierrors.IsForbidden(o.err) {
			c.Reason = "Forbidden"
		}
		if o.failed > 1 {
			c.Message += fmt.Sprintf(" (and in %d more namespaces)", o.failed-1)
		}
	case len(o.taken) > 0:
		c.Reason, c.Message = "NameTaken", "somebody else has a ResourceQuota of the name in "+strings.Join(first(o.taken), ", ")+": delete it, or rename the GPUQuota"
	case len(o.namespaces) == 0:
		c.Reason, c.Message = "NothingSelected", "no namespace is selected: correct namespaces or namespaceSelector"
	case len(o.plan.Shared) > 0:
		c.Reason, c.Message = "NameShared", "a ResourceQuota counts names, and other devices have the same: "+strings.Join(first(o.plan.Shared), ", ")+
			"; give them another name (resourceName of a rule), or limit both"
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, "Applied", fmt.Sprintf("%d names are limited", len(o.plan.Hard))
		if len(o.plan.Stay) == 0 {
			c.Message += "; no node has advertised such a device until now"
		}
	}
	return c
}

// first returns at most the first three, for a message.
func first(all []string) []string {
	const most = 3
	if len(all) <= most {
		return all
	}
	return append(slices.Clone(all[:most]), fmt.Sprintf("%d more", len(all)-most))
}

// report writes the status, if it differs.
func (r *Reconciler) report(ctx context.Context, q *v1alpha1.GPUQuota, o outcome) error {
	now := q.DeepCopy()
	now.Status.ObservedGeneration, now.Status.Limited = q.Generation, len(o.plan.Hard)
	now.Status.Namespaces = max(len(o.namespaces)-len(o.taken)-o.failed, 0)
	if len(o.plan.Hard) == 0 {
		now.Status.Namespaces = 0
	}
	c := o.condition()
	c.ObservedGeneration, c.LastTransitionTime = q.Generation, metav1.NewTime(r.deps.Clock.Now())
	before := meta.FindStatusCondition(q.Status.Conditions, c.Type)
	meta.SetStatusCondition(&now.Status.Conditions, c)
	if apiequality.Semantic.DeepEqual(q.Status, now.Status) {
		return nil
	}
	if err := r.deps.Client.Status().Patch(ctx, now, client.MergeFrom(q)); err != nil {
		return fmt.Errorf("write status of GPUQuota %s: %w", q.Name, err)
	}
	if c.Status == metav1.ConditionFalse && (before == nil || before.Reason != c.Reason) {
		r.deps.Events.Eventf(q, nil, corev1.EventTypeWarning, c.Reason, "Apply", "%s", c.Message)
	}
	return nil
}
