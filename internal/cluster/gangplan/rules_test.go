package gangplan

import (
	"math"
	"slices"
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
	port := func(pod *corev1.Pod) { pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}} }
	own, x := map[string]string{"app": "train"}, map[string]string{"app": "x"}
	tests := map[string]struct {
		change func(*corev1.Pod)
		there  map[string]string // labels of the pod that is there
		other  string            // its namespace, if it is another one
		port   int32             // the port of the host that it uses
		want   int32
	}{
		"no rules":             {change: func(*corev1.Pod) {}, there: own, want: 99},
		"a port of the host":   {change: port, want: 1},
		"a port that is used":  {change: port, port: 80, other: "web"},
		"another port is used": {change: port, port: 81, want: 1},
		"a port of a sidecar": {change: func(pod *corev1.Pod) {
			pod.Spec.InitContainers = []corev1.Container{{Ports: []corev1.ContainerPort{{HostPort: 80}}, RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}}
		}, want: 1},
		"a port of an init container": {change: func(pod *corev1.Pod) {
			pod.Spec.InitContainers = []corev1.Container{{Ports: []corev1.ContainerPort{{HostPort: 80}}}}
		}, want: 99},
		"members repel one another":     {change: apart(corev1.LabelHostname, own), want: 1},
		"all pods are repelled":         {change: apart(corev1.LabelHostname, nil)},
		"and one is there":              {change: apart(corev1.LabelHostname, own), there: own, want: 0},
		"another pod is repelled":       {change: apart(corev1.LabelHostname, x), there: x, want: 0},
		"one of another namespace":      {change: apart(corev1.LabelHostname, x), there: x, other: "web", want: 99},
		"another pod is not there":      {change: apart(corev1.LabelHostname, x), want: 99},
		"from racks, which others know": {change: apart("rack", own), there: own, want: 99},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			member, there := cpuPod("member"), cpuPod("there", on("n0"))
			member.Labels, there.Labels = own, test.there
			if test.other != "" {
				there.Namespace = test.other
			}
			if test.port > 0 {
				there.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: test.port, Protocol: corev1.ProtocolTCP}}
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

// tooLarge has a pod request more than a number holds.
func tooLarge(pod *corev1.Pod) {
	pod.Spec.Containers[0].Resources.Requests["rdma/hca"] = *resource.NewScaledQuantity(10, resource.Exa)
}

// TestSignature: members that differ in what the rules look at are of two classes.
func TestSignature(t *testing.T) {
	repels := func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": "master"}}},
		}}}
	}
	tests := map[string]struct {
		both func(*corev1.Pod)
		one  func(*corev1.Pod)
		want bool
	}{
		"a label":                 {func(*corev1.Pod) {}, func(pod *corev1.Pod) { pod.Labels = map[string]string{"role": "master"} }, true},
		"one repels pods like it": {repels, func(pod *corev1.Pod) { pod.Labels = map[string]string{"role": "master"} }, false},
		"requests of the whole pod": {func(*corev1.Pod) {}, func(pod *corev1.Pod) {
			pod.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("32")}}
		}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			a, b := cpuPod("a"), cpuPod("b")
			test.both(a)
			test.both(b)
			test.one(a)
			first, err := Signature(a)
			if err != nil {
				t.Fatal(err)
			}
			if second, err := Signature(b); err != nil || (first == second) != test.want {
				t.Errorf("%s and %s, %v; want equal ones: %v", first, second, err, test.want)
			}
		})
	}
}

// TestShared checks what members of several classes take from the same node.
func TestShared(t *testing.T) {
	request := func(name corev1.ResourceName, amount string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Spec.Containers[0].Resources.Requests[name] = resource.MustParse(amount) }
	}
	ports := func(list ...int32) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			for _, port := range list {
				pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, corev1.ContainerPort{HostPort: port})
			}
		}
	}
	q := Requirements{}
	for _, member := range []*corev1.Pod{
		cpuPod("a", request("rdma/hca", "2"), ports(80, 81)), cpuPod("b", tooLarge, request("x/only", "1"), ports(80)), cpuPod("c", ports(82)),
	} {
		q.Classes = append(q.Classes, Class{Rules: NewRules(member)})
	}
	shared := q.Shared()
	if got, want := shared["rdma/hca"], []int64{2, math.MaxInt64, 0}; !slices.Equal(got, want) {
		t.Errorf("%d are requested; want %d", got, want)
	}
	if got, want := shared[corev1.ResourcePods], []int64{1, 1, 1}; !slices.Equal(got, want) || shared["x/only"] != nil {
		t.Errorf("%v; want pods %v, and nothing that one class requests", shared, want)
	}
	if got := q.SharedPorts(); len(got) != 1 || !slices.Equal(got[0], []int64{1, 1, 0}) {
		t.Errorf("ports %v; want one of the first two", got)
	}
}
