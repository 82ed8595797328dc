package validation

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// seen is what the watches have shown of a node.
type seen struct {
	node *v1alpha1.GPUNode
	op   *v1alpha1.NodeOperation
	pod  *corev1.Pod
}

func (w *world) see() seen {
	w.t.Helper()
	s := seen{node: &v1alpha1.GPUNode{}, op: w.op(), pod: w.pod()}
	w.do(w.api.Get(w.t.Context(), client.ObjectKey{Name: nodeName}, s.node))
	return s
}

// wakes reports whether the watches wake the controller, as Add makes them.
func (s seen) wakes(now seen) bool {
	if nodeWakes(s.node, now.node) || (s.op == nil) != (now.op == nil) || s.op != nil && operationWakes(s.op, now.op) {
		return true
	}
	switch {
	case now.op == nil || s.pod == nil && now.pod == nil:
		return false
	case s.pod == nil:
		return newPodWakes(now.pod)
	case now.pod == nil:
		return true
	}
	return podWakes(s.pod, now.pod)
}

// follow lets the controller act only when the watches wake it, or a time has passed that it asked for; kubelet, scheduler and agent act in
// between, until nothing is left to do.
func (w *world) follow() {
	w.t.Helper()
	for range 100 {
		var again time.Duration
		for woken := true; woken; {
			before := w.see()
			result, err := w.reconcile(nodeName)
			w.do(err)
			again, woken = result.RequeueAfter, before.wakes(w.see())
		}
		for before := w.see(); !before.wakes(w.see()); {
			if w.act() {
				continue
			}
			if again == 0 {
				return
			}
			w.clock.Step(again)
			break
		}
	}
	w.t.Fatalf("it does not come to rest; writes %v", w.writes)
}

// TestRequests lists what the validation of one node asks of the API server: the limit of requests bounds how many nodes are validated per
// second. Each step reads the operation, which decides what is done, and, until the pod has started, the pod.
func TestRequests(t *testing.T) {
	w := newWorld(t, held(), gpuStack())
	w.follow()
	w.checkNothingLeft("Validated pod")
	want := []string{
		"create NodeOperation",
		"get NodeOperation", "status NodeOperation", // Started
		"get NodeOperation", "get Pod", "create Pod", "status NodeOperation", // PodCreated
		"get NodeOperation", "get Pod", "status NodeOperation", // PodScheduled
		"get NodeOperation", "status NodeOperation", // it runs
		"get NodeOperation", "status NodeOperation", // PodFinished
		"get NodeOperation", "status NodeOperation", "delete NodeOperation", // Accepted
		"get NodeOperation", "delete Pod",
		"get NodeOperation", "get Pod", "get ResourceClaim", "patch NodeOperation", // the pod is gone
	}
	if diff := cmp.Diff(want, w.requests); diff != "" {
		t.Errorf("%d requests (-want +got):\n%s", len(w.requests), diff)
	}
}

// TestWakes: what has no influence on a step wakes nothing, all else does.
func TestWakes(t *testing.T) {
	now := metav1.NewTime(time.Unix(1e9, 0))
	for name, c := range map[string]struct {
		change func(*v1alpha1.NodeOperation)
		want   bool
	}{
		"nothing": {func(o *v1alpha1.NodeOperation) { o.ResourceVersion = "2" }, false},
		"message, steps": {func(o *v1alpha1.NodeOperation) {
			o.Status.Message, o.Status.Steps = "a", make([]v1alpha1.NodeOperationStep, 1)
		}, false},
		"phase":        {func(o *v1alpha1.NodeOperation) { o.Status.Phase = v1alpha1.OperationFailed }, true},
		"next attempt": {func(o *v1alpha1.NodeOperation) { o.Status.NextAttempt = now }, true},
		"attempt":      {func(o *v1alpha1.NodeOperation) { o.Status.Attempt = 2 }, true},
		"deleted":      {func(o *v1alpha1.NodeOperation) { o.DeletionTimestamp = &now }, true},
		"finalizers":   {func(o *v1alpha1.NodeOperation) { o.Finalizers = nil }, true},
		"spec":         {func(o *v1alpha1.NodeOperation) { o.Generation = 2 }, true},
		"another":      {func(o *v1alpha1.NodeOperation) { o.UID = "2" }, true},
	} {
		before := &v1alpha1.NodeOperation{ObjectMeta: metav1.ObjectMeta{UID: "1", Generation: 1, Finalizers: []string{"a"}}, Status: v1alpha1.NodeOperationStatus{Phase: v1alpha1.OperationActive, Attempt: 1}}
		changed := before.DeepCopy()
		c.change(changed)
		if got := operationWakes(before, changed); got != c.want {
			t.Errorf("operation, %s: %v, want %v", name, got, c.want)
		}
	}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
		new    bool
	}{
		"nothing": {func(p *corev1.Pod) { p.ResourceVersion, p.Status.PodIP = "2", "10.0.0.1" }, false, false},
		"bound":   {func(p *corev1.Pod) { p.Spec.NodeName = "n" }, true, true},
		"not bound": {func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse}}
		}, true, true},
		"runs":        {func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = "n", corev1.PodRunning }, true, true},
		"finished":    {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, true, true},
		"deleted":     {func(p *corev1.Pod) { p.DeletionTimestamp = &now }, true, true},
		"label":       {func(p *corev1.Pod) { p.Labels = nil }, true, false},
		"annotations": {func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }, true, false},
		"owner":       {func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{{Name: "a"}} }, true, false},
		"another":     {func(p *corev1.Pod) { p.UID = "2" }, true, false},
	} {
		before := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "1", Labels: map[string]string{v1alpha1.ValidationLabel: labelValue}}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
		changed := before.DeepCopy()
		c.change(changed)
		if got := podWakes(before, changed); got != c.want {
			t.Errorf("pod, %s: %v, want %v", name, got, c.want)
		}
		if got := newPodWakes(changed); got != c.new {
			t.Errorf("new pod, %s: %v, want %v", name, got, c.new)
		}
	}
	ended := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed}}
	why := ended.DeepCopy()
	why.Status.Reason = "DeadlineExceeded"
	if !podWakes(ended, why) {
		t.Error("the reason of a failure wakes nothing")
	}
}

// TestCachesBehind: what the caches do not have yet, or have still, leads to no wrong step.
func TestCachesBehind(t *testing.T) {
	for name, stale := range map[string]func(w *world, key client.ObjectKey, o client.Object) (known bool, err error){
		"no pod": func(_ *world, key client.ObjectKey, o client.Object) (bool, error) {
			_, isPod := o.(*corev1.Pod)
			return isPod, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, key.Name)
		},
		"a pod of an attempt before": func(_ *world, key client.ObjectKey, o client.Object) (bool, error) {
			pod, isPod := o.(*corev1.Pod)
			if isPod {
				pod.Name, pod.Namespace, pod.UID, pod.Status.Phase = key.Name, key.Namespace, "before", corev1.PodFailed
				pod.Labels = map[string]string{v1alpha1.ValidationLabel: labelValue}
			}
			return isPod && key.Name == podOf, nil
		},
		"a pod that is not bound": func(w *world, _ client.ObjectKey, o client.Object) (bool, error) {
			pod, isPod := o.(*corev1.Pod)
			if now := w.pod(); isPod && now != nil && now.Status.Phase == corev1.PodPending {
				*pod = *now
				pod.Spec.NodeName = ""
				return true, nil
			}
			return false, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, held(), gpuStack())
			behind := true
			w.r.deps.Cached = interceptor.NewClient(w.api, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
					if behind {
						if known, err := stale(w, key, o); known {
							return err
						}
					}
					return c.Get(ctx, key, o, options...)
				},
			})
			for range 40 {
				_, err := w.reconcile(nodeName)
				w.do(err)
				if w.act(); strings.HasPrefix(w.gate(), "Validated") {
					break
				}
			}
			if got := w.gate(); got != "Validated pod" || strings.Contains(w.log.String(), "failed") || strings.Contains(w.log.String(), "Canceled") {
				t.Errorf("the node is %s; log:\n%s", got, w.log.String())
			}
			behind = false
			w.settle()
			w.checkNothingLeft("Validated pod")
		})
	}
	t.Run("no operation", func(t *testing.T) {
		w := newWorld(t, held(), gpuStack())
		w.must(nodeName)
		w.r.deps.Cached = interceptor.NewClient(w.api, interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
				if _, isOperation := o.(*v1alpha1.NodeOperation); isOperation {
					return apierrors.NewNotFound(schema.GroupResource{Resource: "nodeoperations"}, key.Name)
				}
				return c.Get(ctx, key, o, options...)
			},
		})
		before := len(w.writes)
		if _, err := w.reconcile(nodeName); err != nil || len(w.writes) != before {
			t.Errorf("an operation that exists: %v, writes %v", err, w.writes[before:])
		}
	})
}
