package gpuquota

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/quota"
)

// kept is what is known of a GPUQuota.
type kept struct {
	uid types.UID
	// stay is what stays limited, as in [quota.Plan].
	stay map[string][]quota.Kind
	// generation is that of the spec that stay is for.
	generation int64
	// written are the limits that were written last, by namespace, and tried those that were to be written last.
	written map[string]map[string]int64
	tried   map[string]map[string]int64
}

// known returns what is known of a GPUQuota. After a start it follows from the ResourceQuotas that are there.
func (r *Reconciler) known(q *v1alpha1.GPUQuota, own map[string]*corev1.ResourceQuota) *kept {
	if k := r.quotas[q.Name]; k != nil && k.uid == q.UID {
		return k
	}
	r.forget(q.Name)
	k := &kept{uid: q.UID, stay: map[string][]quota.Kind{}, generation: q.Status.ObservedGeneration, written: map[string]map[string]int64{}, tried: map[string]map[string]int64{}}
	for _, rq := range own {
		if metav1.IsControlledBy(rq, q) { // And not of a GPUQuota of the name before.
			maps.Copy(k.stay, stays(rq))
		}
	}
	r.quotas[q.Name] = k
	return k
}

// forget forgets a GPUQuota that is gone.
func (r *Reconciler) forget(q string) {
	if k := r.quotas[q]; k != nil {
		for namespace := range k.tried {
			r.deps.Objects.Forget(quotaOf(q, namespace))
		}
	}
	delete(r.quotas, q)
}

// plan returns the plan, and remembers what stays limited. When the limits have changed, those alone count for a name whose devices are
// known.
func (k *kept) plan(q *v1alpha1.GPUQuota, all []quota.Counted) quota.Plan {
	same := k.generation == q.Generation
	for _, key := range slices.Sorted(maps.Keys(k.stay)) {
		c, ok := quota.Known(key)
		if ok && (same || !slices.ContainsFunc(all, func(known quota.Counted) bool { return known.Keys[0] == c.Keys[0] && len(known.Devices) > 0 })) {
			all = append(all, c.Of(k.stay[key]...).Staying())
		}
	}
	plan := quota.Make(limits(q), all)
	k.stay, k.generation = plan.Stay, q.Generation
	return plan
}

// stayText writes what stays limited, for the annotation.
func stayText(stay map[string][]quota.Kind) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(stay)) {
		var kinds []string
		for _, kind := range stay[key] {
			kinds = append(kinds, string(kind))
		}
		all = append(all, strings.TrimSuffix(key+"="+strings.Join(kinds, "+"), "="))
	}
	return strings.Join(all, ",")
}

// stays returns what stays limited, as a ResourceQuota says. One without the annotation, of an operator of before, had only names of
// devices that were there.
func stays(rq *corev1.ResourceQuota) map[string][]quota.Kind {
	stay := map[string][]quota.Kind{}
	text, ok := rq.Annotations[v1alpha1.AnnotationQuotaNames]
	if !ok {
		for key := range rq.Spec.Hard {
			if c, ok := quota.Known(string(key)); ok {
				stay[c.Keys[0]] = nil
			}
		}
		return stay
	}
	for part := range strings.SplitSeq(text, ",") {
		key, kinds, named := strings.Cut(part, "=")
		if c, ok := quota.Known(key); ok {
			stay[c.Keys[0]] = nil
			for kind := range strings.SplitSeq(kinds, "+") {
				if named {
					stay[c.Keys[0]] = append(stay[c.Keys[0]], quota.Kind(kind))
				}
			}
		}
	}
	return stay
}
