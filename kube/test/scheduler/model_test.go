package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

const gpuResource = "nvidia.com/gpu"

// topologies of four GPUs: two pairs with two NVLinks, and two pairs below a PCIe switch.
var topologies = map[string][]string{
	"nvlink": {"X NV2 NV1 NV1", "NV2 X NV1 NV1", "NV1 NV1 X NV2", "NV1 NV1 NV2 X"},
	"pcie":   {"X PIX SYS SYS", "PIX X SYS SYS", "SYS SYS X PIX", "SYS SYS PIX X"},
}

func makeNode(name string) *corev1.Node {
	has := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("20"),
		gpuResource: resource.MustParse("4"),
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}, Status: corev1.NodeStatus{Capacity: has, Allocatable: has,
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
}

func makePod(name string, gpus, cpus int) *corev1.Pod {
	list := corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(int64(cpus), resource.DecimalSI), corev1.ResourceMemory: resource.MustParse("1Gi")}
	if gpus > 0 {
		list[gpuResource] = *resource.NewQuantity(int64(gpus), resource.DecimalSI)
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID("uid-" + name)}, Spec: corev1.PodSpec{
		SchedulerName: "berth-scheduler", Containers: []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Limits: list, Requests: list}}},
	}}
}

// makeGPUNode returns the GPUNode of a node with four GPUs, which pods hold by UID.
func makeGPUNode(node, topology string, states []string, holders map[int]string) *v1alpha1.GPUNode {
	made := &v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: node}}
	made.Status.Topology = topologies[topology]
	for i := range 4 {
		d := v1alpha1.GPUDevice{UUID: fmt.Sprintf("GPU-%s-%d", node, i), Index: i, Offered: &v1alpha1.DeviceOffer{Resource: gpuResource}, Health: v1alpha1.DeviceHealth{State: states[i]}}
		if uid := holders[i]; uid != "" {
			d.Holders = []v1alpha1.Holder{{Kind: "Pod", PodUID: uid}}
		}
		made.Status.Devices = append(made.Status.Devices, d)
	}
	return made
}

var healthy = []string{"Healthy", "Healthy", "Healthy", "Healthy"}

// TestModelTwin: after any sequence of bindings, ends of pods, GPUNodes that come late or not at all, nodes that come and go, the model
// says what a new one says that sees the same state for the first time.
func TestModelTwin(t *testing.T) {
	requests := [][]fleet.Shape{{{CPU: 1000, Memory: 1024, GPUs: 1, Resource: gpuResource}}, {{CPU: 2000, Memory: 1024, GPUs: 2, Resource: gpuResource}}, {{CPU: 1000}},
		{{CPU: 1000, GPUs: 1, Resource: gpuResource}, {GPUs: 2, Resource: gpuResource}}}
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		m := model.New(model.Deps{})
		for step := range rapid.IntRange(1, 40).Draw(t, "steps") {
			w.step(t, m, step)
			nodes := w.list()
			m.Sync(nodes)
			twin := model.New(model.Deps{})
			for _, name := range w.names {
				if g := w.gpuNodes[name]; g != nil {
					twin.SetHardware(w.reader.Read(g))
				}
			}
			for uid, a := range w.assumed {
				twin.Assume(uid, a.node, nil, a.gpus)
			}
			twin.Sync(nodes)
			for _, r := range requests {
				compare(t, w, m, twin, r)
			}
		}
	})
}

// compare compares fits and the predicted GPUs of two models. Their scores depend on the workload mix, which is that of all pods that were
// seen, also those that have ended.
func compare(t *rapid.T, w *world, m, twin *model.Model, r []fleet.Shape) {
	got, err := m.Scores(fleet.PolicyLatency, r, nil)
	if err != nil {
		t.Fatal(err)
	}
	want, err := twin.Scores(fleet.PolicyLatency, r, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range w.names {
		i, _ := m.Index(name)
		k, _ := twin.Index(name)
		if (got[i] < 0) != (want[k] < 0) {
			t.Fatalf("%s: %v on %s: score %d; a new model says %d\n%s", strings.Join(w.log, "\n"), r, name, got[i], want[k], w)
		}
		mine, other := fmt.Sprint(m.Predict(fleet.PolicyPack, i, r)), fmt.Sprint(twin.Predict(fleet.PolicyPack, k, r))
		if mine != other {
			t.Fatalf("%s: %v on %s: GPUs %s; a new model says %s\n%s", strings.Join(w.log, "\n"), r, name, mine, other, w)
		}
		if n, o := m.View(i).Node, twin.View(k).Node; fmt.Sprint(n.GPUs, n.FreeCPU) != fmt.Sprint(o.GPUs, o.FreeCPU) {
			t.Fatalf("%s: node %s is %v; a new model says %v", strings.Join(w.log, "\n"), name, n.GPUs, o.GPUs)
		}
	}
}

// world is a cluster as the scheduler's snapshot and the GPUNodes show it.
type world struct {
	names    []string
	nodes    map[string]*framework.NodeInfo
	gpuNodes map[string]*v1alpha1.GPUNode
	pods     map[string][]*corev1.Pod
	assumed  map[types.UID]assumption
	reader   *fleetview.Reader
	number   int
	log      []string
}

type assumption struct {
	node string
	gpus [][]string
}

func newWorld() *world {
	return &world{nodes: map[string]*framework.NodeInfo{}, gpuNodes: map[string]*v1alpha1.GPUNode{}, pods: map[string][]*corev1.Pod{},
		assumed: map[types.UID]assumption{}, reader: fleetview.NewReader()}
}

func (w *world) String() string {
	var text strings.Builder
	for _, name := range w.names {
		fmt.Fprintf(&text, "%s:", name)
		for _, p := range w.pods[name] {
			fmt.Fprintf(&text, " %s", p.Name)
		}
		text.WriteString("\n")
	}
	return text.String()
}

func (w *world) list() []fwk.NodeInfo {
	var list []fwk.NodeInfo
	for _, name := range w.names {
		list = append(list, w.nodes[name])
	}
	return list
}

// step does one thing to the world and the model.
func (w *world) step(t *rapid.T, m *model.Model, number int) {
	what := rapid.SampledFrom([]string{"node", "bind", "bind", "bind", "end", "report", "report", "drop GPUNode", "drop node"}).Draw(t, "what")
	if len(w.names) == 0 {
		what = "node"
	}
	name := fmt.Sprintf("n%d", rapid.IntRange(0, 3).Draw(t, "node"))
	known := slices.Contains(w.names, name)
	w.log = append(w.log, what+" "+name)
	switch {
	case what == "node" && !known:
		info := framework.NewNodeInfo()
		info.SetNode(makeNode(name))
		w.names, w.nodes[name] = append(w.names, name), info
	case !known:
	case what == "bind":
		w.bind(t, m, name)
	case what == "end" && len(w.pods[name]) > 0:
		pod := w.pods[name][0]
		w.pods[name] = w.pods[name][1:]
		if err := w.nodes[name].RemovePod(klog.Background(), pod); err != nil {
			t.Fatal(err)
		}
		delete(w.assumed, pod.UID)
	case what == "report":
		w.report(t, m, name)
	case what == "drop GPUNode":
		delete(w.gpuNodes, name)
		m.DropHardware(name)
	case what == "drop node" && len(w.pods[name]) == 0:
		w.names = slices.DeleteFunc(w.names, func(n string) bool { return n == name })
		delete(w.nodes, name)
	}
}

// bind binds a pod, as the scheduler does: with the prediction of the model, when there is one.
func (w *world) bind(t *rapid.T, m *model.Model, name string) {
	pod := makePod(fmt.Sprintf("p%d", w.number), rapid.IntRange(0, 2).Draw(t, "GPUs"), 1)
	w.number++
	m.Sync(w.list())
	r := m.Requests(pod)
	i, _ := m.Index(name)
	if gpus := m.Predict(fleet.PolicyPack, i, r); gpus != nil && rapid.Bool().Draw(t, "predicted") {
		m.Assume(pod.UID, name, r, gpus)
		w.assumed[pod.UID] = assumption{name, gpus}
	}
	w.nodes[name].AddPod(pod)
	w.pods[name] = append(w.pods[name], pod)
}

// report writes a GPUNode: some of the pods of the node hold GPUs, and one that has ended.
func (w *world) report(t *rapid.T, m *model.Model, name string) {
	holders, at := map[int]string{}, 0
	for _, pod := range w.pods[name] {
		if at < 4 && rapid.Bool().Draw(t, "holds") {
			holders[at] = string(pod.UID)
			at += rapid.IntRange(1, 2).Draw(t, "skip")
		}
	}
	if at < 4 && rapid.Bool().Draw(t, "ended") {
		holders[at] = "uid-ended"
	}
	states := slices.Clone(healthy)
	states[rapid.IntRange(0, 3).Draw(t, "faulty")] = rapid.SampledFrom([]string{"Healthy", "Degraded", "Unhealthy"}).Draw(t, "health")
	w.gpuNodes[name] = makeGPUNode(name, rapid.SampledFrom([]string{"nvlink", "pcie"}).Draw(t, "topology"), states, holders)
	m.SetHardware(w.reader.Read(w.gpuNodes[name]))
}

// TestPredictions: a prediction is compared once, when the GPUNode names the pod; and forgotten with the pod.
func TestPredictions(t *testing.T) {
	var checks []string
	m := model.New(model.Deps{Checked: func(c model.Check) {
		checks = append(checks, fmt.Sprintf("%s %v %v %v", c.Pod, c.Hit(), c.Predicted, c.Allocated))
	}})
	reader := fleetview.NewReader()
	info := framework.NewNodeInfo()
	info.SetNode(makeNode("n"))
	nodes := []fwk.NodeInfo{info}
	report := func(holders map[int]string) {
		m.SetHardware(reader.Read(makeGPUNode("n", "nvlink", healthy, holders)))
		m.Sync(nodes)
	}
	report(nil)
	for _, name := range []string{"a", "b"} {
		pod := makePod(name, 2, 1)
		m.Assume(pod.UID, "n", m.Requests(pod), m.Predict(fleet.PolicyPack, 0, m.Requests(pod)))
		info.AddPod(pod)
		m.Sync(nodes)
	}
	report(nil)
	report(map[int]string{0: "uid-a"})
	if len(checks) > 0 {
		t.Errorf("checks %q; want none before the pod has both GPUs", checks)
	}
	report(map[int]string{0: "uid-a", 1: "uid-a", 2: "uid-b", 3: "uid-b"})
	report(map[int]string{0: "uid-a", 1: "uid-a", 2: "uid-b", 3: "uid-b"})
	want := []string{"uid-a true [GPU-n-0 GPU-n-1] [GPU-n-0 GPU-n-1]", "uid-b true [GPU-n-2 GPU-n-3] [GPU-n-2 GPU-n-3]"}
	slices.Sort(checks)
	if !slices.Equal(checks, want) {
		t.Errorf("checks %q; want %q", checks, want)
	}
	m.Forget("uid-a")
	m.Forget("uid-a")
	pod := makePod("c", 1, 1)
	m.Assume(pod.UID, "n", m.Requests(pod), [][]string{{"GPU-n-3"}})
	info.AddPod(pod)
	report(map[int]string{0: "uid-c"})
	if got := checks[len(checks)-1]; got != "uid-c false [GPU-n-3] [GPU-n-0]" {
		t.Errorf("check %q; want a miss", got)
	}
}

// TestPredictionsOfLostNode: a prediction ends with its node, and is not compared with what a new node of its name says.
func TestPredictionsOfLostNode(t *testing.T) {
	var checks []string
	m := model.New(model.Deps{Checked: func(c model.Check) { checks = append(checks, string(c.Pod)) }})
	reader := fleetview.NewReader()
	var nodes []fwk.NodeInfo
	for _, name := range []string{"kept", "lost"} {
		info := framework.NewNodeInfo()
		info.SetNode(makeNode(name))
		nodes = append(nodes, info)
		m.SetHardware(reader.Read(makeGPUNode(name, "nvlink", healthy, nil)))
	}
	m.Sync(nodes)
	for _, info := range nodes {
		name := info.Node().Name
		pod := makePod("on-"+name, 1, 1)
		i, _ := m.Index(name)
		m.Assume(pod.UID, name, m.Requests(pod), m.Predict(fleet.PolicyPack, i, m.Requests(pod)))
		info.(*framework.NodeInfo).AddPod(pod)
	}
	m.Sync(nodes)
	m.Sync(nodes[:1])
	for _, name := range []string{"kept", "lost"} {
		m.SetHardware(reader.Read(makeGPUNode(name, "nvlink", healthy, map[int]string{0: "uid-on-" + name})))
	}
	if want := []string{"uid-on-kept"}; !slices.Equal(checks, want) {
		t.Errorf("compared %q; want %q", checks, want)
	}
}

// TestTouch: a pod that the scheduler adds to its snapshot only, so that the generation of the node stays the same, counts once the node is
// touched.
func TestTouch(t *testing.T) {
	m := model.New(model.Deps{})
	m.SetHardware(fleetview.NewReader().Read(makeGPUNode("n0", "nvlink", healthy, nil)))
	info := framework.NewNodeInfo()
	info.SetNode(makeNode("n0"))
	nodes := []fwk.NodeInfo{info}
	m.Sync(nodes)
	generation := info.Generation
	info.AddPod(makePod("p", 0, 4))
	info.Generation = generation
	for i, want := range []int64{16000, 12000} {
		if m.Sync(nodes); m.View(0).Node.FreeCPU != want {
			t.Errorf("touched %d times, the node has %d of CPU; want %d", i, m.View(0).Node.FreeCPU, want)
		}
		m.Touch("n0")
	}
}
