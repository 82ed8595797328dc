package whyview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	helpers "k8s.io/component-helpers/resource"

	"github.com/berth-gpu/berth/internal/core/why"
)

// Workload is what creates pods: a Job, a ReplicaSet, a Deployment.
type Workload struct {
	Kind      string
	Namespace string
	Name      string
	UID       string
	Template  corev1.PodTemplateSpec
	Suspended bool
	// Queue is the queue of Kueue that admits it, or empty.
	Queue string
	// Refusals are messages of events that say why its pods could not be created, the latest first.
	Refusals []string
}

// title is its kind and name.
func (w *Workload) title() string { return fmt.Sprintf("%s %s/%s", w.Kind, w.Namespace, w.Name) }

// Waiting returns the first pod of a workload that waits for a node, or nil, and how many pods of it are on nodes.
func (w *Workload) Waiting(pods []corev1.Pod) (first *corev1.Pod, bound int) {
	for i := range pods {
		p := &pods[i]
		if p.Namespace != w.Namespace || !slices.ContainsFunc(p.OwnerReferences, func(o metav1.OwnerReference) bool { return string(o.UID) == w.UID }) {
			continue
		}
		switch {
		case ended(p) || p.DeletionTimestamp != nil:
		case p.Spec.NodeName != "":
			bound++
		case first == nil || older(p, first):
			first = p
		}
	}
	return first, bound
}

func older(a, b *corev1.Pod) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) < 0
}

// Pod returns a pod as the workload would create it.
func (w *Workload) Pod() *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: *w.Template.ObjectMeta.DeepCopy(), Spec: *w.Template.Spec.DeepCopy()}
	p.Namespace, p.Name = w.Namespace, w.Name
	complete(p.Spec.Containers)
	complete(p.Spec.InitContainers)
	return p
}

// complete sets the requests of containers that have only limits, as the API server does.
func complete(containers []corev1.Container) {
	for i := range containers {
		r := &containers[i].Resources
		for name, limit := range r.Limits {
			if _, ok := r.Requests[name]; ok {
				continue
			}
			if r.Requests == nil {
				r.Requests = corev1.ResourceList{}
			}
			r.Requests[name] = limit
		}
	}
}

// Absent returns why a workload has no pod that waits, bound of which are on nodes.
func (w *Workload) Absent(quotas []corev1.ResourceQuota, bound int) why.Stop {
	exceeded, notes := w.quotas(quotas)
	text := strings.Join(notes, " ")
	switch {
	case w.Suspended:
		stop := why.Stop{Code: why.Suspended, Names: []string{w.title()}}
		if w.Queue != "" {
			stop.Text = "Kueue admits it through the queue " + w.Queue + "."
			return stop
		}
		stop.Names = append(stop.Names, fmt.Sprintf(`kubectl patch %s -n %s %s --type=merge -p '{"spec":{"suspend":false}}'`, strings.ToLower(w.Kind), w.Namespace, w.Name))
		return stop
	case len(exceeded) > 0:
		return why.Stop{Code: why.QuotaFull, Names: []string{w.title()}, Quotas: exceeded, Text: text}
	}
	for _, message := range w.Refusals {
		if strings.Contains(message, "exceeded quota") {
			return why.Stop{Code: why.QuotaFull, Names: []string{w.title()}, Text: "The API server says: " + message}
		}
	}
	switch {
	case bound > 0:
		text = fmt.Sprintf("%d of its pods are on nodes.", bound)
	case len(w.Refusals) > 0:
		text = "The API server says: " + w.Refusals[0]
	}
	return why.Stop{Code: why.NoPods, Names: []string{w.title()}, Text: text}
}

// quotas returns the limits that a pod of the workload would exceed now.
func (w *Workload) quotas(quotas []corev1.ResourceQuota) (exceeded []why.Quota, notes []string) {
	usage := usageOf(w.Pod())
	for i := range quotas {
		q := &quotas[i]
		if q.Namespace != w.Namespace {
			continue
		}
		if len(q.Spec.Scopes) > 0 || q.Spec.ScopeSelector != nil {
			notes = append(notes, fmt.Sprintf("The quota %s has scopes and is not checked.", q.Name))
			continue
		}
		for name, hard := range q.Spec.Hard {
			want, counts := usage[name]
			used := q.Status.Used[name]
			after := used.DeepCopy()
			after.Add(want)
			if counts && after.Cmp(hard) > 0 {
				exceeded = append(exceeded, quotaOf(q.Name, name, want, used, hard))
			}
		}
	}
	slices.SortFunc(exceeded, func(a, b why.Quota) int {
		return cmp.Or(cmp.Compare(extended(b.Resource), extended(a.Resource)), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Resource, b.Resource))
	})
	return exceeded, notes
}

// extended is 1 for names with a domain, such as those of GPUs, which are named first.
func extended(name string) int {
	if strings.Contains(name, "/") {
		return 1
	}
	return 0
}

func quotaOf(quota string, name corev1.ResourceName, want, used, hard resource.Quantity) why.Quota {
	return why.Quota{Name: quota, Resource: string(name), Want: want.String(), Used: used.String(), Hard: hard.String(), Needed: sum(used, want), Over: less(sum(used, want), hard)}
}

func sum(a, b resource.Quantity) string {
	a = a.DeepCopy()
	a.Add(b)
	return a.String()
}

func less(a string, b resource.Quantity) string {
	q := resource.MustParse(a)
	q.Sub(b)
	return q.String()
}

// usageOf returns what a ResourceQuota counts of a pod.
func usageOf(p *corev1.Pod) corev1.ResourceList {
	usage := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1"), "count/pods": resource.MustParse("1")}
	for name, quantity := range helpers.PodRequests(p, helpers.PodResourcesOptions{}) {
		usage[corev1.DefaultResourceRequestsPrefix+name] = quantity
		if name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage {
			usage[name] = quantity
		}
	}
	for name, quantity := range helpers.PodLimits(p, helpers.PodResourcesOptions{}) {
		usage["limits."+name] = quantity
	}
	return usage
}
