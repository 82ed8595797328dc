package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// apiAgents stand in for the agents of API nodes: they accept the result of a validation pod, and remove the taint, as an agent does.
type apiAgents struct {
	c     *sandbox.Cluster
	gpus  dynamic.NamespaceableResourceInterface
	nodes map[string]bool
	work  chan *corev1.Pod

	mu sync.Mutex
	// accepted is the key of each node that is validated.
	accepted map[string]string
	errs     []error
}

// startAPIAgents starts them; they end with the test, and fail it when something was wrong.
func startAPIAgents(t *testing.T, c *sandbox.Cluster) *apiAgents {
	t.Helper()
	client, err := dynamic.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	a := &apiAgents{c: c, gpus: client.Resource(v1alpha1.GPUNodes()), nodes: map[string]bool{}, work: make(chan *corev1.Pod, 10000), accepted: map[string]string{}}
	for _, name := range c.APINodeNames() {
		a.nodes[name] = true
	}
	ctx, cancel := context.WithCancel(context.Background())
	factory := informers.NewSharedInformerFactoryWithOptions(c.Client(), 0, informers.WithNamespace(agentNamespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = v1alpha1.ValidationLabel + "=node" }))
	see := func(object any) {
		if pod, ok := object.(*corev1.Pod); ok && pod.Status.Phase == corev1.PodSucceeded && pod.DeletionTimestamp == nil && a.nodes[pod.Spec.NodeName] {
			a.work <- pod
		}
	}
	if _, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see,
		UpdateFunc: func(_, object any) { see(object) }}); err != nil {
		t.Fatal(err)
	}
	factory.StartWithContext(ctx)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() { a.run(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		factory.Shutdown()
		workers.Wait()
		if err := errors.Join(a.errs...); err != nil {
			t.Errorf("the agents of the API nodes: %v", err)
		}
	})
	return a
}

func (a *apiAgents) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case pod := <-a.work:
			if err := a.accept(ctx, pod); err != nil && ctx.Err() == nil {
				a.mu.Lock()
				a.errs = append(a.errs, fmt.Errorf("pod %s: %w", pod.Name, err))
				a.mu.Unlock()
			}
		}
	}
}

// accept checks what the pod's containers say, and opens the gate of its node.
func (a *apiAgents) accept(ctx context.Context, pod *corev1.Pod) error {
	name, key := pod.Spec.NodeName, pod.Annotations[v1alpha1.ValidationKeyAnnotation]
	a.mu.Lock()
	done := a.accepted[name] == key
	a.mu.Unlock()
	if done {
		return nil
	}
	for _, status := range pod.Status.ContainerStatuses {
		var result v1alpha1.ValidationResult
		if status.State.Terminated == nil {
			return fmt.Errorf("container %s has not ended", status.Name)
		}
		if err := json.Unmarshal([]byte(status.State.Terminated.Message), &result); err != nil || !result.Passed || result.Resource != gpuResource {
			return fmt.Errorf("container %s says %q, %v", status.Name, status.State.Terminated.Message, err)
		}
	}
	gate := map[string]any{"state": v1alpha1.GateValidated, "by": v1alpha1.GateByPod, "tainted": nil, "message": "validated by pod " + pod.Name}
	if err := a.patchGate(ctx, name, gate); err != nil {
		return err
	}
	if err := a.removeTaint(ctx, name); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.accepted[name] = key
	return nil
}

func (a *apiAgents) patchGate(ctx context.Context, name string, gate map[string]any) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"gate": gate}})
	if err != nil {
		return err
	}
	_, err = a.gpus.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (a *apiAgents) removeTaint(ctx context.Context, name string) error {
	nodes := a.c.Client().CoreV1().Nodes()
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := nodes.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == v1alpha1.TaintNotValidated })
		_, err = nodes.Update(ctx, node, metav1.UpdateOptions{})
		return err
	})
}

// hold sets the gate of a node back, as after a reboot.
func (a *apiAgents) hold(t *testing.T, name, key string) {
	t.Helper()
	if err := a.patchGate(t.Context(), name, map[string]any{"state": v1alpha1.GateHeld, "by": nil, "key": key, "message": "waits for the validation pod"}); err != nil {
		t.Fatal(err)
	}
}

// validated returns how many nodes are validated.
func (a *apiAgents) validated() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.accepted)
}

// acceptedKey returns the key for which a node is validated.
func (a *apiAgents) acceptedKey(name string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.accepted[name]
}

// tainted returns how many API nodes have the gate's taint.
func (a *apiAgents) tainted(ctx context.Context) (int, error) {
	list, err := a.c.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: sandbox.APINodeLabel + "=" + sandbox.APINodeLabelValue})
	if err != nil {
		return 0, err
	}
	n := 0
	for i := range list.Items {
		if slices.ContainsFunc(list.Items[i].Spec.Taints, func(t corev1.Taint) bool { return strings.HasPrefix(t.Key, v1alpha1.Group+"/") }) {
			n++
		}
	}
	return n, nil
}
