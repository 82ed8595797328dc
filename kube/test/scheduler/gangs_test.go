package scheduler

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	basemetrics "k8s.io/component-base/metrics"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/placement"
	"github.com/berth-gpu/berth/kube/internal/plugins"
)

// gangLab returns a fake API server with nodes of 4 GPUs, two in a rack: n0 and so on.
func gangLab(t *testing.T, nodes int, objects ...runtime.Object) *lab {
	t.Helper()
	for i := range nodes {
		n := makeNode(fmt.Sprintf("n%d", i))
		n.Labels["topology.kubernetes.io/rack"] = fmt.Sprintf("rack-%d", i/2)
		objects = append(objects, n)
	}
	l := newLab(objects...)
	for i := range nodes {
		l.report(makeGPUNode(fmt.Sprintf("n%d", i), "nvlink", healthy, nil))
	}
	return l
}

// runGangs runs a scheduler with the plugins for gangs.
func (l *lab) runGangs(t *testing.T) (stop func()) {
	t.Helper()
	l.factory = placement.NewFactory(placement.Deps{Register: func(basemetrics.Registerable) error { return nil }})
	nodes, err := l.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range nodes.Items {
		l.report(makeGPUNode(nodes.Items[i].Name, "nvlink", healthy, nil))
	}
	return l.run(t, profileWithPodGroups, plugins.For(l.factory, l.limits))
}

// member returns a member of a gang.
func member(gang string, index, least, gpus int, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := makePod(fmt.Sprintf("%s-%d", gang, index), gpus, 1)
	pod.Labels = map[string]string{"berth.dev/pod-group": gang, "berth.dev/min-member": fmt.Sprint(least)}
	pod.CreationTimestamp = metav1.Now()
	for _, c := range change {
		c(pod)
	}
	return pod
}

func annotated(name, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations[name] = value
	}
}

// create creates the members of a gang.
func (l *lab) create(t *testing.T, gang string, members, least, gpus int, change ...func(*corev1.Pod)) {
	t.Helper()
	for i := range members {
		l.add(t, member(gang, i, least, gpus, change...))
	}
}

func (l *lab) add(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if _, err := l.client.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// placed returns the node of each pod that has one, by the name of the pod.
func (l *lab) placed(t *testing.T) map[string]string {
	t.Helper()
	list, err := l.client.CoreV1().Pods("ml").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	nodes := map[string]string{}
	for i := range list.Items {
		if node := list.Items[i].Spec.NodeName; node != "" {
			nodes[list.Items[i].Name] = node
		}
	}
	return nodes
}

// nodesOf returns the nodes of the members of a gang, ascending.
func nodesOf(placed map[string]string, gang string) []string {
	var nodes []string
	for _, name := range slices.Sorted(maps.Keys(placed)) {
		if strings.HasPrefix(name, gang+"-") {
			nodes = append(nodes, placed[name])
		}
	}
	return nodes
}

// await waits until a function returns an empty text, which says what lacks.
func await(t *testing.T, limit time.Duration, lacks func() string) {
	t.Helper()
	end := time.Now().Add(limit)
	for {
		text := lacks()
		if text == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after %v: %s", limit, text)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// all waits until a gang has so many members on nodes.
func (l *lab) all(t *testing.T, gang string, members int) []string {
	t.Helper()
	var nodes []string
	await(t, 20*time.Second, func() string {
		if nodes = nodesOf(l.placed(t), gang); len(nodes) == members {
			return ""
		}
		return fmt.Sprintf("gang %s has %d members on nodes; want %d", gang, len(nodes), members)
	})
	return nodes
}

// why returns the message of the condition PodScheduled of a pod, empty if it has none.
func (l *lab) why(t *testing.T, pod string) string {
	t.Helper()
	got, err := l.client.CoreV1().Pods("ml").Get(t.Context(), pod, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range got.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return string(c.Reason) + ": " + c.Message
		}
	}
	return ""
}

// TestGangs checks where gangs go.
func TestGangs(t *testing.T) {
	tests := map[string]struct {
		members int
		least   int
		gpus    int
		change  func(*corev1.Pod)
		want    int // members on nodes
		racks   int // 0 is any number
		nodes   int
	}{
		"a node":                  {members: 4, least: 4, gpus: 1, want: 4, racks: 1, nodes: 1},
		"a rack":                  {members: 4, least: 4, gpus: 2, want: 4, racks: 1, nodes: 2},
		"two racks":               {members: 3, least: 3, gpus: 4, want: 3, racks: 2, nodes: 3},
		"a required rack":         {members: 2, least: 2, gpus: 4, change: annotated("berth.dev/topology-required", "rack"), want: 2, racks: 1, nodes: 2},
		"surplus":                 {members: 9, least: 4, gpus: 2, want: 8, racks: 2, nodes: 4},
		"segments":                {members: 4, least: 4, gpus: 4, change: segments, want: 4, racks: 2, nodes: 4},
		"without GPUs":            {members: 4, least: 4, want: 4},
		"unconstrained":           {members: 4, least: 4, gpus: 1, change: annotated("kueue.x-k8s.io/podset-unconstrained-topology", "true"), want: 4},
		"one on each node":        {members: 4, least: 4, gpus: 1, change: apart, want: 4, nodes: 4},
		"nodes with a label only": {members: 2, least: 2, gpus: 2, change: func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "n3"} }, want: 2, nodes: 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := gangLab(t, 4)
			l.runGangs(t)
			change := test.change
			if change == nil {
				change = func(*corev1.Pod) {}
			}
			l.create(t, "train", test.members, test.least, test.gpus, change)
			nodes := l.all(t, "train", test.want)
			used, racks := map[string]bool{}, map[byte]bool{}
			for _, node := range nodes {
				used[node] = true
				racks[(node[1]-'0')/2] = true
			}
			if test.nodes > 0 && len(used) != test.nodes || test.racks > 0 && len(racks) != test.racks {
				t.Errorf("the members are on %v; want %d nodes in %d racks", nodes, test.nodes, test.racks)
			}
		})
	}
}

func segments(pod *corev1.Pod) {
	annotated("berth.dev/topology-segment", "rack")(pod)
	annotated("berth.dev/topology-segment-size", "2")(pod)
}

// apart keeps the members of a gang on different nodes.
func apart(pod *corev1.Pod) {
	pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"berth.dev/pod-group": pod.Labels["berth.dev/pod-group"]}},
	}}}}
}

// TestGangWaits: members wait until enough of them exist, and are no unschedulable pods until then.
func TestGangWaits(t *testing.T) {
	l := gangLab(t, 2)
	l.runGangs(t)
	l.create(t, "train", 3, 4, 1)
	l.schedule(t, makePod("single", 1, 1))
	if placed := l.placed(t); len(placed) != 1 {
		t.Fatalf("pods on nodes: %v; want the single one", placed)
	}
	for i := range 3 {
		if text := l.why(t, fmt.Sprintf("train-%d", i)); text != "" {
			t.Errorf("member %d has the condition %q; want none", i, text)
		}
	}
	gated := member("train", 3, 4, 1, func(pod *corev1.Pod) {
		pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}}
	})
	l.add(t, gated)
	l.schedule(t, makePod("another", 1, 1))
	if placed := l.placed(t); len(placed) != 2 {
		t.Fatalf("pods on nodes: %v; want two single ones", placed)
	}
	gated = gated.DeepCopy()
	gated.Spec.SchedulingGates, gated.ResourceVersion = nil, "2" // The scheduler ignores an update of the same version.
	if _, err := l.client.CoreV1().Pods("ml").Update(t.Context(), gated, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	l.all(t, "train", 4)
}

// TestGangRefused: a gang that does not fit holds nothing, each member says why, and it is placed when there is capacity.
func TestGangRefused(t *testing.T) {
	l := gangLab(t, 2)
	l.runGangs(t)
	l.schedule(t, makePod("single", 1, 1))
	began := time.Now()
	l.create(t, "train", 2, 2, 4)
	const want = "Unschedulable: 0/2 nodes are available: berth: gang ml/train waits as a whole: 2 members have to fit together, and at most 1 do"
	await(t, 10*time.Second, func() string {
		for i := range 2 {
			if text := l.why(t, fmt.Sprintf("train-%d", i)); !strings.HasPrefix(text, want) {
				return fmt.Sprintf("member %d: %s", i, text)
			}
		}
		return ""
	})
	t.Logf("refused after %v", time.Since(began))
	l.schedule(t, makePod("another", 4, 1))
	if err := l.client.CoreV1().Pods("ml").Delete(t.Context(), "single", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := l.client.CoreV1().Pods("ml").Delete(t.Context(), "another", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	l.all(t, "train", 2)
}

// TestGangLevels: the sentence has the names of levels.
func TestGangLevels(t *testing.T) {
	l := gangLab(t, 4)
	l.runGangs(t)
	l.create(t, "train", 3, 3, 4, annotated("berth.dev/topology-required", "rack"))
	const want = "Unschedulable: 0/4 nodes are available: berth: gang ml/train waits as a whole: 3 members have to fit in one rack, and at most 2 do (rack-0); " +
		"for the next one the nearest node is n0: 0 of its nvidia.com/gpu are free, the pod requests 4; it would fit in the whole fleet."
	await(t, 10*time.Second, func() string {
		if text := l.why(t, "train-0"); text != want {
			return text
		}
		return ""
	})
}

// TestGangsCompete: of gangs that do not fit together, one is placed whole and the other not at all.
func TestGangsCompete(t *testing.T) {
	l := gangLab(t, 4)
	for i := range 3 {
		for _, gang := range []string{"a", "b"} {
			l.add(t, member(gang, i, 3, 4))
		}
	}
	l.runGangs(t)
	await(t, 10*time.Second, func() string {
		placed := l.placed(t)
		a, b := len(nodesOf(placed, "a")), len(nodesOf(placed, "b"))
		if a == 3 && b == 0 || a == 0 && b == 3 {
			return ""
		}
		return fmt.Sprintf("a has %d members on nodes, b %d", a, b)
	})
	l.schedule(t, makePod("single", 4, 1))
}

// TestGangBindingFails: a gang of which a member cannot be bound at first is completed, and nothing takes its place until then.
func TestGangBindingFails(t *testing.T) {
	l := gangLab(t, 2)
	var failures atomic.Int64
	l.refuse = func(b *corev1.Binding) error {
		if b.Name == "train-1" && failures.Add(1) <= 2 {
			return errors.New("the API server is away")
		}
		return nil
	}
	l.runGangs(t)
	l.create(t, "train", 2, 2, 4)
	await(t, 10*time.Second, func() string {
		if failures.Load() > 0 {
			return ""
		}
		return "no binding failed"
	})
	l.add(t, makePod("thief", 4, 1))
	l.all(t, "train", 2)
	if placed := l.placed(t); len(placed) != 2 {
		t.Errorf("pods on nodes: %v; want the gang", placed)
	}
}

// TestGangOtherPlugins: nodes that plugins refuse of which the plan knows nothing are left out of the next plan.
func TestGangOtherPlugins(t *testing.T) {
	l := gangLab(t, 6)
	for i := range 3 {
		pod := makePod(fmt.Sprintf("enemy-%d", i), 0, 1)
		pod.Labels = map[string]string{"enemy": "true"}
		pod.Spec.NodeName = fmt.Sprintf("n%d", i)
		l.add(t, pod)
	}
	l.runGangs(t)
	l.create(t, "train", 3, 3, 4, func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"enemy": "true"}},
		}}}}
	})
	nodes := l.all(t, "train", 3)
	slices.Sort(nodes)
	if !slices.Equal(nodes, []string{"n3", "n4", "n5"}) {
		t.Errorf("the members are on %v", nodes)
	}
}

// TestGangRestart: a scheduler that starts while a gang is bound in part completes it.
func TestGangRestart(t *testing.T) {
	l := gangLab(t, 4)
	for i := range 3 {
		pod := member("train", i, 3, 4)
		if i == 0 {
			pod.Spec.NodeName = "n2"
		}
		l.add(t, pod)
	}
	l.runGangs(t)
	nodes := l.all(t, "train", 3)
	if !slices.Contains(nodes, "n3") {
		t.Errorf("the members are on %v; want n3, which is in the rack of n2", nodes)
	}
}

// TestGangProblem: a gang with bad input waits with one event, and delays nothing.
func TestGangProblem(t *testing.T) {
	l := gangLab(t, 2)
	l.runGangs(t)
	l.create(t, "bad", 3, -1, 1)
	l.create(t, "good", 3, 3, 1)
	l.all(t, "good", 3)
	if placed := nodesOf(l.placed(t), "bad"); len(placed) != 0 {
		t.Errorf("members of the bad gang are on %v", placed)
	}
}

// TestGangSurplusLater: members above the least number are placed when there is capacity.
func TestGangSurplusLater(t *testing.T) {
	l := gangLab(t, 2)
	l.runGangs(t)
	l.schedule(t, makePod("single", 4, 1))
	l.create(t, "train", 2, 1, 4)
	l.all(t, "train", 1)
	if err := l.client.CoreV1().Pods("ml").Delete(t.Context(), "single", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	l.all(t, "train", 2)
}
