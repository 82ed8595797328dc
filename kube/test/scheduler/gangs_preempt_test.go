package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangs"
)

// priority gives a pod a priority.
func priority(value int32) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.Priority = &value }
}

// onNode puts a pod on a node.
func onNode(node string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.NodeName = node }
}

// holder returns a pod of no gang on a node.
func holder(name, node string, gpus int, value int32, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := runsOn(name, node, gpus)
	pod.Spec.Priority = &value
	for _, c := range change {
		c(pod)
	}
	return pod
}

// left returns the pods that exist, but for those of a gang, ascending.
func (l *lab) left(t *testing.T, gang string) string {
	t.Helper()
	list, err := l.client.CoreV1().Pods("ml").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range list.Items {
		if pod := &list.Items[i]; pod.Labels["berth.dev/pod-group"] != gang {
			names = append(names, pod.Name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// TestGangPreempts checks which pods end for a gang of the priority 10, on nodes with 4 GPUs of which two are in a rack.
func TestGangPreempts(t *testing.T) {
	small := func(node string, value int32) (list []runtime.Object) {
		for i := range 4 {
			list = append(list, holder(fmt.Sprintf("small-%s-%d", node, i), node, 1, value))
		}
		return list
	}
	of := func(gang string, least int, nodes ...string) (list []runtime.Object) {
		for i, node := range nodes {
			list = append(list, member(gang, i, least, 4, priority(1), onNode(node)))
		}
		return list
	}
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "budget"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}},
	}
	app := func(pod *corev1.Pod) { pod.Labels = map[string]string{"app": "a"} }
	// On each node a pod has the GPUs, and another one none.
	var pairs []runtime.Object
	for i := range 4 {
		node := fmt.Sprintf("n%d", i)
		pairs = append(pairs, holder("gpus-"+node, node, 4, 1), holder("none-"+node, node, 0, 1))
	}
	rack := annotated("berth.dev/topology-required", "rack")
	tests := map[string]struct {
		objects []runtime.Object
		members int
		gpus    int // 0 is 4
		pods    int // that a node may have, 0 for as many as they are
		change  func(*corev1.Pod)
		want    string // the pods that are left, "all" for all
		waits   bool
	}{
		"the fewest pods": {objects: slices.Concat(small("n0", 1), small("n1", 1), []runtime.Object{holder("a", "n2", 4, 1), holder("b", "n3", 4, 1)}), members: 2,
			want: "small-n0-0 small-n0-1 small-n0-2 small-n0-3 small-n1-0 small-n1-1 small-n1-2 small-n1-3"},
		"some of a node": {objects: slices.Concat(small("n0", 1), small("n1", 20), small("n2", 20), small("n3", 20)), members: 2, gpus: 1,
			want: "small-n0-0 small-n0-1 small-n1-0 small-n1-1 small-n1-2 small-n1-3 small-n2-0 small-n2-1 small-n2-2 small-n2-3 small-n3-0 small-n3-1 small-n3-2 small-n3-3"},
		"the lowest priority": {objects: slices.Concat(small("n0", 1), small("n1", 1), []runtime.Object{holder("a", "n2", 4, 2), holder("b", "n3", 4, 2)}), members: 2, want: "a b"},
		"none, since too few of them are of a lower priority": {objects: []runtime.Object{holder("a", "n0", 4, 1), holder("b", "n1", 4, 10), holder("c", "n2", 4, 1), holder("d", "n3", 4, 11)},
			members: 3, want: "all", waits: true},
		"none, since a rack is required": {objects: []runtime.Object{holder("a", "n0", 4, 1), holder("b", "n1", 4, 10), holder("c", "n2", 4, 1), holder("d", "n3", 4, 11)},
			members: 2, want: "all", waits: true, change: rack},
		"none, since the gang never preempts": {objects: slices.Concat(of("other", 1, "n0", "n1", "n2", "n3")), members: 2, want: "all", waits: true,
			change: func(pod *corev1.Pod) { pod.Spec.PreemptionPolicy = new(corev1.PreemptNever) }},
		"none, since the nodes have too few pods left then": {objects: pairs, members: 8, pods: 2, want: "all", waits: true,
			change: func(pod *corev1.Pod) {
				if strings.ContainsAny(pod.Name[len("train-"):], "1357") {
					delete(pod.Spec.Containers[0].Resources.Limits, "nvidia.com/gpu")
					delete(pod.Spec.Containers[0].Resources.Requests, "nvidia.com/gpu")
				}
			}},
		"none, since it fits":                            {objects: []runtime.Object{holder("a", "n0", 4, 1), holder("b", "n1", 4, 1)}, members: 2, want: "all"},
		"a gang ends as a whole":                         {objects: of("other", 4, "n0", "n1", "n2", "n3"), members: 1, want: ""},
		"the surplus of a gang, the highest index first": {objects: of("other", 2, "n0", "n1", "n2", "n3"), members: 1, want: "other-0 other-1 other-2"},
		"a pod rather than a gang":                       {objects: append(of("other", 3, "n0", "n1", "n2"), holder("a", "n3", 4, 1)), members: 1, want: "other-0 other-1 other-2"},
		"pods that no budget protects": {objects: []runtime.Object{budget, holder("a", "n0", 4, 1, app), holder("b", "n1", 4, 5), holder("c", "n2", 4, 1, app), holder("d", "n3", 4, 5)},
			members: 2, want: "a c"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := gangLab(t, 4, test.objects...)
			if test.pods > 0 {
				l.grow(t, test.pods)
			}
			before := l.left(t, "train")
			var mu sync.Mutex
			said := map[string]bool{}
			l.client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
				if patch := action.(clienttesting.PatchAction); strings.Contains(string(patch.GetPatch()), "DisruptionTarget") {
					mu.Lock()
					said[patch.GetName()] = true
					mu.Unlock()
				}
				return false, nil, nil
			})
			l.limits = gangs.Limits{Look: 50 * time.Millisecond}
			l.runGangs(t)
			change := test.change
			if change == nil {
				change = func(*corev1.Pod) {}
			}
			if test.gpus == 0 {
				test.gpus = 4
			}
			l.create(t, "train", test.members, test.members, test.gpus, priority(10), change)
			if test.want == "all" {
				test.want = before
			}
			if test.waits {
				await(t, 10*time.Second, func() string {
					if why := l.why(t, "train-0"); !strings.Contains(why, "waits as a whole") {
						return "the gang is not refused: " + why
					}
					return ""
				})
				time.Sleep(300 * time.Millisecond)
			} else {
				l.all(t, "train", test.members)
			}
			if got := l.left(t, "train"); got != test.want {
				t.Errorf("left are %q; want %q", got, test.want)
			}
			mu.Lock()
			defer mu.Unlock()
			if ended := len(strings.Fields(before)) - len(strings.Fields(test.want)); len(said) != ended {
				t.Errorf("%d pods have the condition DisruptionTarget, and %d were to end", len(said), ended)
			}
		})
	}
}
