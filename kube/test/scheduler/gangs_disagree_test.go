package scheduler

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestGangDisagree: where a Node offers fewer GPUs than its GPUNode lists, a gang gets those that are offered, and the others as soon as
// the Node offers them.
func TestGangDisagree(t *testing.T) {
	offer := func(t *testing.T, l *lab, gpus int64) {
		t.Helper()
		node, err := l.client.CoreV1().Nodes().Get(t.Context(), "n0", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		node.Status.Allocatable = node.Status.Allocatable.DeepCopy()
		node.Status.Allocatable[corev1.ResourceName(gpuResource)] = *resource.NewQuantity(gpus, resource.DecimalSI)
		node.ResourceVersion = fmt.Sprint(gpus)
		if _, err := l.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for name, members := range map[string]int{"as many as are offered": 6, "as many as there are": 8} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := gangLab(t, 2)
			offer(t, l, 2)
			defer l.runGangs(t)()
			l.create(t, "train", members, members, 1)
			if members == 8 {
				await(t, 20*time.Second, func() string {
					if l.why(t, "train-0") == "" {
						return "nothing is said of the gang"
					}
					return ""
				})
				offer(t, l, 4)
			}
			on := map[string]int{}
			for _, node := range l.all(t, "train", members) {
				on[node]++
			}
			if on["n1"] != 4 || on["n0"] != members-4 {
				t.Errorf("the members are on %v", on)
			}
		})
	}
}

// TestGangRefusedLate: a node that a filter refuses to a member, which the planner does not know, is left out of the next plan, and the
// nodes of members that were reserved before are not.
func TestGangRefusedLate(t *testing.T) {
	for bad := range 4 {
		t.Run(fmt.Sprintf("n%d", bad), func(t *testing.T) {
			l := gangLab(t, 4)
			other := makePod("other", 0, 1)
			other.Spec.NodeName = fmt.Sprintf("n%d", bad)
			term := corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"berth.dev/pod-group": "train"}}}
			other.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}}
			l.add(t, other)
			l.runGangs(t)
			l.create(t, "train", 3, 3, 4)
			if nodes := l.all(t, "train", 3); slices.Contains(nodes, other.Spec.NodeName) {
				t.Errorf("the gang is on %v", nodes)
			}
		})
	}
}
