package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	basemetrics "k8s.io/component-base/metrics"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/kubernetes/pkg/scheduler/profile"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangs"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/placement"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

// profileOfChart is a profile as the chart ships it: with all default plugins but the two that score by resources.
const profileOfChart = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
percentageOfNodesToScore: 100
profiles:
- schedulerName: berth-scheduler
  plugins:
    multiPoint:
      enabled: [{name: BerthPlacement, weight: 2000}]
    score:
      disabled: [{name: NodeResourcesFit}, {name: NodeResourcesBalancedAllocation}]
  pluginConfig:
  - name: BerthPlacement
    args: {policy: %s}
`

// lab is a scheduler that runs against a fake API server.
type lab struct {
	client  *fake.Clientset
	factory *placement.Factory
	bound   chan string
	reader  *fleetview.Reader
	sched   *scheduler.Scheduler
	// refuse is asked before a binding; its error is that of the API server.
	refuse func(*corev1.Binding) error
	// lost is asked after a binding; its error is the answer although the pod is bound.
	lost func(*corev1.Binding) error
	// options are those of the scheduler, limits those of the plugin for gangs.
	options []scheduler.Option
	limits  gangs.Limits
	// queue replaces the queue of the scheduler; nil for the scheduler's own.
	queue func(queue.SchedulingQueue) queue.SchedulingQueue
}

func loadProfile(t testing.TB, text string) config.KubeSchedulerProfile {
	t.Helper()
	object, _, err := scheme.Codecs.UniversalDecoder().Decode([]byte(text), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return object.(*config.KubeSchedulerConfiguration).Profiles[0]
}

// startLab starts a scheduler with the plugin BerthPlacement; nodes are there before it starts.
func startLab(t *testing.T, policy string, objects ...runtime.Object) *lab {
	t.Helper()
	l := newLab(objects...)
	l.run(t, fmt.Sprintf(profileOfChart, policy), frameworkruntime.Registry{placement.Name: l.factory.New})
	return l
}

// newLab returns a fake API server with a scheduler that does not run yet.
func newLab(objects ...runtime.Object) *lab {
	metrics.Register()
	l := &lab{bound: make(chan string, 10_000), reader: fleetview.NewReader()}
	l.client = fake.NewSimpleClientset(objects...)
	// The fake API server stores the node of a binding in the pod, as the real one does.
	l.client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "binding" {
			return false, nil, nil
		}
		binding := action.(clienttesting.CreateAction).GetObject().(*corev1.Binding)
		if l.refuse != nil {
			if err := l.refuse(binding); err != nil {
				return true, nil, err
			}
		}
		pod, err := l.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), binding.Namespace, binding.Name)
		if err != nil {
			return true, nil, err
		}
		if node := pod.(*corev1.Pod).Spec.NodeName; node != "" {
			return true, nil, fmt.Errorf("pod %s is already assigned to node %q", binding.Name, node)
		}
		bound := pod.(*corev1.Pod).DeepCopy()
		bound.Spec.NodeName = binding.Target.Name
		bound.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		err = l.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), bound, binding.Namespace)
		l.bound <- binding.Target.Name
		if err == nil && l.lost != nil {
			err = l.lost(binding)
		}
		return true, binding, err
	})
	// It gives a pod another version with each change, as the real one does: the scheduler ignores an update with the same version.
	var version atomic.Int64
	pods, change := corev1.SchemeGroupVersion.WithResource("pods"), clienttesting.ObjectReaction(l.client.Tracker())
	l.client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		_, changed, err := change(action)
		if err != nil {
			return true, nil, err
		}
		pod := changed.(*corev1.Pod).DeepCopy()
		pod.ResourceVersion = fmt.Sprint(1_000_000 + version.Add(1))
		return true, pod, l.client.Tracker().Update(pods, pod, pod.Namespace)
	})
	l.versionClaims(&version)
	l.factory = placement.NewFactory(placement.Deps{Register: func(basemetrics.Registerable) error { return nil }})
	return l
}

// versionClaims has the fake API server name ResourceClaims, and refuse a change of one that is not the newest, as the real one does.
func (l *lab) versionClaims(version *atomic.Int64) {
	claims, change := resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), clienttesting.ObjectReaction(l.client.Tracker())
	var mu sync.Mutex
	react := func(action clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		if create, ok := action.(clienttesting.CreateActionImpl); ok {
			claim := create.Object.(*resourceapi.ResourceClaim)
			if claim.Name == "" {
				claim = claim.DeepCopy()
				claim.Name = fmt.Sprintf("%s%d", claim.GenerateName, version.Add(1))
				claim.UID, claim.ResourceVersion = types.UID("uid-"+claim.Name), fmt.Sprint(1_000_000+version.Add(1))
				create.Object = claim
			}
			return change(create)
		}
		if update, ok := action.(clienttesting.UpdateActionImpl); ok {
			claim := update.Object.(*resourceapi.ResourceClaim)
			known, err := l.client.Tracker().Get(claims, claim.Namespace, claim.Name)
			if err == nil && known.(*resourceapi.ResourceClaim).ResourceVersion != claim.ResourceVersion {
				return true, nil, apierrors.NewConflict(claims.GroupResource(), claim.Name, errors.New("it has changed"))
			}
		}
		_, changed, err := change(action)
		if err != nil {
			return true, nil, err
		}
		claim := changed.(*resourceapi.ResourceClaim).DeepCopy()
		claim.ResourceVersion = fmt.Sprint(1_000_000 + version.Add(1))
		return true, claim, l.client.Tracker().Update(claims, claim, claim.Namespace)
	}
	for _, verb := range []string{"create", "update", "patch"} {
		l.client.PrependReactor(verb, "resourceclaims", react)
	}
}

// run runs a scheduler until the test ends, or the function that it returns is called.
func (l *lab) run(t testing.TB, profileText string, registry frameworkruntime.Registry) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	informerFactory := informers.NewSharedInformerFactory(l.client, 0)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: l.client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		t.Fatal(err)
	}
	recorders := profile.NewRecorderFactory(broadcaster)
	options := append([]scheduler.Option{scheduler.WithProfiles(loadProfile(t, profileText)), scheduler.WithFrameworkOutOfTreeRegistry(registry),
		scheduler.WithPodInitialBackoffSeconds(1)}, l.options...)
	sched, err := scheduler.New(ctx, l.client, informerFactory, nil, recorders, options...)
	if err != nil {
		t.Fatal(err)
	}
	l.sched = sched
	if l.queue != nil {
		sched.SchedulingQueue = l.queue(sched.SchedulingQueue)
	}
	informerFactory.Start(ctx.Done())
	informerFactory.WaitForCacheSync(ctx.Done())
	if err := sched.WaitForHandlersSync(ctx); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		sched.Run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// report writes a GPUNode.
func (l *lab) report(node *v1alpha1.GPUNode) { l.factory.Model().SetHardware(l.reader.Read(node)) }

// schedule creates a pod and returns the node to which it was bound.
func (l *lab) schedule(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	if _, err := l.client.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case node := <-l.bound:
		return node
	case <-time.After(20 * time.Second):
		t.Fatalf("pod %s was not bound within 20 s", pod.Name)
		return ""
	}
}

// TestOrder: with all default plugins on, a pod goes to the node that the model alone prefers, whatever the others say: nodes have images,
// taints that are to be avoided, and labels by which pods are spread by default.
func TestOrder(t *testing.T) {
	for _, policy := range fleet.PolicyNames() {
		t.Run(policy, func(t *testing.T) {
			random := rand.New(rand.NewPCG(7, 11))
			var nodes []*corev1.Node
			var objects []runtime.Object
			var reports []*v1alpha1.GPUNode
			for i := range 12 {
				n := makeNode(fmt.Sprintf("n%02d", i))
				n.Labels[corev1.LabelTopologyZone] = fmt.Sprintf("z%d", i%3)
				if i%2 == 0 {
					n.Spec.Taints = []corev1.Taint{{Key: "slow", Effect: corev1.TaintEffectPreferNoSchedule}}
					n.Status.Images = []corev1.ContainerImage{{Names: []string{"i:latest"}, SizeBytes: 900 << 20}}
				}
				nodes, objects = append(nodes, n), append(objects, n)
				states := append([]string(nil), healthy...)
				if i%4 == 0 {
					states[random.IntN(4)] = "Degraded"
				}
				reports = append(reports, makeGPUNode(n.Name, []string{"nvlink", "pcie"}[i%2], states, nil))
			}
			l := startLab(t, policy, objects...)
			for _, r := range reports {
				l.report(r)
			}
			twin := newTwin(t, nodes, reports)
			for i := range 24 {
				pod := makePod(fmt.Sprintf("p%d", i), []int{1, 2, 1, 4, 2}[random.IntN(5)], 1+random.IntN(3))
				want := twin.choose(t, policy, pod)
				if want == "" {
					continue
				}
				if got := l.schedule(t, pod); got != want {
					t.Fatalf("pod %d of %v went to %s; the model prefers %s", i, pod.Spec.Containers[0].Resources.Limits, got, want)
				}
				twin.bind(pod, want)
			}
		})
	}
}

// twin is the model without a scheduler around it.
type twin struct {
	model *model.Model
	nodes []*framework.NodeInfo
}

func newTwin(t *testing.T, nodes []*corev1.Node, reports []*v1alpha1.GPUNode) *twin {
	t.Helper()
	w := &twin{model: model.New(model.Deps{})}
	for _, n := range nodes {
		info := framework.NewNodeInfo()
		info.SetNode(n)
		w.nodes = append(w.nodes, info)
	}
	for _, r := range reports {
		w.model.SetHardware(fleetview.NewReader().Read(r))
	}
	return w
}

// choose returns the node with the highest score, the first in the fixed order among equals.
func (w *twin) choose(t *testing.T, policy string, pod *corev1.Pod) string {
	t.Helper()
	var list []fwk.NodeInfo
	for _, n := range w.nodes {
		list = append(list, n)
	}
	w.model.Sync(list)
	r := w.model.Requests(pod)
	w.model.See(pod.UID, r)
	scores, err := w.model.Scores(policy, r, nil)
	if err != nil {
		t.Fatal(err)
	}
	best := -1
	for i, score := range scores {
		if score >= 0 && (best < 0 || score > scores[best]) {
			best = i
		}
	}
	if best < 0 {
		return ""
	}
	w.model.Assume(pod.UID, w.model.View(best).Node.Name, r, w.model.Predict(policy, best, r))
	return w.model.View(best).Node.Name
}

func (w *twin) bind(pod *corev1.Pod, node string) {
	for _, n := range w.nodes {
		if n.Node().Name == node {
			n.AddPod(pod)
		}
	}
}

// TestFilter: nodes whose counts would let the pod in, and where the kubelet would refuse it, or where it must not share a GPU.
func TestFilter(t *testing.T) {
	held := func(uid string) *v1alpha1.GPUNode {
		return makeGPUNode("n0", "nvlink", healthy, map[int]string{0: uid, 1: uid, 2: uid, 3: uid})
	}
	orphans := held("x")
	for i := range orphans.Status.Devices {
		orphans.Status.Devices[i].Holders[0].Kind = "Orphan"
	}
	replicas := makeGPUNode("n0", "nvlink", healthy, nil)
	for i := range replicas.Status.Devices {
		replicas.Status.Devices[i].Offered = &v1alpha1.DeviceOffer{Resource: gpuResource, Replicas: 4, RefusesMany: true}
	}
	faulty := makeGPUNode("n0", "nvlink", []string{"Unhealthy", "Unhealthy", "Unhealthy", "Healthy"}, nil)
	tests := map[string]struct {
		report *v1alpha1.GPUNode
		gpus   int
		want   string
	}{
		"orphans have the GPUs":             {orphans, 1, "n1"},
		"a pod that is gone has the GPUs":   {held("ended"), 4, "n0"},
		"several replicas are refused":      {replicas, 2, "n1"},
		"too few are healthy":               {faulty, 2, "n1"},
		"one is healthy":                    {faulty, 1, "n0"},
		"the definition is newer":           {&v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: "n0"}, Status: v1alpha1.GPUNodeStatus{Devices: make([]v1alpha1.GPUDevice, 99)}}, 2, "n0"},
		"no GPUNode: the counts say enough": {nil, 2, "n0"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			tainted := makeNode("n1")
			tainted.Labels["last"] = "resort"
			l := startLab(t, fleet.PolicySpread, makeNode("n0"), tainted)
			if test.report != nil {
				l.report(test.report)
			}
			l.report(makeGPUNode("n1", "pcie", []string{"Degraded", "Degraded", "Degraded", "Degraded"}, nil))
			if test.want == "n0" && test.report == nil {
				return // Which of the two is better is not what the test is about; the pod runs on either.
			}
			if got := l.schedule(t, makePod("p", test.gpus, 1)); got != test.want {
				t.Errorf("the pod went to %s; want %s", got, test.want)
			}
		})
	}
}

// TestArgs: arguments that are wrong are refused with what is allowed.
func TestArgs(t *testing.T) {
	tests := map[string]struct{ raw, wantErr string }{
		"none":             {"", ""},
		"null":             {"null", ""},
		"a policy":         {`{"policy":"latency"}`, ""},
		"unknown policy":   {`{"policy":"fastest"}`, `arguments of the plugin BerthPlacement: policy "fastest" is unknown; want one of pack, spread, latency`},
		"unknown argument": {`{"policies":"pack"}`, `arguments of the plugin BerthPlacement: json: unknown field "policies"; want an object such as {policy: pack}`},
		"no object":        {`[1]`, "arguments of the plugin BerthPlacement: json: cannot unmarshal array into Go value of type placement.Args; want an object such as {policy: pack}"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			fh, err := frameworkruntime.NewFramework(t.Context(), nil, nil, frameworkruntime.WithInformerFactory(informers.NewSharedInformerFactory(fake.NewClientset(), 0)))
			if err != nil {
				t.Fatal(err)
			}
			f := placement.NewFactory(placement.Deps{Register: func(basemetrics.Registerable) error { return nil }})
			_, err = f.New(t.Context(), &runtime.Unknown{Raw: []byte(test.raw)}, fh)
			if got := fmt.Sprint(err); test.wantErr == "" && err != nil || test.wantErr != "" && got != test.wantErr {
				t.Errorf("error %v; want %s", err, test.wantErr)
			}
		})
	}
}
