// Package cluster fills the API server of a benchmark: Nodes with GPUs, their GPUNodes, PodGroups and pods. It guarantees that a pod's name
// sorts by its turn, since a scheduler that starts later queues the pods in the order of their names. No program stands behind the objects.
package cluster

import (
	"context"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
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

// Fill creates the definition of GPUNodes, and Nodes with a GPUNode and the pods that run on them.
func (c *Cluster) Fill(ctx context.Context, nodes []load.Node) error {
	if err := c.define(ctx); err != nil {
		return err
	}
	return c.each(ctx, "nodes", len(nodes), func(ctx context.Context, i int) error { return c.addNode(ctx, i, nodes[i]) })
}

// addNode creates a Node, then what runs on it, and its GPUNode last, since that names its pods with their UIDs.
func (c *Cluster) addNode(ctx context.Context, i int, n load.Node) error {
	if _, err := c.Client.CoreV1().Nodes().Create(ctx, node(i, n), metav1.CreateOptions{}); err != nil {
		return err
	}
	var running []*corev1.Pod
	for k, p := range n.Running {
		created, err := c.Client.CoreV1().Pods(Namespace).Create(ctx, runningPod(i, k, p), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		running = append(running, created)
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(gpuNode(i, n, running))
	if err != nil {
		return err
	}
	_, err = c.objects.Resource(v1alpha1.GPUNodes()).Create(ctx, &unstructured.Unstructured{Object: fields}, metav1.CreateOptions{})
	return err
}

// Submit creates the pods that the named scheduler has to schedule, after the PodGroups of their gangs if the form needs some.
func (c *Cluster) Submit(ctx context.Context, o load.Objects, scheduler string, form GangForm) error {
	gangs := map[string]load.Gang{}
	for _, g := range o.Gangs {
		gangs[g.Name] = g
	}
	if form == PodGroups {
		if err := c.each(ctx, "pod groups", len(o.Gangs), func(ctx context.Context, i int) error {
			_, err := c.Client.SchedulingV1beta1().PodGroups(Namespace).Create(ctx, podGroup(o.Gangs[i]), metav1.CreateOptions{})
			return err
		}); err != nil {
			return err
		}
	}
	return c.each(ctx, "pods", len(o.Pods), func(ctx context.Context, i int) error {
		p := pod(i, o.Pods[i], scheduler)
		if gang, ok := gangs[o.Pods[i].Gang]; ok {
			join(p, gang, form)
		}
		_, err := c.Client.CoreV1().Pods(Namespace).Create(ctx, p, metav1.CreateOptions{})
		return err
	})
}

// AddBeside creates a pod of 1 GPU that belongs to no gang, and returns its name.
func (c *Cluster) AddBeside(ctx context.Context, i int, scheduler string) (string, error) {
	p := pod(0, load.Beside(), scheduler)
	p.Name = fmt.Sprintf("beside-%06d", i)
	if _, err := c.Client.CoreV1().Pods(Namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
		return "", fmt.Errorf("create pod %s: %w", p.Name, err)
	}
	return p.Name, nil
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
