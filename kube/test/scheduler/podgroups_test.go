package scheduler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	basemetrics "k8s.io/component-base/metrics"
	"k8s.io/kubernetes/pkg/features"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/placement"
	"github.com/berth-gpu/berth/kube/internal/plugins"
)

// profileWithPodGroups is the profile of the chart.
const profileWithPodGroups = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
percentageOfNodesToScore: 100
profiles:
- schedulerName: berth-scheduler
  plugins:
    multiPoint:
      enabled: [{name: BerthPlacement, weight: 10000}, {name: BerthGangs}, {name: BerthPreemption}, {name: BerthBinding}, {name: BerthPodGroups, weight: 2000000}]
      disabled: [{name: DefaultPreemption}, {name: TopologyPlacementGenerator}]
    queueSort: {enabled: [{name: BerthGangs}], disabled: [{name: PrioritySort}]}
    preFilter: {enabled: [{name: BerthPodGroups}]}
    postFilter: {enabled: [{name: BerthPlacement}]}
    podGroupPostFilter: {enabled: [{name: BerthPreemption}]}
    bind: {enabled: [{name: BerthGangs}, {name: BerthBinding}]}
    score:
      disabled: [{name: NodeResourcesFit}, {name: NodeResourcesBalancedAllocation}]
`

// profileOfKubernetes has the default plugins, and none of Berth's.
const profileOfKubernetes = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: [{schedulerName: berth-scheduler}]
`

// mode is which feature gates are on.
type mode string

const (
	off      mode = "gates off"
	on       mode = "without topology"
	topology mode = "with topology"
)

func (m mode) set(t testing.TB) {
	featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate, featuregatetesting.FeatureOverrides{
		features.GenericWorkload: m != off, features.TopologyAwareWorkloadScheduling: m == topology,
	})
}

// rackLab returns a fake API server with nodes of 4 GPUs, a number of them in a rack: n00 and so on.
func rackLab(nodes, rack int, objects ...runtime.Object) *lab {
	for i := range nodes {
		n := makeNode(fmt.Sprintf("n%02d", i))
		n.Labels["topology.kubernetes.io/rack"] = fmt.Sprintf("rack-%d", i/rack)
		objects = append(objects, n)
	}
	l := newLab(objects...)
	for i := range nodes {
		l.report(makeGPUNode(fmt.Sprintf("n%02d", i), "nvlink", healthy, nil))
	}
	return l
}

// runPodGroups runs a scheduler with a profile and all plugins.
func (l *lab) runPodGroups(t testing.TB, profile string) (stop func()) {
	t.Helper()
	return l.run(t, profile, plugins.For(l.factory, l.limits))
}

// podGroup returns a PodGroup with its pods.
func podGroup(name string, members, least, gpus int, change ...func(*corev1.Pod)) []runtime.Object {
	g := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID("group-" + name)}}
	g.Spec.SchedulingPolicy.Basic = &schedulingv1beta1.BasicSchedulingPolicy{}
	if least > 0 {
		g.Spec.SchedulingPolicy = schedulingv1beta1.PodGroupSchedulingPolicy{Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: int32(least)}}
	}
	objects := []runtime.Object{g}
	for i := range members {
		pod := makePod(fmt.Sprintf("%s-%d", name, i), gpus, 1)
		pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &g.Name}
		pod.CreationTimestamp = metav1.Now()
		for _, c := range change {
			c(pod)
		}
		objects = append(objects, pod)
	}
	return objects
}

// inRack requires that all members of a group are in one rack.
func inRack(objects []runtime.Object) []runtime.Object {
	objects[0].(*schedulingv1beta1.PodGroup).Spec.SchedulingConstraints = &schedulingv1beta1.PodGroupSchedulingConstraints{
		Topology: []schedulingv1beta1.TopologyConstraint{{Key: "topology.kubernetes.io/rack"}},
	}
	return objects
}

// prior gives a group a higher priority than that of other pods.
func prior(objects []runtime.Object) []runtime.Object {
	high := int32(100)
	objects[0].(*schedulingv1beta1.PodGroup).Spec.Priority = &high
	for _, o := range objects[1:] {
		o.(*corev1.Pod).Spec.Priority = &high
	}
	return objects
}

// runsOn returns a pod that runs on a node.
func runsOn(name, node string, gpus int) *corev1.Pod {
	pod := makePod(name, gpus, 1)
	pod.Spec.NodeName = node
	return pod
}

// where returns the nodes of the members of a group in the order of their index, "-" for none.
func (l *lab) where(t *testing.T, group string, members int) string {
	t.Helper()
	placed, nodes := l.placed(t), []string{}
	for i := range members {
		node := placed[fmt.Sprintf("%s-%d", group, i)]
		if node == "" {
			node = "-"
		}
		nodes = append(nodes, node)
	}
	return strings.Join(nodes, " ")
}

// condition returns the reason and the message of a PodGroup's condition PodGroupInitiallyScheduled.
func (l *lab) condition(t *testing.T, group string) string {
	t.Helper()
	g, err := l.client.SchedulingV1beta1().PodGroups("ml").Get(t.Context(), group, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range g.Status.Conditions {
		if c.Type == schedulingv1beta1.PodGroupInitiallyScheduled {
			return c.Reason + ": " + c.Message
		}
	}
	return ""
}

// TestPodGroupPlaces checks on which nodes the members of groups are. There are four racks of four nodes with four GPUs each.
func TestPodGroupPlaces(t *testing.T) {
	busy := func(nodes ...string) (objects []runtime.Object) {
		for _, node := range nodes {
			objects = append(objects, runsOn("busy-"+node, node, 1))
		}
		return objects
	}
	tests := map[string]struct {
		busy  []runtime.Object
		group []runtime.Object
		want  map[mode]string
	}{
		"the rack that is free": {busy("n00", "n05", "n14"), podGroup("train", 4, 4, 4), map[mode]string{on: "n08 n09 n10 n11", topology: "n08 n09 n10 n11"}},
		"required":              {busy("n00", "n05", "n14"), inRack(podGroup("train", 4, 4, 4)), map[mode]string{topology: "n08 n09 n10 n11"}},
		"neighbours": {busy("n00", "n05", "n14"), podGroup("train", 8, 8, 2), map[mode]string{
			on: "n08 n08 n09 n09 n10 n10 n11 n11", topology: "n08 n08 n09 n09 n10 n10 n11 n11",
		}},
		"the rack with least left": {busy("n00", "n01", "n05", "n14"), podGroup("train", 2, 2, 4), map[mode]string{on: "n02 n03", topology: "n02 n03"}},
		"one node": {busy("n00", "n01", "n02", "n04", "n05", "n06", "n07", "n08", "n09", "n10", "n11", "n12", "n13", "n14", "n15"), podGroup("train", 4, 4, 1),
			map[mode]string{on: "n03 n03 n03 n03", topology: "n03 n03 n03 n03"}},
		"ports": {busy("n00", "n01", "n02", "n03", "n04", "n09"), podGroup("train", 4, 4, 1, func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 8080, ContainerPort: 8080}}
		}), map[mode]string{on: "n00 n01 n02 n03", topology: "n00 n01 n02 n03"}},
		"surplus waits": {busy("n00", "n05", "n14"), inRack(podGroup("train", 6, 4, 4)), map[mode]string{topology: "n08 n09 n10 n11 - -"}},
		"basic":         {busy("n00", "n05", "n14"), podGroup("train", 4, 0, 4), map[mode]string{on: "n08 n09 n10 n11", topology: "n08 n09 n10 n11"}},
		"annotation":    {busy("n00", "n05", "n14"), podGroup("train", 4, 4, 4, annotated("berth.dev/topology-required", "rack")), map[mode]string{on: "n08 n09 n10 n11", topology: "n08 n09 n10 n11"}},
		"segments":      {busy("n00", "n05", "n06", "n08", "n14"), podGroup("train", 4, 4, 4, segments), map[mode]string{on: "n01 n02 n04 n07", topology: "n01 n02 n04 n07"}},
		"surplus segment waits": {busy("n00", "n01", "n04", "n05", "n06", "n08", "n09", "n10", "n12", "n13"), podGroup("train", 6, 4, 4, segments),
			map[mode]string{on: "n02 n03 n14 n15 n07 -", topology: "n02 n03 n14 n15 n07 -"}},
		"the member there": {append(busy("n05"), podGroup("train", 1, 3, 4, func(pod *corev1.Pod) { pod.Name, pod.UID, pod.Spec.NodeName = "train-9", "uid-9", "n13" })[1]), inRack(podGroup("train", 2, 3, 4)),
			map[mode]string{topology: "n12 n15"}},
	}
	for _, m := range []mode{on, topology} {
		for name, test := range tests {
			want := test.want[m]
			if want == "" {
				continue
			}
			t.Run(string(m)+"/"+name, func(t *testing.T) {
				m.set(t)
				var objects []runtime.Object
				for _, o := range slices.Concat(test.busy, test.group) {
					objects = append(objects, o.DeepCopyObject())
				}
				l := rackLab(16, 4, objects...)
				l.runPodGroups(t, profileWithPodGroups)
				members := len(test.group) - 1
				await(t, 15*time.Second, func() string {
					if got := l.where(t, "train", members); got != want {
						return fmt.Sprintf("the members are on %s, want %s; %s", got, want, l.condition(t, "train"))
					}
					return ""
				})
				if last := fmt.Sprintf("train-%d", members-1); strings.HasSuffix(want, "-") {
					reason := "berth: gang ml/train has its least number of members, 4, and there is no capacity for more"
					if strings.Contains(name, "segment") {
						reason += " where their segments have to be, each of 2 members in one rack"
					}
					await(t, 5*time.Second, func() string {
						if got := l.why(t, last); !strings.Contains(got, reason) {
							return fmt.Sprintf("the condition of %s is %q, want %q", last, got, reason)
						}
						return ""
					})
				}
			})
		}
	}
}

// TestPodGroupGatesOff: without the gates the plugin does nothing, and pods are placed one by one.
func TestPodGroupGatesOff(t *testing.T) {
	off.set(t)
	l := rackLab(4, 2)
	l.runPodGroups(t, profileWithPodGroups)
	for _, o := range podGroup("train", 3, 4, 4)[1:] {
		l.add(t, o.(*corev1.Pod))
	}
	l.all(t, "train", 3) // Fewer than the least number.
	l.schedule(t, makePod("single", 4, 1))
}

// TestPodGroupRefused: a group that does not fit is refused at once, with the reason in its condition and in those of its pods, and is
// placed when there is capacity.
func TestPodGroupRefused(t *testing.T) {
	tests := map[string]struct {
		mode  mode
		group []runtime.Object
		want  string
	}{
		"with topology":          {topology, podGroup("train", 4, 4, 4), "berth: gang ml/train waits as a whole: 4 members have to fit together, and at most 3 do"},
		"required":               {topology, inRack(podGroup("train", 2, 2, 4)), "berth: gang ml/train waits as a whole: 2 members have to fit in one rack, and at most 1 do (rack-0)"},
		"without topology":       {on, podGroup("train", 4, 4, 4), "berth: gang ml/train waits as a whole: 4 members have to fit together, and at most 3 do"},
		"nothing can end for it": {topology, prior(podGroup("train", 5, 5, 4)), "berth: gang ml/train waits as a whole: 5 members have to fit together, and at most 3 do"},
		"bad annotation":         {topology, podGroup("train", 4, 4, 1, annotated("berth.dev/topology-segment-size", "many")), `berth: annotation berth.dev/topology-segment-size of pod train-0 is "many", not a whole number`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			test.mode.set(t)
			objects := append(test.group, runsOn("busy", "n00", 1))
			if name == "required" {
				objects = append(objects, runsOn("busy-2", "n02", 1))
			}
			l := rackLab(4, 2, objects...)
			l.runPodGroups(t, profileWithPodGroups)
			await(t, 5*time.Second, func() string {
				if got := l.condition(t, "train"); !strings.HasPrefix(got, "Unschedulable: ") || !strings.Contains(got, test.want) {
					return fmt.Sprintf("the condition of the group is %q, want %q", got, test.want)
				}
				if got := l.why(t, "train-0"); !strings.Contains(got, test.want) {
					return fmt.Sprintf("the condition of the first pod is %q, want %q", got, test.want)
				}
				return ""
			})
			if got := len(l.placed(t)); got != len(objects)-len(test.group) {
				t.Errorf("%d pods are on nodes; want none of the group", got)
			}
			if name == "bad annotation" || name == "nothing can end for it" {
				return
			}
			if err := l.client.CoreV1().Pods("ml").Delete(t.Context(), "busy", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			l.all(t, "train", len(test.group)-1)
		})
	}
}

// TestPodGroupHeld: a place that is held for a gang of labels is none for a group.
func TestPodGroupHeld(t *testing.T) {
	topology.set(t)
	on := func(node string) func(*corev1.Pod) { return func(pod *corev1.Pod) { pod.Spec.NodeName = node } }
	l := rackLab(2, 2, member("gang", 0, 2, 4, on("n00")), member("gang", 1, 2, 4, on("n01")))
	l.limits.Look = 50 * time.Millisecond
	l.runPodGroups(t, profileWithPodGroups)
	time.Sleep(2 * time.Second) // Many looks of BerthGangs: only gangs that it has seen whole keep the place of a member.
	if err := l.client.CoreV1().Pods("ml").Delete(t.Context(), "gang-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond) // It learns of the end of a pod beside the scheduler's own cache.
	objects := podGroup("train", 1, 1, 4)
	if _, err := l.client.SchedulingV1beta1().PodGroups("ml").Create(t.Context(), objects[0].(*schedulingv1beta1.PodGroup), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	l.add(t, objects[1].(*corev1.Pod))
	await(t, 5*time.Second, func() string {
		const want = "berth: gang ml/train waits as a whole: 1 members have to fit together, and at most 0 do"
		if got := l.condition(t, "train"); !strings.Contains(got, want) {
			return fmt.Sprintf("the condition of the group is %q, want %q", got, want)
		}
		return ""
	})
	l.add(t, member("gang", 1, 2, 4))
	l.all(t, "gang", 2)
}

// TestPodGroupComposite: groups of a composite group are placed in its domain.
func TestPodGroupComposite(t *testing.T) {
	featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate, featuregatetesting.FeatureOverrides{
		features.GenericWorkload: true, features.TopologyAwareWorkloadScheduling: true, features.CompositePodGroup: true,
	})
	parent := &schedulingv1alpha3.CompositePodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "all", UID: "composite"}}
	parent.Spec.SchedulingPolicy.Gang = &schedulingv1alpha3.CompositeGangSchedulingPolicy{MinGroupCount: 2}
	parent.Spec.SchedulingConstraints = &schedulingv1alpha3.CompositePodGroupSchedulingConstraints{
		Topology: []schedulingv1alpha3.TopologyConstraint{{Key: "topology.kubernetes.io/rack"}},
	}
	objects := []runtime.Object{parent, runsOn("busy-0", "n00", 1), runsOn("busy-1", "n05", 1), runsOn("busy-2", "n14", 1)}
	for _, name := range []string{"left", "right"} {
		made := podGroup(name, 2, 2, 4)
		made[0].(*schedulingv1beta1.PodGroup).Spec.ParentCompositePodGroupName = &parent.Name
		objects = append(objects, made...)
	}
	l := rackLab(16, 4, objects...)
	l.runPodGroups(t, profileWithPodGroups)
	nodes := append(l.all(t, "left", 2), l.all(t, "right", 2)...)
	slices.Sort(nodes)
	if want := []string{"n08", "n09", "n10", "n11"}; !slices.Equal(nodes, want) {
		t.Errorf("the members are on %v, want %v", nodes, want)
	}
}

// TestPodGroupOtherPlugins: where a plugin refuses nodes of the plan of which the planner knows nothing, another placement is used.
func TestPodGroupOtherPlugins(t *testing.T) {
	for _, m := range []mode{on, topology} {
		t.Run(string(m), func(t *testing.T) {
			m.set(t)
			objects := podGroup("train", 3, 3, 4, func(pod *corev1.Pod) {
				pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
					TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"enemy": "true"}},
				}}}}
			})
			for i := range 3 {
				pod := runsOn(fmt.Sprintf("enemy-%d", i), fmt.Sprintf("n%02d", 2*i), 0)
				pod.Labels = map[string]string{"enemy": "true"}
				objects = append(objects, pod)
			}
			l := rackLab(6, 6, objects...)
			l.runPodGroups(t, profileWithPodGroups)
			nodes := l.all(t, "train", 3)
			slices.Sort(nodes)
			if !slices.Equal(nodes, []string{"n01", "n03", "n05"}) {
				t.Errorf("the members are on %v", nodes)
			}
		})
	}
}

// TestPodGroupPreempts: pods of a lower priority end for a group, which then gets their nodes.
func TestPodGroupPreempts(t *testing.T) {
	for _, m := range []mode{on, topology} {
		t.Run(string(m), func(t *testing.T) {
			m.set(t)
			objects := prior(podGroup("train", 4, 4, 4))
			for i := range 8 {
				objects = append(objects, runsOn(fmt.Sprintf("low-%d", i), fmt.Sprintf("n%02d", i), 1))
			}
			l := rackLab(8, 4, objects...)
			l.runPodGroups(t, profileWithPodGroups)
			l.all(t, "train", 4)
			if left := len(nodesOf(l.placed(t), "low")); left != 4 {
				t.Errorf("%d of 8 pods of a lower priority are left; want 4", left)
			}
		})
	}
}

// TestPodGroupDeterminism: equal clusters give equal placements.
func TestPodGroupDeterminism(t *testing.T) {
	topology.set(t)
	var first string
	for run := range 20 {
		objects := inRack(podGroup("train", 4, 4, 2))
		for i := range 6 {
			objects = append(objects, runsOn(fmt.Sprintf("busy-%d", i), fmt.Sprintf("n%02d", 3*i), 2))
		}
		l := rackLab(24, 4, objects...)
		stop := l.runPodGroups(t, profileWithPodGroups)
		l.all(t, "train", 4)
		got := l.where(t, "train", 4)
		stop()
		if first == "" {
			first = got
		}
		if got != first {
			t.Fatalf("run %d: the members are on %s; in the first run on %s", run, got, first)
		}
	}
	t.Log(first)
}

// TestPodGroupPredictions: the members of a group on one node are predicted to get the GPUs that the kubelet gives them in the order in
// which they are bound, although each is reserved twice.
func TestPodGroupPredictions(t *testing.T) {
	for _, m := range []mode{on, topology} {
		t.Run(string(m), func(t *testing.T) {
			m.set(t)
			l := rackLab(1, 1, podGroup("train", 3, 3, 1)...)
			registry := basemetrics.NewKubeRegistry()
			l.factory = placement.NewFactory(placement.Deps{Register: registry.Register})
			l.report(makeGPUNode("n00", "pcie", healthy, nil))
			l.runPodGroups(t, profileWithPodGroups)
			l.all(t, "train", 3)
			l.report(makeGPUNode("n00", "pcie", healthy, map[int]string{0: "uid-train-0", 1: "uid-train-1", 2: "uid-train-2"}))
			counts := map[string]float64{}
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				for _, metric := range f.GetMetric() {
					for _, label := range metric.GetLabel() {
						if f.GetName() == "berth_scheduler_predictions_total" {
							counts[label.GetValue()] = metric.GetCounter().GetValue()
						}
					}
				}
			}
			if counts["hit"] != 3 {
				t.Errorf("predictions: %v; want 3 that hit", counts)
			}
		})
	}
}

// TestPodGroupStock: with Berth's plugin off, TopologyPlacementGenerator places the groups.
func TestPodGroupStock(t *testing.T) {
	topology.set(t)
	for name, profile := range map[string]string{
		"Kubernetes": profileOfKubernetes,
		"Berth without the plugin": strings.NewReplacer(", {name: BerthPodGroups, weight: 2000000}", "", ", {name: TopologyPlacementGenerator}", "",
			"    preFilter: {enabled: [{name: BerthPodGroups}]}\n", "").Replace(profileWithPodGroups),
		"not for placements": strings.NewReplacer(", {name: TopologyPlacementGenerator}", "", "    preFilter:", "    placementGenerate: {disabled: [{name: BerthPodGroups}]}\n    preFilter:").Replace(profileWithPodGroups),
	} {
		t.Run(name, func(t *testing.T) {
			l := rackLab(4, 2, inRack(podGroup("train", 2, 2, 4))...)
			l.runPodGroups(t, profile)
			nodes := l.all(t, "train", 2)
			if (nodes[0] < "n02") != (nodes[1] < "n02") {
				t.Errorf("the members are on %v; want one rack", nodes)
			}
		})
	}
}

// TestPodGroupDifferential: of random groups on random clusters, Berth places all that Kubernetes' own algorithm places.
func TestPodGroupDifferential(t *testing.T) {
	for _, m := range []mode{on, topology} {
		t.Run(string(m), func(t *testing.T) {
			m.set(t)
			random := rand.New(rand.NewPCG(5, 6))
			counts := map[string]int{}
			for number := range 24 {
				objects, members := randomPodGroup(random, m)
				stock := attempt(t, profileOfKubernetes, members, objects)
				ours := attempt(t, profileWithPodGroups, members, objects)
				counts[fmt.Sprintf("stock %v, ours %v", stock, ours)]++
				if stock && !ours {
					t.Errorf("case %d: Kubernetes places the group, and Berth does not: %+v", number, objects)
				}
			}
			t.Log(counts)
			if counts["stock true, ours true"] < 4 || counts["stock false, ours false"] < 2 {
				t.Errorf("%v; want some that fit, and some that do not", counts)
			}
		})
	}
}

// randomPodGroup returns a group with pods that run, and the number of its members. The nodes are those of rackLab(6, 2).
func randomPodGroup(random *rand.Rand, m mode) ([]runtime.Object, int) {
	members := 2 + random.IntN(3)
	gpus := []int{1, 2, 4}[random.IntN(3)]
	rule := random.IntN(5)
	objects := podGroup("train", members, members, gpus, func(pod *corev1.Pod) {
		switch rule {
		case 0:
			apart(pod)
			pod.Labels = map[string]string{"berth.dev/pod-group": ""}
		case 1:
			pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "train"}},
			}}
			pod.Labels = map[string]string{"app": "train"}
		case 2:
			pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 8080, ContainerPort: 8080}}
		}
	})
	if m == topology && random.IntN(2) == 0 {
		inRack(objects)
	}
	for i := range 6 {
		if n := random.IntN(5); n > 0 && random.IntN(3) > 0 {
			objects = append(objects, runsOn(fmt.Sprintf("busy-%d", i), fmt.Sprintf("n%02d", i), n))
		}
	}
	return objects, members
}

// attempt tells whether a scheduler places all members of a group.
func attempt(t *testing.T, profile string, members int, objects []runtime.Object) bool {
	t.Helper()
	var copies []runtime.Object
	for _, o := range objects {
		copies = append(copies, o.DeepCopyObject())
	}
	l := rackLab(6, 2, copies...)
	stop := l.runPodGroups(t, profile)
	defer stop()
	placed := false
	await(t, 15*time.Second, func() string {
		nodes := nodesOf(l.placed(t), "train")
		placed = len(nodes) == members
		if placed || strings.HasPrefix(l.condition(t, "train"), "Unschedulable") {
			return ""
		}
		return "the group is neither placed nor refused"
	})
	if !placed {
		if n := len(slices.Collect(maps.Values(l.placed(t)))); n > len(objects)-1-members {
			t.Errorf("%d pods are on nodes, some of a group that was refused", n)
		}
	}
	return placed
}
