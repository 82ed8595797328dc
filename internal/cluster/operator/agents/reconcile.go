package agents

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

const (
	nameLabel = "app.kubernetes.io/name"
	agentName = "berth-agent"
)

// interval is the time to the next look while an agent waits. The caches have what the last one did by then.
const interval = time.Second

// Deps are what the controller works with.
type Deps struct {
	// Cached reads from the caches; Client reads from the API server itself and writes.
	Cached client.Reader
	Client client.Client
	Events events.EventRecorder
	// Namespace has the agents.
	Namespace string
	Log       *slog.Logger
}

// Cached are the pods that the caches keep: the agents, of which they have what [plan] reads, and those of other concerns with these values
// of the label app.kubernetes.io/name, since there is one cache of pods.
func Cached(namespace string, others ...string) map[client.Object]cache.ByObject {
	// The operator and the values are valid.
	names, _ := labels.NewRequirement(nameLabel, selection.In, append([]string{agentName}, others...))
	return map[client.Object]cache.ByObject{&corev1.Pod{}: {
		Namespaces: map[string]cache.Config{namespace: {LabelSelector: labels.NewSelector().Add(*names), Transform: keep}},
	}}
}

// keep returns an agent with what [plan] reads; anything else it returns as it is.
func keep(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok || !isAgent(pod) {
		return object, nil
	}
	kept := &corev1.Pod{TypeMeta: pod.TypeMeta, ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp, Labels: pod.Labels, OwnerReferences: pod.OwnerReferences}}
	kept.Spec.NodeName, kept.Spec.Affinity = pod.Spec.NodeName, pod.Spec.Affinity
	kept.Status.Phase = pod.Status.Phase
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled || c.Type == corev1.PodReady {
			kept.Status.Conditions = append(kept.Status.Conditions, c)
		}
	}
	return kept, nil
}

func isAgent(pod *corev1.Pod) bool { return pod.Labels[nameLabel] == agentName }

// Add adds the controller to a manager.
func Add(m manager.Manager, deps Deps) error {
	deps.Cached = m.GetCache()
	c, err := controller.NewTyped("agents", m, controller.TypedOptions[reconcile.Request]{Reconciler: New(deps)})
	if err != nil {
		return err
	}
	all := []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: deps.Namespace, Name: agentName}}}
	return c.Watch(source.Kind(m.GetCache(), &corev1.Pod{}, handler.TypedEnqueueRequestsFromMapFunc(func(context.Context, *corev1.Pod) []reconcile.Request { return all }),
		predicate.NewTypedPredicateFuncs(func(pod *corev1.Pod) bool { return isAgent(pod) && waits(pod) })))
}

// Reconciler ends old agents in whose place new ones wait.
type Reconciler struct {
	deps Deps
	// more is true while more new agents wait for a place than old ones may be ended for.
	more bool
}

// New returns a reconciler.
func New(deps Deps) *Reconciler { return &Reconciler{deps: deps} }

// Reconcile looks at all agents.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	// 1. Which agents have to end.
	list := &corev1.PodList{}
	if err := r.deps.Cached.List(ctx, list, client.InNamespace(r.deps.Namespace), client.MatchingLabels{nameLabel: agentName}); err != nil {
		return reconcile.Result{}, fmt.Errorf("list agents: %w", err)
	}
	var pods []*corev1.Pod
	for i := range list.Items {
		pods = append(pods, &list.Items[i])
	}
	end, without, limit, more := plan(pods)
	// 2. End those whose successors wait still.
	var failed error
	for _, one := range end {
		failed = errors.Join(failed, r.end(ctx, one))
	}
	if failed != nil {
		return reconcile.Result{}, failed
	}
	if more != r.more {
		if r.more = more; more {
			r.deps.Log.Warn("Further new agents wait for a place among the pods of their nodes: no old one is ended for them while so many nodes have no ready agent",
				"nodes", without, "limit", limit)
		}
	}
	if len(end) > 0 || more {
		return reconcile.Result{RequeueAfter: interval}, nil
	}
	return reconcile.Result{}, nil
}

// end deletes the old agent if the new one waits still.
func (r *Reconciler) end(ctx context.Context, one replacement) error {
	now := &corev1.Pod{}
	if err := r.deps.Client.Get(ctx, client.ObjectKeyFromObject(one.new), now); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("read pod %s: %w", one.new.Name, err)
	}
	if now.UID != one.new.UID || !waits(now) {
		return nil
	}
	err := r.deps.Client.Delete(ctx, one.old, client.Preconditions{UID: &one.old.UID})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // It has ended, or is another one by now.
	}
	if err != nil {
		return fmt.Errorf("end pod %s, in whose place %s waits: %w", one.old.Name, now.Name, err)
	}
	node := one.old.Spec.NodeName
	r.deps.Log.Info("The node takes no pod beside the old agent: ended it, so that the new one can start", "node", node, "old", one.old.Name, "new", now.Name)
	r.deps.Events.Eventf(now, one.old, corev1.EventTypeNormal, "OldAgentEnded", "End", "node %s takes no pod beside the old agent %s (%s): ended it, so that this one can start",
		node, one.old.Name, tooManyPods)
	return nil
}
