package gangs

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// occupied is a node with one pod.
type occupied struct {
	nodeInfo
	pod *v1.Pod
}

func (n occupied) GetPods() []fwk.PodInfo { return []fwk.PodInfo{podInfo{pod: n.pod}} }

type podInfo struct {
	fwk.PodInfo
	pod *v1.Pod
}

func (p podInfo) GetPod() *v1.Pod { return p.pod }

// TestRoom checks how many members other rules than those of package fleet let run on a node that has a pod.
func TestRoom(t *testing.T) {
	apart := func(key string, labels map[string]string) func(*v1.Pod) {
		return func(pod *v1.Pod) {
			pod.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{
				{TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: labels}},
			}}}
		}
	}
	own := pod(0, 1, "").Labels
	tests := map[string]struct {
		change func(*v1.Pod)
		there  map[string]string // labels of the pod that is there
		want   int32
	}{
		"no rules":                      {func(*v1.Pod) {}, own, 99},
		"a port of the host":            {func(pod *v1.Pod) { pod.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: 80}} }, nil, 1},
		"members repel one another":     {apart(v1.LabelHostname, own), nil, 1},
		"and one is there":              {apart(v1.LabelHostname, own), own, 0},
		"another pod is repelled":       {apart(v1.LabelHostname, map[string]string{"app": "x"}), map[string]string{"app": "x"}, 0},
		"another pod is not there":      {apart(v1.LabelHostname, map[string]string{"app": "x"}), nil, 99},
		"from racks, which others know": {apart("rack", own), own, 99},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			member := pod(1, 1, "")
			test.change(member)
			there := pod(2, 1, "n0")
			there.Labels = test.there
			node := occupied{nodeInfo{node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0"}}, all: amounts{cpu: 1 << 20, gpus: 1 << 20}}, there}
			rules := newRules(member)
			if got := rules.room(node, func(name v1.ResourceName) bool { return name == v1.ResourceCPU }); got != test.want {
				t.Errorf("room for %d; want %d", got, test.want)
			}
		})
	}
}
