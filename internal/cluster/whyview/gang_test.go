package whyview

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/core/why"
)

// trainGang makes pods the members of a gang and returns its values.
func trainGang(t *testing.T, o *Objects, minimum int, pods ...*corev1.Pod) why.GangInput {
	t.Helper()
	for _, pod := range pods {
		pod.Labels = map[string]string{gangplan.PodGroup: "train", gangplan.MinMember: fmt.Sprint(minimum)}
		if pod.Spec.NodeName != "" {
			o.Pods = append(o.Pods, *pod)
		}
	}
	view := gangplan.Build(gangplan.Key{Namespace: "ml", Name: "train"}, pods, nil, gangplan.DefaultLevels())
	in, err := BuildGang(o, &view, nil, gangplan.DefaultLevels(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func waitingPod(name string, options ...func(*corev1.Pod)) *corev1.Pod {
	pod := podOf(name, "", "1")
	for _, o := range options {
		o(&pod)
	}
	return &pod
}

func onNode(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

// TestRulesAgree compares the blocks of nodes with the rules by which the scheduler's plugin plans gangs.
func TestRulesAgree(t *testing.T) {
	affinity := func(operator corev1.NodeSelectorOperator, values ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: operator, Values: values}}}},
			}}}
		}
	}
	pods := map[string]func(*corev1.Pod){
		"any":      func(*corev1.Pod) {},
		"selects":  func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"pool": "a"} },
		"affinity": affinity(corev1.NodeSelectorOpIn, "a", "b"), "not in": affinity(corev1.NodeSelectorOpNotIn, "a"), "exists": affinity(corev1.NodeSelectorOpExists),
		"tolerates one": func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: "k", Operator: corev1.TolerationOpEqual, Value: "v", Effect: corev1.TaintEffectNoSchedule}}
		},
		"tolerates all": func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} },
		"model":         func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"nvidia.com/gpu.product": "B200"} },
	}
	taint := func(key string, effect corev1.TaintEffect) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: "v", Effect: effect})
		}
	}
	nodes := map[string]func(*corev1.Node){
		"plain": func(*corev1.Node) {}, "cordoned": func(n *corev1.Node) { n.Spec.Unschedulable = true }, "pool a": func(n *corev1.Node) { n.Labels["pool"] = "a" },
		"pool c": func(n *corev1.Node) { n.Labels["pool"] = "c" }, "no schedule": taint("k", corev1.TaintEffectNoSchedule), "no execute": taint("k", corev1.TaintEffectNoExecute),
		"other taint": taint("x", corev1.TaintEffectNoSchedule), "prefers not": taint("k", corev1.TaintEffectPreferNoSchedule),
		"not ready":     taint(corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule),
		"another model": func(n *corev1.Node) { n.Labels["nvidia.com/gpu.product"] = "B200" },
	}
	open, closed := 0, 0
	for podName, podOption := range pods {
		for nodeName, nodeOption := range nodes {
			t.Run(podName+" on "+nodeName, func(t *testing.T) {
				o := fullCluster(1)
				o.Pods, o.GPUNodes = nil, nil
				nodeOption(&o.Nodes[0])
				pod := waitingPod("train-0", podOption)
				in := trainGang(t, o, 1, pod)
				rules := gangplan.NewRules(pod)
				capacity := rules.Capacity(&o.Nodes[0], func(corev1.ResourceName) resource.Quantity { return resource.MustParse("9") }, func(name corev1.ResourceName) bool { return name != corev1.ResourcePods })
				class := &in.Classes[0]
				refused := len(class.Nodes[0].Blocks) > 0 || !class.Pod.Requests[0].Models.Allows(class.Nodes[0].Model)
				if refused != (capacity == 0) {
					t.Errorf("blocks %+v, models %s; the plugin lets %d members run", class.Nodes[0].Blocks, class.Pod.Requests[0].Models, capacity)
				}
				if refused {
					closed++
				} else {
					open++
				}
			})
		}
	}
	if open == 0 || closed == 0 {
		t.Errorf("%d pairs are open and %d closed; want some of each", open, closed)
	}
}

// TestModelNotLabelled: pods select the model of a node by its label. Where there is none, accepting the model that the GPUNode names does
// not help, and requiring none does.
func TestModelNotLabelled(t *testing.T) {
	selects := func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"nvidia.com/gpu.product": "B200"} }
	for labelled, want := range []string{"did not require a model of GPUs", "accepted the model H100"} {
		t.Run(fmt.Sprintf("%d labelled", labelled), func(t *testing.T) {
			o := fullCluster(1)
			o.Pods = nil
			delete(o.Nodes[0].Labels, "nvidia.com/gpu.product")
			if labelled > 0 {
				o.Nodes[0].Labels["nvidia.com/gpu.product"] = "H100"
			}
			o.GPUNodes[0].Status.Summary.Model = "NVIDIA H100"
			for d := range o.GPUNodes[0].Status.Devices {
				o.GPUNodes[0].Status.Devices[d].Holders = nil
			}
			answer := why.ExplainGang(trainGang(t, o, 2, waitingPod("train-0", selects), waitingPod("train-1", selects)))
			if answer.Code != why.WrongModel || len(answer.Changes) == 0 || answer.Changes[0].Text != "If its members "+want+", the gang would fit on node-000." {
				t.Errorf("%s %s, changes %+v; want the first to be %q", answer.Code, answer.Sentence, answer.Changes, want)
			}
		})
	}
}

func TestClassesOfGang(t *testing.T) {
	large := func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"pool": "a"} }
	var many []*corev1.Pod
	for i := range why.MaxClasses + 1 {
		many = append(many, waitingPod(fmt.Sprintf("train-%d", i), func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"pool": fmt.Sprint(i)} }))
	}
	tests := map[string]struct {
		pods    []*corev1.Pod
		minimum int
		want    string
		classes int
		stop    why.Code
	}{
		"equal ones":                         {pods: []*corev1.Pod{waitingPod("train-0"), waitingPod("train-1")}, minimum: 2, want: "0 0", classes: 1},
		"two kinds":                          {pods: []*corev1.Pod{waitingPod("train-0", large), waitingPod("train-1")}, minimum: 2, want: "0 1", classes: 2},
		"those with a node are of the class": {pods: []*corev1.Pod{waitingPod("train-0"), waitingPod("train-1", onNode("node-000")), waitingPod("train-2", onNode("node-001"))}, minimum: 3, want: "0@node-000 0@node-001 0", classes: 1},
		"those with a node are unlike":       {pods: []*corev1.Pod{waitingPod("train-0"), waitingPod("train-1", large, onNode("node-001"))}, minimum: 2, want: "1@node-001 0", classes: 2},
		"a node that is gone":                {pods: []*corev1.Pod{waitingPod("train-0"), waitingPod("train-1", onNode("gone"))}, minimum: 2, want: "0", classes: 1},
		"too many kinds":                     {pods: many, minimum: 2, stop: why.GangKinds},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			in := trainGang(t, fullCluster(3), test.minimum, test.pods...)
			var words []string
			placed := 0
			for _, m := range in.Members {
				text := fmt.Sprint(m.Class)
				if m.Node != "" {
					text += "@" + m.Node
					placed++
				}
				words = append(words, text)
			}
			if got := strings.Join(words, " "); got != test.want || len(in.Classes) != test.classes || in.Placed != placed || in.Stop.Code != test.stop {
				t.Errorf("%s, %d classes, %d with a node, %q; want %s, %d, %d, %q", got, len(in.Classes), in.Placed, in.Stop.Code, test.want, test.classes, placed, test.stop)
			}
		})
	}
}

func TestContinues(t *testing.T) {
	at := func(second int64) metav1.Time { return metav1.Time{Time: time.Unix(second, 0)} }
	bound := func(p *corev1.Pod) {
		p.Spec.NodeName = "node-000"
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: at(20)}}
	}
	created := func(second int64) func(*corev1.Pod) { return func(p *corev1.Pod) { p.CreationTimestamp = at(second) } }
	tests := map[string]struct {
		pods []*corev1.Pod
		want string
	}{
		"a member takes the place of another": {pods: []*corev1.Pod{waitingPod("train-0", bound), waitingPod("train-1", created(30))}, want: "The gang has lost members: 1 of at least 2 have nodes and go on, and 1 waits for the place of others."},
		"placed in part":                      {pods: []*corev1.Pod{waitingPod("train-0", bound), waitingPod("train-1", created(10))}, want: "The gang is placed in part: 1 of at least 2 members have nodes."},
		"when it was bound is not known":      {pods: []*corev1.Pod{waitingPod("train-0", onNode("node-000")), waitingPod("train-1", created(30))}, want: "The gang is placed in part: 1 of at least 2 members have nodes."},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			answer := why.ExplainGang(trainGang(t, fullCluster(2), 2, test.pods...))
			if answer.Code != why.GangInPart || !strings.HasPrefix(answer.Sentence, test.want) {
				t.Errorf("%s %s; want %s", answer.Code, answer.Sentence, test.want)
			}
		})
	}
}

// TestGangOrder checks that the order of the objects changes nothing.
func TestGangOrder(t *testing.T) {
	text := func(o *Objects, members ...*corev1.Pod) string {
		a := why.ExplainGang(trainGang(t, o, 2, members...))
		return fmt.Sprintf("%s %s %+v %+v %+v %+v", a.Code, a.Sentence, *a.Gang, a.Groups, a.Changes, a.Notes)
	}
	o := fullCluster(4)
	o.Pods = slices.DeleteFunc(o.Pods, func(p corev1.Pod) bool { return strings.HasSuffix(p.Name, "-3") })
	for i := range o.GPUNodes {
		o.GPUNodes[i].Status.Devices[3].Holders = nil
	}
	want := text(o, waitingPod("train-0"), waitingPod("train-1", func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Limits["nvidia.com/gpu"] = resource.MustParse("4") }))
	slices.Reverse(o.Nodes)
	slices.Reverse(o.Pods)
	slices.Reverse(o.GPUNodes)
	if got := text(o, waitingPod("train-1", func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Limits["nvidia.com/gpu"] = resource.MustParse("4") }), waitingPod("train-0")); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// TestCommandsOfGroup: the commands for a group of a LeaderWorkerSet leave the other groups alone.
func TestCommandsOfGroup(t *testing.T) {
	pod := waitingPod("serve-3", func(p *corev1.Pod) {
		p.Labels = map[string]string{
			gangplan.PodGroup: "serve", gangplan.MinMember: "1", gangplan.GroupIndex: "3", "leaderworkerset.sigs.k8s.io/name": "serve",
		}
		p.Annotations = map[string]string{"leaderworkerset.sigs.k8s.io/size": "2"}
	})
	key, _ := gangplan.KeyOf(pod)
	view := gangplan.Build(key, []*corev1.Pod{pod}, nil, gangplan.DefaultLevels())
	const pods = "pods -n ml -l berth.dev/pod-group=serve,leaderworkerset.sigs.k8s.io/group-index=3"
	got := commandsOf(&view)
	if want := "kubectl get " + pods; got.Show != want {
		t.Errorf("got  %s\nwant %s", got.Show, want)
	}
	if want := "kubectl label " + pods + " --overwrite berth.dev/min-member=" + why.Value; got.Minimum != want {
		t.Errorf("got  %s\nwant %s", got.Minimum, want)
	}
}
