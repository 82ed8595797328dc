// Package watchbinds measures when the pods of a benchmark are bound, as a client of the API server sees it. It guarantees that a pod
// counts once, and that a node which got more GPUs or pods than it has is an error. It must not know which scheduler binds.
package watchbinds

import (
	"context"
	"errors"
	"fmt"
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
	// GPUs and Pods are the largest numbers on a node.
	GPUs, Pods int
}

// NodeLimits are those of the nodes that load assumes.
func NodeLimits(resource corev1.ResourceName) Limits {
	return Limits{Resource: resource, GPUs: load.NodeGPUs, Pods: load.NodePods}
}

// Watch counts the binds.
type Watch struct {
	limits Limits
	now    func() time.Time
	change chan struct{}
	stop   func()

	mu          sync.Mutex
	nodes       map[string]used
	pods        map[string]string // The node of each pod.
	first, last time.Time
	err         error
}

type used struct{ gpus, pods int }

// Progress is how far the binding is.
type Progress struct {
	Bound       int
	First, Last time.Time
}

// Start watches the bound pods of a namespace until Stop or the end of ctx. It returns when the watch has begun.
func Start(ctx context.Context, client kubernetes.Interface, namespace string, limits Limits) (*Watch, error) {
	w := newWatch(limits, time.Now)
	ctx, cancel := context.WithCancel(ctx)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
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
	return w, nil
}

// Stop ends the watch. It returns when its requests have ended.
func (w *Watch) Stop() { w.stop() }

func newWatch(limits Limits, now func() time.Time) *Watch {
	return &Watch{limits: limits, now: now, change: make(chan struct{}, 1), nodes: map[string]used{}, pods: map[string]string{}}
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

// count counts a pod at its first appearance.
func (w *Watch) count(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	node, seen := w.pods[pod.Name]
	switch {
	case pod.Spec.NodeName == "" || seen && node == pod.Spec.NodeName:
		return
	case seen:
		w.err = errors.Join(w.err, fmt.Errorf("pod %s is on node %s, and was on %s before", pod.Name, pod.Spec.NodeName, node))
		return
	}
	at := w.now()
	if len(w.pods) == 0 {
		w.first = at
	}
	w.last, w.pods[pod.Name] = at, pod.Spec.NodeName
	n := w.nodes[pod.Spec.NodeName]
	n.pods, n.gpus = n.pods+1, n.gpus+w.gpus(pod)
	if n.pods > w.limits.Pods || n.gpus > w.limits.GPUs {
		w.err = errors.Join(w.err, fmt.Errorf("node %s got %d pods with %d GPUs, and has %d and %d",
			pod.Spec.NodeName, n.pods, n.gpus, w.limits.Pods, w.limits.GPUs))
	}
	w.nodes[pod.Spec.NodeName] = n
	select {
	case w.change <- struct{}{}:
	default: // The reader has not yet read the change before.
	}
}

// Fits tells whether a pod fits on one of so many nodes beside the pods that are bound.
func (w *Watch) Fits(pod *corev1.Pod, nodes int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	wanted := w.gpus(pod)
	if len(w.nodes) < nodes {
		return wanted <= w.limits.GPUs // A node without pods.
	}
	for _, n := range w.nodes {
		if n.pods < w.limits.Pods && n.gpus+wanted <= w.limits.GPUs {
			return true
		}
	}
	return false
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

// Changes sends after one or more further binds.
func (w *Watch) Changes() <-chan struct{} { return w.change }

// Progress returns how many pods are bound, and the times of the first and the last bind so far. It fails when a node is overcommitted
// or a pod was bound twice.
func (w *Watch) Progress() (Progress, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Progress{Bound: len(w.pods), First: w.first, Last: w.last}, w.err
}
