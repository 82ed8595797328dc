package sandbox

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// API nodes are Node objects without a machine. kwok keeps them Ready, and reports that their pods start and end.
const (
	// APINodeLabel is the label of API nodes, whose value is APINodeLabelValue. kwok serves these nodes and no others.
	APINodeLabel      = "type"
	APINodeLabelValue = "kwok"
	// apiNodeAnnotation is the annotation by which kwok's documents have it.
	apiNodeAnnotation = "kwok.x-k8s.io/node"

	maxAPINodes = 5000
	procKwok    = "kwok"
	// apiNodeWriters is how many objects of API nodes are written beside one another.
	apiNodeWriters = 16
	// apiNodeLease is the duration of the API nodes' Leases in seconds. kwok renews them four times as often, and the controller manager
	// waits 50 s.
	apiNodeLease = 80
)

// What the GPUNode of an API node without a profile reports.
const (
	apiNodeGPUs     = 8
	apiNodeResource = "nvidia.com/gpu"
	apiNodeModel    = "NVIDIA A100-SXM4-40GB"
	apiNodeDriver   = "580.95.05"
	apiNodeAgent    = "sandbox"
)

//go:embed kwok.yaml
var kwokConfig []byte

func apiNodeName(i int) string { return fmt.Sprintf("api-node-%04d", i) }

// APINodeNames returns the names of the API nodes.
func (c *Cluster) APINodeNames() []string {
	var names []string
	for i := range c.snapshot().APINodes {
		names = append(names, apiNodeName(i))
	}
	return names
}

// startAPINodes starts kwok, creates the Nodes, and waits until they are Ready.
func (c *Cluster) startAPINodes(ctx context.Context, p *progress) error {
	names := c.APINodeNames()
	if len(names) == 0 {
		return nil
	}
	config := filepath.Join(c.dir, "kwok.yaml")
	if err := os.WriteFile(config, kwokConfig, 0o644); err != nil {
		return fmt.Errorf("write configuration of kwok: %w", err)
	}
	selector := APINodeLabel + "=" + APINodeLabelValue
	kwok, err := c.start(launch{name: procKwok, argv: []string{filepath.Join(c.state.Bin, "kwok"), "--kubeconfig=" + c.pkiPath("admin.conf"), "--config=" + config,
		"--manage-nodes-with-label-selector=" + selector, "--v=WARN", fmt.Sprintf("--node-lease-duration-seconds=%d", apiNodeLease)}})
	if err != nil {
		return err
	}
	machines, err := c.readAPIMachines(ctx)
	if err != nil {
		return err
	}
	nodes := c.client.CoreV1().Nodes()
	if err := eachAPINode(ctx, names, func(ctx context.Context, name string) error {
		_, err := nodes.Create(ctx, apiNode(name, c.machineOf(name, machines).gpus()), metav1.CreateOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("create API nodes: %w", err)
	}
	if err := waitFor(ctx, "the API nodes to be Ready", []Process{kwok}, func(ctx context.Context) error {
		list, err := nodes.List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		ready := 0
		for i := range list.Items {
			if nodeReady(&list.Items[i]) {
				ready++
			}
		}
		if ready < len(names) {
			return fmt.Errorf("%d of %d are", ready, len(names))
		}
		return nil
	}); err != nil {
		return err
	}
	p.step("%d API node(s) Ready", len(names))
	return nil
}

// eachAPINode calls write for each name, several at the same time.
func eachAPINode(ctx context.Context, names []string, write func(context.Context, string) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(apiNodeWriters)
	for _, name := range names {
		group.Go(func() error {
			if err := write(ctx, name); err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

func nodeReady(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// apiNode returns the Node of an API node, as its kubelet and the agent would register it. The gate's taint is on it.
func apiNode(name string, gpus int) *corev1.Node {
	has := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("512Gi"), corev1.ResourcePods: resource.MustParse("110"),
		apiNodeResource: *resource.NewQuantity(int64(gpus), resource.DecimalSI),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{apiNodeAnnotation: "fake"}, Labels: map[string]string{
			APINodeLabel: APINodeLabelValue, corev1.LabelHostname: name, corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux"}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: v1alpha1.TaintNotValidated, Value: v1alpha1.TaintNotValidatedValue, Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Capacity: has, Allocatable: has, Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}},
			NodeInfo: corev1.NodeSystemInfo{Architecture: "amd64", OperatingSystem: "linux", KubeletVersion: "v1.37.1", ContainerRuntimeVersion: "kwok://0.8.0"},
		},
	}
}

// apiGPUNode returns the GPUNode of an API node, as its agent would write it: GPUs that no pod holds, and that wait for their validation.
func apiGPUNode(name string, machine *apiMachine) *v1alpha1.GPUNode {
	node := &v1alpha1.GPUNode{TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindGPUNode), ObjectMeta: metav1.ObjectMeta{Name: name}}
	node.Status = machine.of(name)
	node.Status.Gate = heldGate(name)
	return node
}

// machineOf returns the machine of an API node.
func (c *Cluster) machineOf(name string, machines map[string]*apiMachine) *apiMachine {
	if m := machines[c.snapshot().APINodeProfiles[name]]; m != nil {
		return m
	}
	return plainMachine()
}

// WriteAPIGPUNodes creates the GPUNodes of the API nodes, as soon as the API server serves the definition, which the operator applies. The
// gate of each waits for its validation: nothing stands in for the agents, which would accept the result.
func (c *Cluster) WriteAPIGPUNodes(ctx context.Context) error {
	names := c.APINodeNames()
	if len(names) == 0 {
		return nil
	}
	machines, err := c.readAPIMachines(ctx)
	if err != nil {
		return err
	}
	config := c.RESTConfig()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("write GPUNodes: %w", err)
	}
	gpuNodes := client.Resource(v1alpha1.GPUNodes())
	for {
		_, err := gpuNodes.List(ctx, metav1.ListOptions{Limit: 1})
		if err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the definition of GPUNodes: %w; last answer: %w", ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
	if err := eachAPINode(ctx, names, func(ctx context.Context, name string) error {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(apiGPUNode(name, c.machineOf(name, machines)))
		if err != nil {
			return err
		}
		_, err = gpuNodes.Create(ctx, &unstructured.Unstructured{Object: fields}, metav1.CreateOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("write GPUNodes: %w", err)
	}
	return nil
}

// realNodesOnly is the affinity of pods that need a machine, in the form of the chart's values.
func realNodesOnly() map[string]any {
	return map[string]any{"nodeAffinity": map[string]any{"requiredDuringSchedulingIgnoredDuringExecution": map[string]any{"nodeSelectorTerms": []any{
		map[string]any{"matchExpressions": []any{map[string]any{"key": APINodeLabel, "operator": "NotIn", "values": []any{APINodeLabelValue}}}}}}}}
}
