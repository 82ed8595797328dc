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
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/core/why"
)

func quantities(cpu, memory, gpus string) corev1.ResourceList {
	return corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory), "nvidia.com/gpu": resource.MustParse(gpus), "pods": resource.MustParse("110")}
}

func podOf(name, node, gpus string) corev1.Pod {
	list := quantities("4", "16Gi", gpus)
	delete(list, "pods")
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Limits: list, Requests: list}}}},
	}
}

// fullCluster has nodes of 8 GPUs, of which pods have all but one.
func fullCluster(nodes int) *Objects {
	o := &Objects{Now: time.Unix(1_800_000_000, 0)}
	for i := range nodes {
		name := fmt.Sprintf("node-%03d", i)
		o.Nodes = append(o.Nodes, corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"nvidia.com/gpu.product": "A100"}},
			Status:     corev1.NodeStatus{Allocatable: quantities("96", "1Ti", "8")},
		})
		g := v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for k := range 8 {
			d := v1alpha1.GPUDevice{UUID: fmt.Sprintf("GPU-%d-%d", i, k), Index: k, Health: v1alpha1.DeviceHealth{State: "Healthy"}, Offered: &v1alpha1.DeviceOffer{Resource: "nvidia.com/gpu"}}
			if k < 7 {
				pod := podOf(fmt.Sprintf("p-%d-%d", i, k), name, "1")
				o.Pods = append(o.Pods, pod)
				d.Holders = []v1alpha1.Holder{{Kind: "Pod", PodUID: string(pod.UID)}}
			}
			g.Status.Devices = append(g.Status.Devices, d)
			row := slices.Repeat([]string{"NV12"}, 8)
			row[k] = "X"
			g.Status.Topology = append(g.Status.Topology, strings.Join(row, " "))
		}
		o.GPUNodes = append(o.GPUNodes, g)
	}
	return o
}

// BenchmarkWhy measures the answer about a pod from the decoded objects of 500 nodes and 3,500 pods.
func BenchmarkWhy(b *testing.B) {
	o, pod := fullCluster(500), podOf("waits", "", "4")
	for b.Loop() {
		if answer := why.Explain(Build(o, &pod, nil)); answer.Code != why.Scattered || len(answer.Changes) < 3 {
			b.Fatalf("%+v", answer)
		}
	}
}

// gangOf is a gang of so many members of 8 GPUs each, every second one of which has half of the CPU where there are two kinds.
func gangOf(o *Objects, members, minimum, kinds int) why.GangInput {
	var pods []*corev1.Pod
	for i := range members {
		pod := podOf(fmt.Sprintf("train-%d", i), "", "8")
		pod.Labels = map[string]string{gangplan.PodGroup: "train", gangplan.MinMember: fmt.Sprint(minimum)}
		if i%kinds > 0 {
			pod.Spec.Containers[0].Resources.Limits["cpu"] = resource.MustParse("2")
		}
		pods = append(pods, &pod)
	}
	key := gangplan.Key{Namespace: "ml", Name: "train"}
	view := gangplan.Build(key, pods, nil, gangplan.DefaultLevels())
	in, err := BuildGang(o, &view, nil, gangplan.DefaultLevels(), nil)
	if err != nil {
		panic(err)
	}
	return in
}

// BenchmarkWhyGang measures the answer about a gang that does not fit: of 10 members of 8 GPUs on 500 nodes of which pods have 7 of 8 GPUs,
// on 500 nodes of which the largest has 4 GPUs, of more members than there are nodes, and of members of two kinds.
func BenchmarkWhyGang(b *testing.B) {
	small := fullCluster(500)
	small.Pods = nil
	for i := range small.Nodes {
		small.Nodes[i].Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("4")
		g := &small.GPUNodes[i].Status
		g.Devices, g.Topology = g.Devices[:4], nil
		for k := range g.Devices {
			g.Devices[k].Holders = nil
		}
	}
	for _, bench := range []struct {
		name    string
		objects *Objects
		members int
		kinds   int
		want    why.Code
	}{
		{"full", fullCluster(500), 10, 1, why.Scattered},
		{"small nodes", small, 10, 1, why.FewGPUs},
		{"more than there are", fullCluster(500), 501, 1, why.FewGPUs},
		{"two kinds", fullCluster(500), 10, 2, why.Scattered},
	} {
		b.Run(bench.name, func(b *testing.B) {
			for b.Loop() {
				if answer := why.ExplainGang(gangOf(bench.objects, bench.members, bench.members, bench.kinds)); answer.Code != bench.want {
					b.Fatalf("%s; want %s", answer.Code, bench.want)
				}
			}
		})
	}
}

// TestOrder checks that the order of the objects changes nothing.
func TestOrder(t *testing.T) {
	o, pod := fullCluster(3), podOf("waits", "", "4")
	want := fmt.Sprintf("%+v", why.Explain(Build(o, &pod, nil)))
	slices.Reverse(o.Nodes)
	slices.Reverse(o.Pods)
	slices.Reverse(o.GPUNodes)
	if got := fmt.Sprintf("%+v", why.Explain(Build(o, &pod, nil))); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
