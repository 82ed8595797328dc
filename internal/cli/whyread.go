package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/whyview"
	"github.com/berth-gpu/berth/internal/core/fleet"
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/core/why"
)

func hasGPUs(s fleet.Shape) bool { return s.GPUs > 0 }

// whyReader reads the objects from which berth why answers.
type whyReader struct {
	client dynamic.Interface
	now    time.Time
}

// whySubject is what was asked about: a pod, what creates pods, or what is known by its pods alone.
type whySubject struct {
	title     string
	kind      string
	namespace string
	name      string
	pod       *corev1.Pod
	workload  *whyview.Workload
}

// whyObjects are the objects that were read.
type whyObjects struct {
	whyview.Objects
	client dynamic.Interface
	// hidden is set when objects without which there is no answer may not be read.
	hidden []why.Stop
}

func coreResource(name string) schema.GroupVersionResource {
	return corev1.SchemeGroupVersion.WithResource(name)
}

// resourceOf returns the API of a kind.
func resourceOf(kind string) schema.GroupVersionResource {
	switch kind {
	case kindJob:
		return batchv1.SchemeGroupVersion.WithResource("jobs")
	case kindReplicaSet:
		return appsv1.SchemeGroupVersion.WithResource("replicasets")
	case kindDeployment:
		return appsv1.SchemeGroupVersion.WithResource("deployments")
	}
	return coreResource("pods")
}

// subject reads what was asked about. A name without a kind is that of a pod or, if there is none, of a Job.
func (r *whyReader) subject(ctx context.Context, q *whyQuestion) (*whySubject, error) {
	if byPods(q.kind) {
		return &whySubject{title: q.kind + " " + q.namespace + "/" + q.name, kind: q.kind, namespace: q.namespace, name: q.name}, nil
	}
	kinds := []string{q.kind}
	if q.kind == "" {
		kinds = []string{kindPodOnly, kindJob}
	}
	for _, kind := range kinds {
		object, err := r.client.Resource(resourceOf(kind)).Namespace(q.namespace).Get(ctx, q.name, metav1.GetOptions{})
		switch {
		case err == nil:
			return r.decode(ctx, kind, object)
		case !apierrors.IsNotFound(err) && (kind == kinds[0] || !apierrors.IsForbidden(err)):
			return nil, apiError(fmt.Errorf("why: read %s %s/%s: %w", strings.ToLower(kind), q.namespace, q.name, err), "")
		}
	}
	err := fmt.Errorf("why: there is no %s %s/%s", strings.ToLower(strings.Join(kinds, " or ")), q.namespace, q.name)
	if near := trace.Nearest(q.name, r.names(ctx, kinds[0], q.namespace), 3); len(near) > 0 {
		return nil, &hintError{err, "did you mean: " + strings.Join(near, ", ")}
	}
	return nil, err
}

// names lists the names of a kind, for a suggestion.
func (r *whyReader) names(ctx context.Context, kind, namespace string) (names []string) {
	list, err := r.client.Resource(resourceOf(kind)).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: 500})
	if err != nil {
		return nil // the suggestion is optional
	}
	for i := range list.Items {
		names = append(names, list.Items[i].GetName())
	}
	return names
}

func (r *whyReader) decode(ctx context.Context, kind string, object *unstructured.Unstructured) (*whySubject, error) {
	title := kind + " " + object.GetNamespace() + "/" + object.GetName()
	if kind == kindPodOnly {
		pod := &corev1.Pod{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, pod); err != nil {
			return nil, fmt.Errorf("why: decode %s: %w", title, err)
		}
		return &whySubject{title: title, kind: kind, namespace: pod.Namespace, name: pod.Name, pod: pod}, nil
	}
	w, err := r.workload(ctx, kind, object)
	if err != nil {
		return nil, fmt.Errorf("why: read %s: %w", title, err)
	}
	return &whySubject{title: title, kind: kind, namespace: w.Namespace, name: w.Name, workload: w}, nil
}

// workload decodes a Job, ReplicaSet or Deployment. Of a Deployment it is the ReplicaSet of its latest revision.
func (r *whyReader) workload(ctx context.Context, kind string, object *unstructured.Unstructured) (*whyview.Workload, error) {
	w := &whyview.Workload{Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName(), UID: string(object.GetUID())}
	w.Queue = object.GetLabels()["kueue.x-k8s.io/queue-name"]
	switch kind {
	case kindJob:
		var job batchv1.Job
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &job); err != nil {
			return nil, err
		}
		w.Template, w.Suspended = job.Spec.Template, job.Spec.Suspend != nil && *job.Spec.Suspend
	case kindReplicaSet:
		var set appsv1.ReplicaSet
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &set); err != nil {
			return nil, err
		}
		w.Template = set.Spec.Template
	case kindDeployment:
		sets, err := listIn[appsv1.ReplicaSet](ctx, r.client, resourceOf(kindReplicaSet), w.Namespace)
		if err != nil {
			return nil, err
		}
		sets = slices.DeleteFunc(sets, func(s appsv1.ReplicaSet) bool {
			return !slices.ContainsFunc(s.OwnerReferences, func(o metav1.OwnerReference) bool { return string(o.UID) == w.UID })
		})
		if len(sets) == 0 {
			return nil, fmt.Errorf("it has no ReplicaSet yet")
		}
		newest := slices.MaxFunc(sets, func(a, b appsv1.ReplicaSet) int {
			return cmp.Or(cmp.Compare(revisionOf(&a), revisionOf(&b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time))
		})
		w.UID, w.Template = string(newest.UID), newest.Spec.Template
	}
	w.Refusals = r.refusals(ctx, w)
	return w, nil
}

// revisionOf returns the revision of a Deployment that a ReplicaSet is of, or 0. An earlier ReplicaSet gets the latest revision when its
// Deployment returns to it, as by kubectl rollout undo.
func revisionOf(set *appsv1.ReplicaSet) int64 {
	revision, err := strconv.ParseInt(set.Annotations["deployment.kubernetes.io/revision"], 10, 64)
	if err != nil {
		return 0
	}
	return revision
}

// refusals returns why the pods of a workload could not be created, by its events, the latest first.
func (r *whyReader) refusals(ctx context.Context, w *whyview.Workload) (messages []string) {
	events, err := listEvents(ctx, r.client, w.Namespace, w.UID)
	if err != nil {
		return nil // The quotas decide; events only add the server's words.
	}
	for i := range events {
		if events[i].Reason == "FailedCreate" {
			messages = append(messages, events[i].Message)
		}
	}
	return messages
}

// listEvents returns the events about an object, the latest first.
func listEvents(ctx context.Context, client dynamic.Interface, namespace, uid string) ([]corev1.Event, error) {
	list, err := client.Resource(coreResource("events")).Namespace(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", uid).String(), Limit: 500,
	})
	if err != nil {
		return nil, err
	}
	var events []corev1.Event
	for i := range list.Items {
		var event corev1.Event
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &event); err == nil && string(event.InvolvedObject.UID) == uid {
			events = append(events, event)
		}
	}
	slices.SortStableFunc(events, func(a, b corev1.Event) int { return b.LastTimestamp.Compare(a.LastTimestamp.Time) })
	return events, nil
}

// objects reads the cluster. What may not be read is a note, or the answer.
func (r *whyReader) objects(ctx context.Context, subject *whySubject) (*whyObjects, error) {
	o := &whyObjects{client: r.client}
	o.Now = r.now
	namespace := subject.namespace
	var err error
	if o.Nodes, err = listOf[corev1.Node](ctx, r.client, coreResource("nodes")); apierrors.IsForbidden(err) {
		o.hidden = append(o.hidden, hiddenNodes(err))
	} else if err != nil {
		return nil, apiError(fmt.Errorf("why: %w", err), "")
	}
	if o.Pods, err = listOf[corev1.Pod](ctx, r.client, coreResource("pods")); apierrors.IsForbidden(err) {
		o.hidden = append(o.hidden, hiddenPods(err))
		o.Pods, err = listIn[corev1.Pod](ctx, r.client, coreResource("pods"), namespace)
	}
	if err != nil {
		return nil, apiError(fmt.Errorf("why: %w", err), "")
	}
	o.readGPUNodes(ctx)
	if o.Quotas, err = listIn[corev1.ResourceQuota](ctx, r.client, coreResource("resourcequotas"), namespace); err != nil && subject.workload != nil {
		o.Notes = append(o.Notes, "Quotas are not checked: "+denied(err))
	}
	return o, nil
}

// hiddenNodes and hiddenPods say that there is no answer without what the user may not list.
func hiddenNodes(err error) why.Stop {
	return why.Stop{Code: why.Hidden, Names: []string{"Nodes"}, Text: denied(err)}
}

func hiddenPods(err error) why.Stop {
	return why.Stop{Code: why.Hidden, Names: []string{"the pods of all namespaces"}, Text: denied(err)}
}

// denied is the message of the API server about a missing right.
func denied(err error) string {
	text := strings.TrimSpace(err.Error())
	return upperFirst(strings.TrimSuffix(text, ".")) + "."
}

// readGPUNodes reads the GPUNodes. One that cannot be decoded costs only its own node; without any the counts of the Nodes decide.
func (o *whyObjects) readGPUNodes(ctx context.Context) {
	o.Unreadable = map[string]error{}
	options := metav1.ListOptions{Limit: 500}
	for {
		page, err := o.client.Resource(v1alpha1.GPUNodes()).List(ctx, options)
		switch {
		case apierrors.IsNotFound(err):
			o.Notes = append(o.Notes, "The cluster has no GPUNodes: the counts of the Nodes decide, and health and links of GPUs are not known.")
			return
		case err != nil:
			o.Notes = append(o.Notes, "GPUNodes are not read, the counts of the Nodes decide: "+denied(err))
			return
		}
		for i := range page.Items {
			var node v1alpha1.GPUNode
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(page.Items[i].Object, &node); err != nil {
				o.Unreadable[page.Items[i].GetName()] = err
				continue
			}
			o.GPUNodes = append(o.GPUNodes, node)
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return
		}
	}
}
