// Package watchbinds measures when the pods of a benchmark are bound, and on request when they are refused, as a client of the API server
// sees it. It guarantees that a pod counts once, and that a node which got more GPUs or pods than it has is an error. It must not know
// which scheduler binds.
package watchbinds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-gpu/berth/kube/test/schedulerbench/load"
)

// Limits are what a node has.
type Limits struct {
	// Resource is the resource of the GPUs.
	Resource corev1.ResourceName
	// GPUs are those of each node by its name, and Pods is the largest number of pods on a node.
	GPUs map[string]int
	Pods int
}

// NodeLimits are those of nodes of a load with the names that name gives them.
func NodeLimits(resource corev1.ResourceName, nodes []load.Node, name func(int) string) Limits {
	l := Limits{Resource: resource, GPUs: map[string]int{}, Pods: load.NodePods}
	for i, n := range nodes {
		l.GPUs[name(i)] = n.GPUs
	}
	return l
}

// Watch counts the binds.
type Watch struct {
	limits Limits
	now    func() time.Time
	change chan struct{}
	stop   func()

	mu      sync.Mutex
	nodes   map[string]used
	pods    map[string]Bind
	before  int // How many pods were bound when the watch began.
	refused map[string]Refusal
	first   time.Time
	last    time.Time
	err     error
}

type used struct {
	gpus int
	pods int
}

// Bind is when a pod was bound, and to which node.
type Bind struct {
	Node string
	At   time.Time
}

// Refusal is when a scheduler said that it finds no node for a pod, and what it said.
type Refusal struct {
	Message string
	At      time.Time
}

// Progress is how far the binding is. Pods that were bound when the watch began do not count.
type Progress struct {
	Bound int
	First time.Time
	Last  time.Time
	// Refused is how many pods are refused now, and not bound. It is 0 in a watch that sees bound pods only.
	Refused int
}

// Kinds are the pods that a watch sees.
type Kinds bool

const (
	// Bound are pods with a node. A watch of these alone costs the API server less.
	Bound Kinds = false
	// All are pods without a node too, so that refusals are seen.
	All Kinds = true
)

// Start watches the pods of a namespace until Stop or the end of ctx. It returns when the watch has begun.
func Start(ctx context.Context, client kubernetes.Interface, namespace string, limits Limits, kinds Kinds) (*Watch, error) {
	w := newWatch(limits, time.Now)
	ctx, cancel := context.WithCancel(ctx)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			if kinds == Bound {
				o.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
			}
		}),
		// A pod is counted when it comes. Nothing else reads the informer's store.
		informers.WithTransform(func(object any) (any, error) { return w.keep(object), nil }))
	informer := factory.Core().V1().Pods().Informer()
	factory.StartWithContext(ctx)
	w.stop = func() { cancel(); factory.Shutdown() }
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		w.stop()
		return nil, fmt.Errorf("watch pods: %w", context.Cause(ctx))
	}
	w.begin()
	return w, nil
}

// Stop ends the watch. It returns when its requests have ended.
func (w *Watch) Stop() { w.stop() }

func newWatch(limits Limits, now func() time.Time) *Watch {
	return &Watch{limits: limits, now: now, change: make(chan struct{}, 1), nodes: map[string]used{}, pods: map[string]Bind{}, refused: map[string]Refusal{}}
}

// begin leaves the pods that are bound so far out of the progress. They take their GPUs.
func (w *Watch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before, w.first, w.last = len(w.pods), time.Time{}, time.Time{}
}

// keep counts a pod, and returns what the informer has to keep of it.
func (w *Watch) keep(object any) any {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object
	}
	w.count(pod)
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion}}
}

// count counts a pod at its first appearance with a node, and each refusal.
func (w *Watch) count(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	bind, seen := w.pods[pod.Name]
	switch {
	case pod.Spec.NodeName == "":
		w.refuse(pod)
	case seen && bind.Node == pod.Spec.NodeName:
	case seen:
		w.err = errors.Join(w.err, fmt.Errorf("pod %s is on node %s, and was on %s before", pod.Name, pod.Spec.NodeName, bind.Node))
	default:
		w.bind(pod)
	}
}

func (w *Watch) bind(pod *corev1.Pod) {
	at := w.now()
	if len(w.pods) == w.before {
		w.first = at
	}
	w.last, w.pods[pod.Name] = at, Bind{Node: pod.Spec.NodeName, At: at}
	delete(w.refused, pod.Name)
	n := w.nodes[pod.Spec.NodeName]
	n.pods, n.gpus = n.pods+1, n.gpus+w.gpus(pod)
	if gpus := w.limits.GPUs[pod.Spec.NodeName]; n.pods > w.limits.Pods || n.gpus > gpus {
		w.err = errors.Join(w.err, fmt.Errorf("node %s got %d pods with %d GPUs, and has %d and %d",
			pod.Spec.NodeName, n.pods, n.gpus, w.limits.Pods, gpus))
	}
	w.nodes[pod.Spec.NodeName] = n
	w.changed()
}

// refuse notes what the scheduler says of a pod. The time is that of the first refusal, the message that of the last.
func (w *Watch) refuse(pod *corev1.Pod) {
	for _, c := range pod.Status.Conditions {
		if c.Type != corev1.PodScheduled || c.Status != corev1.ConditionFalse || c.Reason != corev1.PodReasonUnschedulable {
			continue
		}
		r, refused := w.refused[pod.Name]
		if !refused {
			r.At = w.now()
			w.changed()
		}
		r.Message = strings.TrimSpace(c.Message)
		w.refused[pod.Name] = r
	}
}

func (w *Watch) changed() {
	select {
	case w.change <- struct{}{}:
	default: // The reader has not yet read the change before.
	}
}

// Fits tells whether a pod fits on a node beside the pods that are bound.
func (w *Watch) Fits(pod *corev1.Pod) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	wanted := w.gpus(pod)
	for name, gpus := range w.limits.GPUs {
		if n := w.nodes[name]; n.pods < w.limits.Pods && n.gpus+wanted <= gpus {
			return true
		}
	}
	return false
}

// Binds returns the pods that are bound so far, by name.
func (w *Watch) Binds() map[string]Bind {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.pods)
}

// Refusals returns the pods that are refused now, by name.
func (w *Watch) Refusals() map[string]Refusal {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.refused)
}

// gpus returns how many GPUs a pod requests.
func (w *Watch) gpus(pod *corev1.Pod) int {
	sum := 0
	for _, c := range pod.Spec.Containers {
		gpus := c.Resources.Requests[w.limits.Resource]
		sum += int(gpus.Value())
	}
	return sum
}

// Changes sends after one or more further binds, or refusals of further pods.
func (w *Watch) Changes() <-chan struct{} { return w.change }

// Progress returns how many pods are bound, and the times of the first and the last bind so far. It fails when a node is overcommitted
// or a pod was bound twice.
func (w *Watch) Progress() (Progress, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Progress{Bound: len(w.pods) - w.before, First: w.first, Last: w.last, Refused: len(w.refused)}, w.err
}
