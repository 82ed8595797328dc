// Package cluster fills the API server of a benchmark: Nodes with GPUs, their GPUNodes and pods. It guarantees that a pod's name sorts
// by its turn, since a scheduler that starts later queues the pods in the order of their names. No program stands behind the objects.
package cluster

import (
	"context"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/api/crds"
	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/load"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/process"
)

const (
	// Resource is the resource of the GPUs.
	Resource = "nvidia.com/gpu"
	// Namespace is that of the pods.
	Namespace = metav1.NamespaceDefault
	// writers is how many objects are written at the same time.
	writers = 32
)

// Cluster writes objects.
type Cluster struct {
	// Client is for Kubernetes' own objects, in protobuf.
	Client *kubernetes.Clientset
	// Server ends the wait for an API that it serves later.
	Server *process.Process

	objects *dynamic.DynamicClient
	report  func(kind string, done, all int)
}

// New returns a cluster of the API server to which config leads. Report is called, from several goroutines, after each object that was
// written; it decides what is worth a line.
func New(config *rest.Config, server *process.Process, report func(kind string, done, all int)) (*Cluster, error) {
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return &Cluster{Client: client, Server: server, objects: objects, report: report}, nil
}

// Fill creates the definition of GPUNodes, Nodes with a GPUNode each, and pods for the named scheduler.
func (c *Cluster) Fill(ctx context.Context, nodes int, pods []load.Pod, scheduler string) error {
	if err := c.define(ctx); err != nil {
		return err
	}
	if err := c.each(ctx, "nodes", nodes, func(ctx context.Context, i int) error {
		if _, err := c.Client.CoreV1().Nodes().Create(ctx, node(i), metav1.CreateOptions{}); err != nil {
			return err
		}
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(gpuNode(i))
		if err != nil {
			return err
		}
		_, err = c.objects.Resource(v1alpha1.GPUNodes()).Create(ctx, &unstructured.Unstructured{Object: fields}, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	return c.each(ctx, "pods", len(pods), func(ctx context.Context, i int) error {
		_, err := c.Client.CoreV1().Pods(Namespace).Create(ctx, pod(i, pods[i], scheduler), metav1.CreateOptions{})
		return err
	})
}

// define creates the definition of GPUNodes and waits until it is served.
func (c *Cluster) define(ctx context.Context) error {
	var definition unstructured.Unstructured
	if err := yaml.Unmarshal(crds.GPUNodes(), &definition.Object); err != nil {
		return fmt.Errorf("read the definition of GPUNodes: %w", err)
	}
	kind := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	if _, err := c.objects.Resource(kind).Create(ctx, &definition, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the definition of GPUNodes: %w", err)
	}
	return c.Server.Wait(ctx, "the definition of GPUNodes", func(ctx context.Context) error {
		_, err := c.objects.Resource(v1alpha1.GPUNodes()).List(ctx, metav1.ListOptions{Limit: 1})
		return err
	})
}

// each calls write for 0 to count-1, several at the same time, begun in this order.
func (c *Cluster) each(ctx context.Context, kind string, count int, write func(context.Context, int) error) error {
	var done atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range count {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			if err := write(ctx, i); err != nil {
				return fmt.Errorf("create %s: %w", kind, err)
			}
			c.report(kind, int(done.Add(1)), count)
			return nil
		})
	}
	return group.Wait()
}

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

// node returns a Node as its kubelet would register it, without a taint.
func node(i int) *corev1.Node {
	name := nodeName(i)
	has := corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewQuantity(load.NodeCores, resource.DecimalSI), corev1.ResourceMemory: gib(load.NodeMemoryGiB),
		corev1.ResourcePods: *resource.NewQuantity(load.NodePods, resource.DecimalSI),
		Resource:            *resource.NewQuantity(load.NodeGPUs, resource.DecimalSI),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux"}},
		Status: corev1.NodeStatus{
			Capacity: has, Allocatable: has,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
			NodeInfo:   corev1.NodeSystemInfo{Architecture: "amd64", OperatingSystem: "linux", KubeletVersion: "v1.37.1"},
		},
	}
}

// gpuNode returns a GPUNode as its agent would write it: 8 Healthy GPUs, connected by NVSwitch, that no pod holds.
func gpuNode(i int) *v1alpha1.GPUNode {
	const model = "NVIDIA A100-SXM4-80GB"
	n := &v1alpha1.GPUNode{TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindGPUNode), ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}}
	n.Status = v1alpha1.GPUNodeStatus{
		AgentVersion: "bench", Driver: v1alpha1.GPUDriver{Version: "580.95.05", CUDAVersion: "13.0"},
		Summary: v1alpha1.GPUSummary{GPUs: load.NodeGPUs, Free: load.NodeGPUs, Model: model}, Topology: topology(),
	}
	for g := range load.NodeGPUs {
		n.Status.Devices = append(n.Status.Devices, v1alpha1.GPUDevice{
			UUID: fmt.Sprintf("GPU-%s-%d", n.Name, g), Index: g, Minor: g, PCIBusID: fmt.Sprintf("0000:%02x:00.0", 16+g), Product: model,
			Architecture: "Ampere", ComputeCapability: "8.0", MemoryBytes: 80 << 30, NUMANode: g * 2 / load.NodeGPUs,
			Health: v1alpha1.DeviceHealth{State: "Healthy"}, Offered: &v1alpha1.DeviceOffer{Resource: Resource},
		})
	}
	return n
}

// topology returns the matrix of GPUs that an NVSwitch connects with 12 NVLinks each.
func topology() []string {
	var rows []string
	for i := range load.NodeGPUs {
		row := ""
		for k := range load.NodeGPUs {
			if cell := "NV12 "; i != k {
				row += cell
			} else {
				row += "X "
			}
		}
		rows = append(rows, row[:len(row)-1])
	}
	return rows
}

// pod returns the pod of a turn.
func pod(i int, p load.Pod, scheduler string) *corev1.Pod {
	cores := *resource.NewQuantity(int64(p.Cores), resource.DecimalSI)
	requests := corev1.ResourceList{corev1.ResourceCPU: cores, corev1.ResourceMemory: gib(p.MemoryGiB)}
	limits := corev1.ResourceList{}
	if p.GPUs > 0 {
		requests[Resource] = *resource.NewQuantity(int64(p.GPUs), resource.DecimalSI)
		limits[Resource] = requests[Resource]
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%06d", i), Namespace: Namespace, Labels: map[string]string{"app": "bench"}},
		Spec: corev1.PodSpec{SchedulerName: scheduler, Containers: []corev1.Container{{
			Name: "main", Image: "bench", Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}}},
	}
}

func gib(n int) resource.Quantity { return *resource.NewQuantity(int64(n)<<30, resource.BinarySI) }
