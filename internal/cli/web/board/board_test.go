package board

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

var start = time.Date(2026, 11, 27, 9, 0, 0, 0, time.UTC)

// testNode is a node with GPUs that the given function changes.
func testNode(name string, gpus int, change func(*v1alpha1.GPUNode)) v1alpha1.GPUNode {
	n := v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(start)}}
	n.Status.Summary = v1alpha1.GPUSummary{GPUs: gpus, Free: gpus, Model: "NVIDIA A100"}
	for i := range gpus {
		n.Status.Devices = append(n.Status.Devices, v1alpha1.GPUDevice{
			UUID: fmt.Sprintf("GPU-%s-%d", name, i), Index: i, Product: "NVIDIA A100", MemoryBytes: 40 << 30, Health: v1alpha1.DeviceHealth{State: "Healthy"},
			Offered: &v1alpha1.DeviceOffer{Resource: "nvidia.com/gpu"},
		})
	}
	if change != nil {
		change(&n)
	}
	return n
}

// held makes a GPU held by pods, given as NAMESPACE/NAME.
func held(d *v1alpha1.GPUDevice, pods ...string) {
	for i, pod := range pods {
		namespace, name, _ := strings.Cut(pod, "/")
		share := 0
		if len(pods) > 1 {
			share = i + 1
		}
		d.Holders = append(d.Holders, v1alpha1.Holder{Kind: "Pod", Namespace: namespace, Pod: name, PodUID: "uid-" + pod, Share: share})
	}
}

func testPod(name string, bound time.Time) corev1.Pod {
	namespace, short, _ := strings.Cut(name, "/")
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: short, UID: types.UID("uid-" + name)},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(bound)}}},
	}
}

// boundOf says when a pod was bound.
func boundOf(pod corev1.Pod) map[string]*metav1.Time {
	return map[string]*metav1.Time{string(pod.UID): BoundAt(&pod)}
}

func readyNode(name string, status corev1.ConditionStatus) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.NewTime(start)}}},
	}
}

func used(bytes float64) v1alpha1.GPUSampleUse { return v1alpha1.GPUSampleUse{MemoryUsedBytes: &bytes} }

// line describes a GPU of a board in a line.
func line(g *v1alpha1.BoardGPU) string {
	text := fmt.Sprint(g.Index)
	device := func(d *v1alpha1.BoardDevice) {
		for _, h := range d.Holders {
			text += fmt.Sprintf(" %s:%s/%s", h.Kind, h.Namespace, h.Name)
			if h.Hidden {
				text += "(hidden)"
			}
			if h.Share > 0 {
				text += fmt.Sprintf("#%d", h.Share)
			}
			if h.Since != nil {
				text += h.Since.UTC().Format("@15:04")
			}
		}
		if d.MemoryUsedBytes != nil {
			text += fmt.Sprintf(" %dGiB", *d.MemoryUsedBytes>>30)
		}
		if d.Idle {
			text += " idle"
		}
		if d.Draining != "" {
			text += " draining"
		}
	}
	device(&g.BoardDevice)
	for i := range g.Parts {
		p := &g.Parts[i]
		text += fmt.Sprintf(" [%s %d+%d/%d", p.Profile, p.Start, p.Size, g.Slices)
		device(&p.BoardDevice)
		text += "]"
	}
	return text
}

func TestGPUs(t *testing.T) {
	zero, half := 0.0, 0.5
	tests := map[string]struct {
		node    v1alpha1.GPUNode
		samples *v1alpha1.GPUSamples
		may     func(string) bool
		want    []string
	}{
		"free": {node: testNode("a", 2, nil), want: []string{"0", "1"}},
		"held, since the pod was bound": {
			node: testNode("a", 2, func(n *v1alpha1.GPUNode) { held(&n.Status.Devices[1], "team/train") }),
			want: []string{"0", "1 Pod:team/train@09:30"},
		},
		"held by a pod that is not known": {
			node: testNode("a", 1, func(n *v1alpha1.GPUNode) { held(&n.Status.Devices[0], "team/other") }),
			want: []string{"0 Pod:team/other"},
		},
		"shared, by share": {
			node: testNode("a", 1, func(n *v1alpha1.GPUNode) {
				held(&n.Status.Devices[0], "team/x", "lab/y")
				n.Status.Devices[0].Offered.Replicas = 4
				slices.Reverse(n.Status.Devices[0].Holders)
			}),
			want: []string{"0 Pod:team/x#1 Pod:lab/y#2"},
		},
		"a claim with pods": {
			node: testNode("a", 1, func(n *v1alpha1.GPUNode) {
				n.Status.Devices[0].Holders = []v1alpha1.Holder{{Kind: "ResourceClaim", Namespace: "team", Claim: "big", Pods: []v1alpha1.HolderPod{{Name: "train", UID: "uid-team/train"}}}}
			}),
			want: []string{"0 ResourceClaim:team/big@09:30"},
		},
		"maintenance": {
			node: testNode("a", 1, func(n *v1alpha1.GPUNode) { n.Status.Devices[0].Holders = []v1alpha1.Holder{{Kind: "Maintenance"}} }),
			want: []string{"0 Maintenance:/"},
		},
		"a namespace whose pods are hidden": {
			node: testNode("a", 2, func(n *v1alpha1.GPUNode) {
				held(&n.Status.Devices[0], "team/train")
				held(&n.Status.Devices[1], "lab/secret")
			}),
			may:  func(namespace string) bool { return namespace == "team" },
			want: []string{"0 Pod:team/train@09:30", "1 Pod:/(hidden)"},
		},
		"measured: used, idle, and a free GPU that computes nothing": {
			node: testNode("a", 3, func(n *v1alpha1.GPUNode) {
				held(&n.Status.Devices[0], "team/train")
				held(&n.Status.Devices[1], "team/train")
			}),
			samples: &v1alpha1.GPUSamples{Items: []v1alpha1.GPUSample{
				{UUID: "GPU-a-0", Utilization: &half, GPUSampleUse: used(20 << 30)},
				{UUID: "GPU-a-1", Utilization: &zero, GPUSampleUse: used(1 << 30)},
				{UUID: "GPU-a-2", Utilization: &zero, GPUSampleUse: used(0)},
			}},
			want: []string{"0 Pod:team/train@09:30 20GiB", "1 Pod:team/train@09:30 1GiB idle", "2 0GiB"},
		},
		"MIG devices by their start, on the slices that the profiles tell": {
			node: testNode("a", 1, func(n *v1alpha1.GPUNode) {
				d := &n.Status.Devices[0]
				d.Offered = nil
				d.MIGProfiles = []v1alpha1.MIGProfile{{Name: "1g.5gb", Size: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}}, {Name: "3g.20gb", Size: 4, Starts: []int{0, 4}}}
				d.MIGDevices = []v1alpha1.MIGDevice{
					{UUID: "MIG-b", Profile: "3g.20gb", Start: 4, Size: 4, Holders: []v1alpha1.Holder{{Kind: "Pod", Namespace: "team", Pod: "train", PodUID: "uid-team/train"}}},
					{UUID: "MIG-a", Profile: "1g.5gb", Start: 0, Size: 1, Offered: &v1alpha1.DeviceOffer{Resource: "nvidia.com/mig-1g.5gb", Draining: "a layout is applied"}},
				}
			}),
			samples: &v1alpha1.GPUSamples{Items: []v1alpha1.GPUSample{{UUID: "GPU-a-0", Devices: []v1alpha1.MIGSample{
				{UUID: "MIG-b", GPUSampleUse: v1alpha1.GPUSampleUse{MemoryUsedBytes: used(3 << 30).MemoryUsedBytes, Active: &zero}},
			}}}},
			want: []string{"0 [1g.5gb 0+1/8 draining] [3g.20gb 4+4/8 Pod:team/train@09:30 3GiB idle]"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			made := Build(&Input{
				Time: start, GPUNodes: []v1alpha1.GPUNode{test.node}, May: test.may, Samples: map[string]*v1alpha1.GPUSamples{"a": test.samples},
				Bound: boundOf(testPod("team/train", start.Add(30*time.Minute))),
			})
			var got []string
			for i := range made.Nodes[0].GPUs {
				got = append(got, line(&made.Nodes[0].GPUs[i]))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestAway(t *testing.T) {
	tests := map[string]struct {
		in   Input
		want string
	}{
		"nothing is known":     {},
		"ready":                {in: Input{Nodes: []corev1.Node{readyNode("a", corev1.ConditionTrue)}, Agents: map[string]bool{"a": true}}},
		"not ready":            {in: Input{Nodes: []corev1.Node{readyNode("a", corev1.ConditionUnknown)}}, want: "the node is not ready since 2026-11-27T09:00:00Z"},
		"no node of this name": {in: Input{Nodes: []corev1.Node{readyNode("b", corev1.ConditionTrue)}}, want: "the cluster has no Node of this name"},
		"no agent":             {in: Input{Nodes: []corev1.Node{readyNode("a", corev1.ConditionTrue)}, Agents: map[string]bool{"b": true}}, want: "no pod of the agent is ready on this node"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			test.in.GPUNodes = []v1alpha1.GPUNode{testNode("a", 1, nil)}
			made := Build(&test.in)
			if got := made.Nodes[0].Away; got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if problem := len(made.Problems) == 1 && strings.HasSuffix(made.Problems[0].Code, "_NOT_READY"); problem != (test.want != "") {
				t.Errorf("got problems %v", made.Problems)
			}
		})
	}
}

// TestManyAway checks that nodes that are away do not hide everything else when there are many.
func TestManyAway(t *testing.T) {
	in := Input{Agents: map[string]bool{"n00": true}}
	for i := range 50 {
		in.GPUNodes = append(in.GPUNodes, testNode(fmt.Sprintf("n%02d", i), 1, func(n *v1alpha1.GPUNode) {
			if i == 30 {
				n.Status.Summary.Unhealthy = 1
			}
		}))
	}
	made := Build(&in)
	want := "49 nodes: no pod of the agent is ready on this node: n01, n02, n03, n04, n05 and 44 more; what is shown of them was written before"
	if len(made.Problems) != 1 || made.Problems[0].Message != want {
		t.Errorf("got problems %+v", made.Problems)
	}
	if len(made.Nodes) != 1 || made.Nodes[0].Name != "n30" || len(made.Groups) != 1 || made.Groups[0].Away != 48 {
		t.Errorf("got nodes %+v, groups %+v", made.Nodes, made.Groups)
	}
}

func TestProblems(t *testing.T) {
	bad := testNode("b", 2, func(n *v1alpha1.GPUNode) {
		n.Status.Devices[1].Health = v1alpha1.DeviceHealth{State: "Unhealthy", Causes: []v1alpha1.Cause{{Code: "XID_79", Message: "the GPU has fallen off the bus", Recover: "reboot the node"}}}
		n.Status.Devices[1].MIGDevices = []v1alpha1.MIGDevice{{UUID: "MIG-x", Health: &v1alpha1.DeviceHealth{State: "Unhealthy", Causes: []v1alpha1.Cause{{Code: "XID_79"}}}}}
		n.Status.Problems = []v1alpha1.Cause{{Code: "SOMETHING", Message: strings.Repeat("long ", 200)}}
	})
	made := Build(&Input{GPUNodes: []v1alpha1.GPUNode{bad, testNode("a", 1, func(n *v1alpha1.GPUNode) {
		n.Status.Problems = []v1alpha1.Cause{{Code: "OTHER", Message: "pod lab/secret and /proc/1 and claim x/y"}}
	})}, May: func(namespace string) bool { return false }})
	var got []string
	for _, p := range made.Problems {
		got = append(got, fmt.Sprintf("%s %s %s %s: %s", p.Severity, p.Node, p.GPU, p.Code, p.Message[:min(len(p.Message), 200)]))
	}
	want := []string{
		"warning a  OTHER: pod " + hiddenName + " and /proc/1 and claim " + hiddenName,
		"warning b  SOMETHING: " + strings.Repeat("long ", 40),
		"warning b GPU-b-1 XID_79: the GPU has fallen off the bus",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestNamespaces checks what is counted for a namespace: a device once for its containers, a replica for each, and idle only where all of
// it was measured.
func TestNamespaces(t *testing.T) {
	zero, half := 0.0, 0.5
	sample := func(uuid string, active *float64) v1alpha1.GPUSample {
		return v1alpha1.GPUSample{UUID: uuid, Utilization: active, GPUSampleUse: used(1 << 30)}
	}
	share := func(namespace string, n int) v1alpha1.Holder {
		return v1alpha1.Holder{Kind: "Pod", Namespace: namespace, Pod: fmt.Sprint("p", n), PodUID: fmt.Sprint(namespace, n), Share: n}
	}
	tests := map[string]struct {
		change  func([]v1alpha1.GPUDevice)
		samples []v1alpha1.GPUSample
		filter  string
		want    []string
	}{
		"not measured": {change: func(d []v1alpha1.GPUDevice) { held(&d[0], "team/a") }, want: []string{"team: 1 GPUs 0 parts 0 shares 1 pods idle -"}},
		"idle": {
			change:  func(d []v1alpha1.GPUDevice) { held(&d[0], "team/a"); held(&d[1], "team/a") },
			samples: []v1alpha1.GPUSample{sample("GPU-a-0", &zero), sample("GPU-a-1", &half)},
			want:    []string{"team: 2 GPUs 0 parts 0 shares 1 pods idle 1"},
		},
		"one of two measured": {
			change:  func(d []v1alpha1.GPUDevice) { held(&d[0], "team/a"); held(&d[1], "team/b"); held(&d[2], "lab/c") },
			samples: []v1alpha1.GPUSample{sample("GPU-a-0", &zero), sample("GPU-a-2", &half)},
			want:    []string{"lab: 1 GPUs 0 parts 0 shares 1 pods idle 0", "team: 2 GPUs 0 parts 0 shares 2 pods idle -"},
		},
		"replicas of a GPU": {
			change: func(d []v1alpha1.GPUDevice) {
				d[0].Offered.Replicas = 4
				d[0].Holders = []v1alpha1.Holder{share("team", 1), share("team", 2), share("lab", 3)}
			},
			want: []string{"lab: 0 GPUs 0 parts 1 shares 1 pods idle -", "team: 0 GPUs 0 parts 2 shares 2 pods idle -"},
		},
		"MIG devices, and replicas of one": {
			change: func(d []v1alpha1.GPUDevice) {
				d[0].MIGDevices = []v1alpha1.MIGDevice{
					{UUID: "MIG-0", Size: 1, Offered: &v1alpha1.DeviceOffer{Replicas: 4}, Holders: []v1alpha1.Holder{share("team", 1), share("team", 2)}},
					{UUID: "MIG-1", Start: 1, Size: 1, Holders: []v1alpha1.Holder{share("team", 0)}},
				}
			},
			want: []string{"team: 0 GPUs 1 parts 2 shares 3 pods idle -"},
		},
		"a claim of many pods, with two devices": {
			change: func(d []v1alpha1.GPUDevice) {
				for i := range 2 {
					d[i].Holders = []v1alpha1.Holder{{Kind: "ResourceClaim", Namespace: "team", Claim: "big", Pods: []v1alpha1.HolderPod{{Name: "a", UID: "1"}, {Name: "b", UID: "2"}}, MorePods: 24}}
				}
			},
			want: []string{"team: 2 GPUs 0 parts 0 shares 26 pods idle -"},
		},
		"a filter": {change: func(d []v1alpha1.GPUDevice) { held(&d[0], "team/a"); held(&d[1], "lab/b") }, filter: "lab", want: []string{"lab: 1 GPUs 0 parts 0 shares 1 pods idle -"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			node := testNode("a", 3, func(n *v1alpha1.GPUNode) { test.change(n.Status.Devices) })
			made := Build(&Input{
				GPUNodes: []v1alpha1.GPUNode{node}, Samples: map[string]*v1alpha1.GPUSamples{"a": {Items: test.samples}}, Filter: v1alpha1.BoardFilter{Namespace: test.filter},
			})
			var got []string
			for _, n := range made.Namespaces {
				idle := "-"
				if n.Idle != nil {
					idle = fmt.Sprint(*n.Idle)
				}
				got = append(got, fmt.Sprintf("%s: %d GPUs %d parts %d shares %d pods idle %s", n.Name, n.GPUs, n.Parts, n.Shares, n.Pods, idle))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestGroups(t *testing.T) {
	var nodes []v1alpha1.GPUNode
	for i := range 52 {
		nodes = append(nodes, testNode(fmt.Sprintf("n%02d", i), 8, func(n *v1alpha1.GPUNode) {
			n.Status.Summary.Held, n.Status.Summary.Free = i%3, 8-i%3
			if i == 7 {
				n.Status.Summary.Unhealthy = 1
			}
			if i == 8 {
				n.Status.Devices[0].MIGDevices = []v1alpha1.MIGDevice{{UUID: "MIG-1", Size: 1, Health: &v1alpha1.DeviceHealth{State: "Unhealthy"}}}
			}
			if i >= 42 {
				n.Status.Summary.Model = "NVIDIA H100"
			}
		}))
	}
	tests := map[string]struct {
		filter v1alpha1.BoardFilter
		want   string
	}{
		"all":                   {want: "2 nodes, groups NVIDIA A100=40 [8:14 7:13 6:13], NVIDIA H100=10 [8:4 7:3 6:3]; 416 GPUs"},
		"a model":               {filter: v1alpha1.BoardFilter{Model: "NVIDIA H100"}, want: "10 nodes, groups ; 80 GPUs"},
		"a model of many nodes": {filter: v1alpha1.BoardFilter{Model: "NVIDIA A100"}, want: "42 nodes, groups ; 336 GPUs"},
		"a node":                {filter: v1alpha1.BoardFilter{Node: "n03"}, want: "1 nodes, groups ; 8 GPUs"},
		"each":                  {filter: v1alpha1.BoardFilter{All: true}, want: "52 nodes, groups ; 416 GPUs"},
		"nothing":               {filter: v1alpha1.BoardFilter{Node: "other"}, want: "0 nodes, groups ; 0 GPUs"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			made := Build(&Input{GPUNodes: nodes, Filter: test.filter})
			var groups []string
			for _, g := range made.Groups {
				var free []string
				for _, f := range g.Free {
					free = append(free, fmt.Sprintf("%d:%d", f.GPUs, f.Nodes))
				}
				groups = append(groups, fmt.Sprintf("%s=%d %v", g.Model, g.Nodes, free))
			}
			if got := fmt.Sprintf("%d nodes, groups %s; %d GPUs", len(made.Nodes), strings.Join(groups, ", "), made.Totals.GPUs); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// TestHidden checks in random clusters that no name of a hidden namespace is in a board, and that the order of the objects is not either.
func TestHidden(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	for range 300 {
		in := randomInput(random)
		in.May = func(namespace string) bool { return !strings.HasPrefix(namespace, "hidden") }
		in.Filter.Namespace = []string{"", "", "team", "hidden-1"}[random.IntN(4)]
		first := encode(t, Build(in))
		if strings.Contains(first, "secret") {
			t.Fatalf("a name of a hidden namespace is shown:\n%s", first)
		}
		random.Shuffle(len(in.GPUNodes), func(i, k int) { in.GPUNodes[i], in.GPUNodes[k] = in.GPUNodes[k], in.GPUNodes[i] })
		if second := encode(t, Build(in)); first != second {
			t.Fatalf("the order of the objects changes the board:\n%s", cmp.Diff(first, second))
		}
	}
}

func encode(t *testing.T, b *v1alpha1.Board) string {
	t.Helper()
	text, err := json.MarshalIndent(b, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func randomInput(random *rand.Rand) *Input {
	in := &Input{Time: start, Bound: map[string]*metav1.Time{}, Reasons: Reasons{Pods: map[string]*v1alpha1.Why{}}}
	namespaces := []string{"team", "hidden-1", "hidden-2"}
	pod := func() string {
		namespace := namespaces[random.IntN(len(namespaces))]
		if strings.HasPrefix(namespace, "hidden") {
			return namespace + fmt.Sprintf("/secret-%d", random.IntN(9))
		}
		return namespace + fmt.Sprintf("/pod-%d", random.IntN(9))
	}
	for i := range 1 + random.IntN(5) {
		in.GPUNodes = append(in.GPUNodes, testNode(fmt.Sprint("n", i), random.IntN(5), func(n *v1alpha1.GPUNode) {
			for k := range n.Status.Devices {
				d := &n.Status.Devices[k]
				for range random.IntN(3) {
					name := pod()
					held(d, name)
					d.Health.Causes = append(d.Health.Causes, v1alpha1.Cause{Code: "ORPHAN", Message: "held by " + name, Recover: "delete pod " + name})
					d.Offered.Draining = name + " ends"
					maps.Copy(in.Bound, boundOf(testPod(name, start)))
				}
				if random.IntN(3) == 0 {
					namespace, name, _ := strings.Cut(pod(), "/")
					d.MIGDevices = []v1alpha1.MIGDevice{{UUID: fmt.Sprint("MIG-", k), Size: 1, Holders: []v1alpha1.Holder{{Kind: "ResourceClaim", Namespace: namespace, Claim: name}}}}
				}
			}
			n.Status.Gate = &v1alpha1.GateStatus{Message: "waits for pod " + pod()}
		}))
	}
	for range random.IntN(4) {
		namespace, name, _ := strings.Cut(pod(), "/")
		in.Waiting = append(in.Waiting, v1alpha1.BoardWaiting{Namespace: namespace, Name: name, Pod: name})
		in.Reasons.Pods[namespace+"/"+name] = &v1alpha1.Why{Sentence: "it waits for pod " + pod(), Changes: []v1alpha1.WhyChange{{Message: "end pod " + pod()}}}
	}
	return in
}

func TestText(t *testing.T) {
	tests := map[string]struct {
		text string
		want string
	}{
		"called a pod":                 {"ends pod other/x and claims (other/y)", "ends pod * and claims (*)"},
		"called a Pod, quoted":         {`Pod "other/x" runs`, `Pod "*" runs`},
		"the word is a part":           {"0pod other/x", "0pod *"},
		"a word with a slash before":   {"a/pod other/x", "a/pod *"},
		"a namespace that holds":       {"n1 runs dev/x", "n1 runs *"},
		"after a node":                 {"n1/dev/x", "*"},
		"after an underscore":          {"_dev/x", "_*"},
		"a path":                       {"/dev/nvidia0 is missing", "/dev/nvidia0 is missing"},
		"a path of a pod":              {"a path of a pod: /var/lib/dev/x", "a path of a pod: /var/lib/dev/x"},
		"a word that ends like it":     {"team/podcast holds 1/2", "team/podcast holds 1/2"},
		"a namespace that is shown":    {"pod team/x, team/y", "pod team/x, team/y"},
		"shown, and a name after it":   {"pod team/x pod dev/y", "pod team/x pod *"},
		"a long text before":           {strings.Repeat("pod ", 30) + "other/x", strings.Repeat("pod ", 30) + "*"},
		"neither a name nor a path":    {"17/32 GiB", "17/32 GiB"},
		"several slashes without name": {"dev//x ///", "* ///"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			node := testNode("n1", 1, func(n *v1alpha1.GPUNode) { held(&n.Status.Devices[0], "dev/secret") })
			b := &builder{
				in:  &Input{GPUNodes: []v1alpha1.GPUNode{node}, May: func(namespace string) bool { return namespace == "team" }},
				may: map[string]bool{},
			}
			if got := b.text(test.text); got != strings.ReplaceAll(test.want, "*", hiddenName) {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// FuzzText checks that a text is bounded, valid, and without hidden names.
func FuzzText(f *testing.F) {
	f.Add("pod hidden/secret-1, claim hidden/secret-2 \xff and /dev/nvidia0")
	f.Add(strings.Repeat("ü", 400))
	f.Add("0pod hidden/secret")
	f.Add("a/pod hidden/secret")
	f.Fuzz(func(t *testing.T, text string) {
		b := &builder{in: &Input{May: func(string) bool { return false }}, may: map[string]bool{}}
		got := b.text(text)
		if n := len([]rune(got)); n > mostText {
			t.Errorf("%d characters", n)
		}
		if strings.Contains(got, "pod hidden/secret") {
			t.Errorf("got %q", got)
		}
	})
}

func BenchmarkBuild(b *testing.B) {
	var nodes []v1alpha1.GPUNode
	for i := range 500 {
		nodes = append(nodes, testNode(fmt.Sprintf("n%03d", i), 8, func(n *v1alpha1.GPUNode) { held(&n.Status.Devices[0], "team/train") }))
	}
	for b.Loop() {
		Build(&Input{GPUNodes: nodes})
	}
}
