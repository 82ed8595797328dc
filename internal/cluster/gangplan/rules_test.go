package gangplan

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestOtherPods checks how many members run on a node that has another pod.
func TestOtherPods(t *testing.T) {
	apart := func(key string, labels map[string]string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
				{TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: labels}},
			}}}
		}
	}
	own, x := map[string]string{"app": "train"}, map[string]string{"app": "x"}
	tests := map[string]struct {
		change func(*corev1.Pod)
		there  map[string]string // labels of the pod that is there
		other  string            // its namespace, if it is another one
		want   int32
	}{
		"no rules":                      {change: func(*corev1.Pod) {}, there: own, want: 99},
		"a port of the host":            {change: func(pod *corev1.Pod) { pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}} }, want: 1},
		"members repel one another":     {change: apart(corev1.LabelHostname, own), want: 1},
		"and one is there":              {change: apart(corev1.LabelHostname, own), there: own, want: 0},
		"another pod is repelled":       {change: apart(corev1.LabelHostname, x), there: x, want: 0},
		"one of another namespace":      {change: apart(corev1.LabelHostname, x), there: x, other: "web", want: 99},
		"another pod is not there":      {change: apart(corev1.LabelHostname, x), want: 99},
		"from racks, which others know": {change: apart("rack", own), there: own, want: 99},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			member, there := pod("member"), pod("there", on("n0"))
			member.Labels, there.Labels = own, test.there
			if test.other != "" {
				there.Namespace = test.other
			}
			test.change(member)
			rules := NewRules(member)
			got := rules.Capacity(&corev1.Node{}, func(corev1.ResourceName) resource.Quantity { return resource.MustParse("99") },
				func(name corev1.ResourceName) bool { return name == corev1.ResourceCPU })
			if rules.Repels() && rules.RepelledBy(there) {
				got = 0
			}
			if got != test.want {
				t.Errorf("%d; want %d", got, test.want)
			}
		})
	}
}
