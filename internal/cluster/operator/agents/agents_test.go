package agents

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const namespace = "berth-system"

// full is what kube-scheduler says of a pod of a DaemonSet on one of three nodes.
const full = "0/3 nodes are available: 1 Too many pods, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]. preemption: not eligible due to preemptionPolicy=Never."

// oldAgent returns a ready agent of revision 1 on a node, named old-NODE.
func oldAgent(node string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := agent("old-"+node, 1)
	p.Spec.NodeName = node
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for _, c := range change {
		c(p)
	}
	return p
}

// newAgent returns one of revision 2 that waits for a place on a node, named new-NODE.
func newAgent(node string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := agent("new-"+node, 2)
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}}}}
	p.Status.Phase = corev1.PodPending
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: full}}
	for _, c := range change {
		c(p)
	}
	return p
}

func agent(name string, revision int64) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.Unix(revision, 0),
		Labels:          map[string]string{nameLabel: agentName, appsv1.ControllerRevisionHashLabelKey: fmt.Sprint(revision)},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: agentName, UID: "set", Controller: new(true)}}}}
}

func deleted(p *corev1.Pod) {
	p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: time.Unix(3, 0)}, []string{"test/kubelet"}
}

func unready(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }

func says(message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Conditions[0].Message = message }
}

func TestPlan(t *testing.T) {
	// many returns nodes that wait, after so many that have no ready agent.
	many := func(waiting, without, well int) []*corev1.Pod {
		var pods []*corev1.Pod
		for i := range waiting {
			node := fmt.Sprintf("w%03d", i)
			pods = append(pods, newAgent(node), oldAgent(node))
		}
		for i := range without {
			pods = append(pods, oldAgent(fmt.Sprintf("x%03d", i), unready))
		}
		for i := range well {
			pods = append(pods, oldAgent(fmt.Sprintf("y%03d", i)))
		}
		return pods
	}
	first := func(n int) (nodes []string) {
		for i := range n {
			nodes = append(nodes, fmt.Sprintf("old-w%03d", i))
		}
		return nodes
	}
	tests := map[string]struct {
		pods []*corev1.Pod
		want []string
		more bool
	}{
		"none":                              {},
		"at rest":                           {pods: []*corev1.Pod{oldAgent("a"), oldAgent("b")}},
		"a full node":                       {pods: []*corev1.Pod{oldAgent("a"), newAgent("a"), oldAgent("b")}, want: []string{"old-a"}},
		"two full nodes":                    {pods: []*corev1.Pod{newAgent("b"), newAgent("a"), oldAgent("b"), oldAgent("a")}, want: []string{"old-a", "old-b"}},
		"it lacks memory too":               {pods: []*corev1.Pod{oldAgent("a"), newAgent("a", says("0/1 nodes are available: 1 Insufficient memory, 1 Too many pods."))}},
		"it lacks CPU":                      {pods: []*corev1.Pod{oldAgent("a"), newAgent("a", says("0/1 nodes are available: 1 Insufficient cpu."))}},
		"a taint":                           {pods: []*corev1.Pod{oldAgent("a"), newAgent("a", says("0/1 nodes are available: 1 node(s) had untolerated taint(s)."))}},
		"the old one ends":                  {pods: []*corev1.Pod{oldAgent("a", deleted), newAgent("a")}},
		"the new one ends":                  {pods: []*corev1.Pod{oldAgent("a"), newAgent("a", deleted)}},
		"the new one is bound":              {pods: []*corev1.Pod{oldAgent("a"), newAgent("a", func(p *corev1.Pod) { p.Spec.NodeName = "a" })}},
		"the scheduler has not seen it yet": {pods: []*corev1.Pod{oldAgent("a"), newAgent("a", func(p *corev1.Pod) { p.Status.Conditions = nil })}},
		"a gate holds it": {pods: []*corev1.Pod{oldAgent("a"), newAgent("a", func(p *corev1.Pod) {
			p.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated
		})}},
		"it waits for another node":  {pods: []*corev1.Pod{oldAgent("a"), newAgent("b")}},
		"it names no node":           {pods: []*corev1.Pod{oldAgent("a"), newAgent("a", func(p *corev1.Pod) { p.Spec.Affinity = nil })}},
		"it is of the same revision": {pods: []*corev1.Pod{oldAgent("a", func(p *corev1.Pod) { p.Labels[appsv1.ControllerRevisionHashLabelKey] = "2" }), newAgent("a")}},
		"it is the older one":        {pods: []*corev1.Pod{oldAgent("a", func(p *corev1.Pod) { p.CreationTimestamp = metav1.Unix(3, 0) }), newAgent("a")}},
		"of another DaemonSet":       {pods: []*corev1.Pod{oldAgent("a", func(p *corev1.Pod) { p.OwnerReferences[0].UID = "other" }), newAgent("a")}},
		"of no DaemonSet":            {pods: []*corev1.Pod{oldAgent("a", func(p *corev1.Pod) { p.OwnerReferences = nil }), newAgent("a", func(p *corev1.Pod) { p.OwnerReferences = nil })}},
		"ten at a time":              {pods: many(30, 0, 0), want: first(10), more: true},
		"a tenth of many":            {pods: many(300, 0, 100), want: first(40), more: true},
		"one does not become ready":  {pods: many(3, 1, 0), want: first(3)},
		"nine do not become ready":   {pods: many(3, 9, 0), want: first(1), more: true},
		"no more do":                 {pods: many(3, 12, 0), more: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			end, _, _, more := plan(tc.pods)
			var got []string
			for _, one := range end {
				got = append(got, one.old.Name)
			}
			if !slices.Equal(got, tc.want) || more != tc.more {
				t.Errorf("got %v, more %v; want %v, %v", got, more, tc.want, tc.more)
			}
		})
	}
}

// newWorld returns a reconciler with an API server in memory, of which the caches may have an older state.
func newWorld(t *testing.T, onDelete func() error, live, cached []*corev1.Pod) (*Reconciler, client.Client, *events.FakeRecorder) {
	t.Helper()
	known := runtime.NewScheme()
	if err := corev1.AddToScheme(known); err != nil {
		t.Fatal(err)
	}
	make := func(pods []*corev1.Pod) client.WithWatch {
		b := fake.NewClientBuilder().WithScheme(known)
		for _, p := range pods {
			b = b.WithObjects(p.DeepCopy())
		}
		return b.Build()
	}
	api := make(live)
	guarded := interceptor.NewClient(api, interceptor.Funcs{Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
		// The fake API server ignores preconditions.
		all := (&client.DeleteOptions{}).ApplyOptions(options)
		now := &corev1.Pod{}
		if err := c.Get(ctx, client.ObjectKeyFromObject(o), now); err == nil && (all.Preconditions == nil || *all.Preconditions.UID != now.UID) {
			t.Errorf("it deletes %s without its UID", o.GetName())
		}
		if err := onDelete(); err != nil {
			return err
		}
		return c.Delete(ctx, o, options...)
	}})
	recorder := events.NewFakeRecorder(100)
	return New(Deps{Cached: make(cached), Client: guarded, Events: recorder, Namespace: namespace, Log: slog.New(slog.DiscardHandler)}), api, recorder
}

func TestReconcile(t *testing.T) {
	never := func() error { return nil }
	waiting := []*corev1.Pod{oldAgent("a"), newAgent("a"), oldAgent("b")}
	tests := map[string]struct {
		live     []*corev1.Pod
		cached   []*corev1.Pod
		onDelete func() error
		left     int
		wantErr  bool
		again    bool
	}{
		"ends the old one":             {live: waiting, cached: waiting, onDelete: never, left: 2, again: true},
		"the new one got its place":    {live: []*corev1.Pod{oldAgent("a"), newAgent("a", func(p *corev1.Pod) { p.Spec.NodeName = "a" })}, cached: waiting, onDelete: never, left: 2, again: true},
		"the new one is another":       {live: []*corev1.Pod{oldAgent("a"), newAgent("a", func(p *corev1.Pod) { p.UID = "other" })}, cached: waiting, onDelete: never, left: 2, again: true},
		"the new one is gone":          {live: []*corev1.Pod{oldAgent("a")}, cached: waiting, onDelete: never, left: 1, again: true},
		"the old one is gone":          {live: []*corev1.Pod{newAgent("a")}, cached: waiting, onDelete: never, left: 1, again: true},
		"the API server refuses":       {live: waiting, cached: waiting, onDelete: func() error { return fmt.Errorf("denied") }, left: 3, wantErr: true},
		"at rest it asks for no other": {live: []*corev1.Pod{oldAgent("a")}, cached: []*corev1.Pod{oldAgent("a")}, onDelete: never, left: 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r, api, recorder := newWorld(t, tc.onDelete, tc.live, tc.cached)
			result, err := r.Reconcile(t.Context(), reconcile.Request{})
			if (err != nil) != tc.wantErr || (result.RequeueAfter > 0) != tc.again {
				t.Errorf("got %+v, %v", result, err)
			}
			list := &corev1.PodList{}
			if err := api.List(t.Context(), list); err != nil {
				t.Fatal(err)
			}
			if len(list.Items) != tc.left {
				t.Errorf("%d pods are left, want %d", len(list.Items), tc.left)
			}
			if got, want := len(recorder.Events), len(tc.live)-tc.left; got != want {
				t.Errorf("%d Events, want %d", got, want)
			} else if want == 1 {
				if got := <-recorder.Events; !strings.Contains(got, "OldAgentEnded node a takes no pod beside the old agent old-a (Too many pods)") {
					t.Errorf("Event %q", got)
				}
			}
		})
	}
}

// TestCached: the cache has agents and the pods of other concerns, and of an agent what the plan reads: it makes the same plan of both.
func TestCached(t *testing.T) {
	for object, by := range Cached(namespace, "berth-validate") {
		if _, ok := object.(*corev1.Pod); !ok {
			t.Errorf("it caches %T", object)
		}
		config := by.Namespaces[namespace]
		for name, want := range map[string]bool{agentName: true, "berth-validate": true, "berth-operator": false, "": false} {
			if got := config.LabelSelector.Matches(labels.Set{nameLabel: name}); got != want {
				t.Errorf("it selects %q: %v, want %v", name, got, want)
			}
		}
		heavy := func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Name: "agent"}}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "agent"}}
			p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
		}
		var kept []*corev1.Pod
		for _, p := range []*corev1.Pod{newAgent("a", heavy), oldAgent("a", heavy), newAgent("b", deleted), oldAgent("b", heavy)} {
			object, err := config.Transform(p)
			if err != nil {
				t.Fatal(err)
			}
			pod := object.(*corev1.Pod)
			if len(pod.Spec.Containers)+len(pod.Status.ContainerStatuses)+len(pod.ManagedFields) > 0 {
				t.Errorf("it keeps %+v", pod)
			}
			kept = append(kept, pod)
		}
		if end, _, _, more := plan(kept); len(end) != 1 || end[0].old.Name != "old-a" || more {
			t.Errorf("the plan of what it keeps: %v, %v", end, more)
		}
		other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{nameLabel: "berth-validate"}}, Spec: corev1.PodSpec{NodeName: "a", Hostname: "h"}}
		if got, err := config.Transform(other); err != nil || got.(*corev1.Pod).Spec.Hostname != "h" {
			t.Errorf("a pod of another concern: %+v, %v", got, err)
		}
	}
}
