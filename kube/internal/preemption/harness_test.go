package preemption

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	clientsetfake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	helpers "k8s.io/component-helpers/resource"
	fwk "k8s.io/kube-scheduler/framework"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	internalqueue "k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodeports"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/noderesources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	st "k8s.io/kubernetes/pkg/scheduler/testing"
	tf "k8s.io/kubernetes/pkg/scheduler/testing/framework"

	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/placement"
	"github.com/berth-gpu/berth/internal/core/fleet"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement/shared"
)

func TestMain(m *testing.M) {
	metrics.Register()
	os.Exit(m.Run())
}

const (
	gpus = "nvidia.com/gpu"
	// held is the annotation of a test's pod with the GPUs that it has, such as "0,1".
	held = "test/held"
)

// cluster is what a test's plugin sees.
type cluster struct {
	nodes   []*v1.Node
	pods    []*v1.Pod // with those that have no node
	budgets []*policy.PodDisruptionBudget
	dra     *fakeDRA
	// unknown are the nodes of which the fake says nothing.
	unknown []string
	async   bool
	// placement is the factory of the plugin BerthPlacement, which filters too, if it is set.
	placement *placement.Factory
	// deleting is called for each deletion of a pod, if it is set.
	deleting func()
}

// node is a node with GPUs of which 0 and 1, 2 and 3, ... are linked.
func node(name string, count int) *v1.Node {
	return st.MakeNode().Name(name).Capacity(map[v1.ResourceName]string{"cpu": "16", "memory": "64Gi", "pods": "200", gpus: strconv.Itoa(count)}).Obj()
}

// pod is a pod with a priority that runs on a node and has GPUs. age is how long ago it started, in seconds.
func pod(name, node string, priority int32, age int, has ...int) *st.PodWrapper {
	list := make([]string, len(has))
	for i, n := range has {
		list[i] = strconv.Itoa(n)
	}
	p := st.MakePod().Namespace("ns").Name(name).UID("uid-"+name).Priority(priority).Node(node).
		StartTime(metav1.NewTime(time.Unix(int64(1_000_000-age), 0))).Annotation(held, strings.Join(list, ","))
	return p.Req(map[v1.ResourceName]string{"cpu": "1", gpus: strconv.Itoa(len(has))})
}

// waiting is a pod that requests GPUs and has no node.
func waiting(count int) *st.PodWrapper {
	return st.MakePod().Namespace("ns").Name("waiting").UID("uid-waiting").Priority(100).
		Req(map[v1.ResourceName]string{"cpu": "1", gpus: strconv.Itoa(count)})
}

func topology(t testing.TB, count int) *shared.Topology {
	t.Helper()
	links, numa := make(gpu.Topology, count), make([]int, count)
	for i := range links {
		links[i] = make([]gpu.Link, count)
		for k := range links[i] {
			links[i][k].Path = gpu.PathSystem
			if i/2 == k/2 && i != k {
				links[i][k].Kind, links[i][k].Count = gpu.LinkNVLink, 4
			}
		}
	}
	made, err := shared.NewCache(shared.Options{}).Topology(links, numa)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// fakeNodes describes the nodes of a cluster by the annotations of its pods, and by its claims.
type fakeNodes struct {
	nodes    map[string]*fleet.Node
	holdings map[string][]fleetview.Held
}

func newFakeNodes(t testing.TB, c *cluster) *fakeNodes {
	t.Helper()
	f := &fakeNodes{nodes: map[string]*fleet.Node{}, holdings: map[string][]fleetview.Held{}}
	for _, n := range c.nodes {
		if slices.Contains(c.unknown, n.Name) {
			continue
		}
		quantity := n.Status.Allocatable[gpus]
		count, resource := int(quantity.Value()), gpus
		if c.dra != nil {
			count, resource = c.dra.perNode, fleetview.ResourceOfClaims
		}
		made := fleet.Empty(n.Name, "H100", n.Status.Allocatable.Cpu().MilliValue(), n.Status.Allocatable.Memory().Value()>>20, count)
		if count > 1 {
			made.Links = topology(t, count)
		}
		for i := range made.GPUs {
			made.GPUs[i].Resource, made.GPUs[i].Unit = resource, fleet.Whole
		}
		f.nodes[n.Name] = &made
	}
	for _, p := range c.pods {
		n := f.nodes[p.Spec.NodeName]
		if n == nil {
			continue
		}
		requests := helpers.PodRequests(p, helpers.PodResourcesOptions{})
		n.FreeCPU, n.FreeMemory = n.FreeCPU-requests.Cpu().MilliValue(), n.FreeMemory-requests.Memory().Value()>>20
		if set := heldBy(p); set != 0 {
			f.hold(n, fleetview.Held{Pods: []string{string(p.UID)}, GPUs: set})
		}
	}
	if c.dra != nil {
		c.dra.holdings(f)
	}
	return f
}

func (f *fakeNodes) hold(n *fleet.Node, h fleetview.Held) {
	for i := range h.GPUs.All() {
		n.GPUs[i].Free = 0
	}
	f.holdings[n.Name] = append(f.holdings[n.Name], h)
}

func heldBy(p *v1.Pod) fleet.GPUSet {
	var set fleet.GPUSet
	for text := range strings.SplitSeq(p.Annotations[held], ",") {
		if i, err := strconv.Atoi(text); err == nil {
			set = set.With(i)
		}
	}
	return set
}

func (f *fakeNodes) Requests(p *v1.Pod) []fleet.Shape {
	requests := helpers.PodRequests(p, helpers.PodResourcesOptions{})
	shape := fleet.Shape{CPU: requests.Cpu().MilliValue(), Memory: requests.Memory().Value() >> 20}
	if count := requests[gpus]; count.Value() > 0 {
		shape.Resource, shape.GPUs = gpus, int32(count.Value())
	}
	return []fleet.Shape{shape}
}

func (f *fakeNodes) Node(name string) (*fleet.Node, []fleetview.Held, bool) {
	n := f.nodes[name]
	return n, f.holdings[name], n != nil
}

// postFilter is a PostFilter plugin.
type postFilter interface {
	PostFilter(context.Context, fwk.CycleState, *v1.Pod, fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status)
}

// outcome is what an attempt to preempt did.
type outcome struct {
	Node    string
	Victims []string
	Code    fwk.Code
	Message string
}

// recorded are the pods that the API server was asked to delete.
type recorded struct {
	mu    sync.Mutex
	names []string
}

func (r *recorded) add(name string) { r.mu.Lock(); r.names = append(r.names, name); r.mu.Unlock() }

func (r *recorded) sorted() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(slices.Values(r.names))
}

// features are those that the tests run with.
func (c *cluster) features() feature.Features {
	features := feature.Features{}
	if c.dra != nil {
		features = feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	}
	features.EnableAsyncPreemption = c.async
	return features
}

// scheduler is a framework that sees a cluster.
type scheduler struct {
	framework.Framework
	ctx     context.Context
	deleted *recorded
}

func (c *cluster) scheduler(t testing.TB) *scheduler {
	t.Helper()
	var objects []runtime.Object
	for _, p := range c.pods {
		objects = append(objects, p)
	}
	client, deleted := clientsetfake.NewClientset(objects...), &recorded{}
	client.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		deleted.add(action.(clienttesting.DeleteAction).GetName())
		if c.deleting != nil {
			c.deleting()
		}
		return true, nil, nil
	})
	factory := informers.NewSharedInformerFactory(client, 0)
	running := make([]*v1.Pod, 0, len(c.pods))
	for _, p := range c.pods {
		if err := factory.Core().V1().Pods().Informer().GetStore().Add(p); err != nil {
			t.Fatal(err)
		}
		if p.Spec.NodeName != "" {
			running = append(running, p)
		}
	}
	for _, b := range c.budgets {
		if err := factory.Policy().V1().PodDisruptionBudgets().Informer().GetStore().Add(b); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	snapshot := internalcache.NewSnapshot(running, c.nodes)
	plugins := []tf.RegisterPluginFunc{
		tf.RegisterQueueSortPlugin(queuesort.Name, queuesort.New), tf.RegisterBindPlugin(defaultbinder.Name, defaultbinder.New),
		tf.RegisterPluginAsExtensions(noderesources.Name, frameworkruntime.FactoryAdapter(feature.Features{}, noderesources.NewFit), "Filter", "PreFilter"),
		tf.RegisterPluginAsExtensions(nodeports.Name, frameworkruntime.FactoryAdapter(feature.Features{}, nodeports.New), "Filter", "PreFilter"),
	}
	options := []frameworkruntime.Option{
		frameworkruntime.WithClientSet(client), frameworkruntime.WithEventRecorder(&events.FakeRecorder{}), frameworkruntime.WithInformerFactory(factory),
		frameworkruntime.WithPodNominator(internalqueue.NewSchedulingQueue(nil, factory)), frameworkruntime.WithSnapshotSharedLister(snapshot),
		frameworkruntime.WithMutableSnapshotLister(snapshot), frameworkruntime.WithWaitingPods(frameworkruntime.NewWaitingPodsMap()),
		frameworkruntime.WithPodsInPreBind(frameworkruntime.NewPodsInPreBindMap()),
	}
	if c.dra != nil {
		plugins = append(plugins, tf.RegisterPluginAsExtensions(dynamicresources.Name, frameworkruntime.FactoryAdapter(c.features(), dynamicresources.New), "Filter", "PreFilter"))
		options = append(options, frameworkruntime.WithSharedDRAManager(c.dra))
	}
	if c.placement != nil {
		plugins = append(plugins, tf.RegisterPluginAsExtensions(placement.Name, c.placement.New, "PreFilter", "Filter"))
	}
	made, err := tf.NewFramework(ctx, plugins, "", options...)
	if err != nil {
		t.Fatal(err)
	}
	return &scheduler{made, ctx, deleted}
}

// berth returns the plugin under test.
func (c *cluster) berth(t testing.TB, s *scheduler) *Plugin {
	t.Helper()
	nodes := newFakeNodes(t, c)
	deps := Deps{Nodes: func(fwk.Handle) (Nodes, error) { return nodes, nil }}
	if c.placement != nil {
		deps = FromViews(c.placement)
	}
	made, err := newPlugin(s.ctx, deps, nil, s, c.features())
	if err != nil {
		t.Fatal(err)
	}
	return made.(*Plugin)
}

// inTree returns DefaultPreemption.
func (c *cluster) inTree(t testing.TB, s *scheduler) postFilter {
	t.Helper()
	args, err := arguments(nil)
	if err != nil {
		t.Fatal(err)
	}
	made, err := defaultpreemption.New(s.ctx, args, s, c.features())
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// preempt tries to schedule a pod, and calls the plugin when no node fits.
func (s *scheduler) preempt(t testing.TB, c *cluster, plugin postFilter, p *v1.Pod) outcome {
	t.Helper()
	state, statuses := framework.NewCycleState(), framework.NewDefaultNodeToStatus()
	if _, status, _ := s.RunPreFilterPlugins(s.ctx, state, p); !status.IsSuccess() {
		t.Fatal(status)
	}
	for _, n := range c.nodes {
		info, err := s.SnapshotSharedLister().NodeInfos().Get(n.Name)
		if err != nil {
			t.Fatal(err)
		}
		status := s.RunFilterPlugins(s.ctx, state, p, info)
		if status.IsSuccess() {
			return outcome{Node: n.Name, Message: "fits"}
		}
		statuses.Set(n.Name, status)
	}
	result, status := plugin.PostFilter(s.ctx, state, p, statuses)
	out := outcome{Victims: s.deleted.sorted(), Code: status.Code(), Message: status.Message()}
	if result != nil && result.NominatingInfo != nil {
		out.Node = result.NominatedNodeName
	}
	return out
}

func (o outcome) String() string {
	return fmt.Sprintf("node %q, victims %v, %v: %s", o.Node, o.Victims, o.Code, o.Message)
}
