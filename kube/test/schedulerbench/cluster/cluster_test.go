package cluster

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/load"
)

func TestObjectsAgree(t *testing.T) {
	tests := map[string]struct {
		node     load.Node
		wantHeld int
	}{
		"free":    {node: load.Node{GPUs: 8}},
		"small":   {node: load.Node{GPUs: 4}},
		"in use":  {node: load.Node{GPUs: 8, Running: []load.Pod{{GPUs: 1}, {GPUs: 4}}}, wantHeld: 5},
		"full":    {node: load.Node{GPUs: 8, Running: []load.Pod{{GPUs: 8}}}, wantHeld: 8},
		"labeled": {node: load.Node{GPUs: 8, Labels: map[string]string{load.RackLabel: "r"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var running []*corev1.Pod
			for i, p := range tc.node.Running {
				running = append(running, runningPod(7, i, p))
			}
			n, g := node(7, tc.node), gpuNode(7, tc.node, running)
			gpus := n.Status.Allocatable[Resource]
			if n.Name != g.Name || gpus.Value() != int64(tc.node.GPUs) || len(g.Status.Devices) != tc.node.GPUs {
				t.Errorf("Node %s has %s GPUs, GPUNode %s has %d, want %d", n.Name, gpus.String(), g.Name, len(g.Status.Devices), tc.node.GPUs)
			}
			held := 0
			for _, d := range g.Status.Devices {
				held += len(d.Holders)
			}
			if s := g.Status.Summary; s.GPUs != tc.node.GPUs || s.Held != held || s.Free != s.GPUs-held || held != tc.wantHeld {
				t.Errorf("%d GPUs are held and the summary is %+v, want %d", held, s, tc.wantHeld)
			}
			for _, p := range running {
				if p.Spec.NodeName != n.Name {
					t.Errorf("pod %s runs on %s, want %s", p.Name, p.Spec.NodeName, n.Name)
				}
			}
			topology, err := gpu.ParseTopology(g.Status.Topology)
			if err != nil {
				t.Fatal(err)
			}
			if last := topology[0][tc.node.GPUs-1]; len(topology) != tc.node.GPUs || last.Letters() != "NV12" {
				t.Errorf("%d rows, link %q; want %d rows and NV12", len(topology), last.Letters(), tc.node.GPUs)
			}
			if got, want := n.Labels[load.RackLabel], tc.node.Labels[load.RackLabel]; got != want || n.Labels[corev1.LabelHostname] != n.Name {
				t.Errorf("labels %v, want the rack %q and the host name", n.Labels, want)
			}
		})
	}
}

func TestPods(t *testing.T) {
	first, tenth := pod(0, load.Pod{GPUs: 8, Cores: 32, MemoryGiB: 128}, "s"), pod(10, load.Pod{Cores: 1, MemoryGiB: 2}, "s")
	if second := pod(2, load.Pod{}, "s"); first.Name >= second.Name || second.Name >= tenth.Name {
		t.Errorf("the names %q, %q and %q do not sort by turn", first.Name, second.Name, tenth.Name)
	}
	requests := first.Spec.Containers[0].Resources.Requests
	if got := requests[Resource]; got.Value() != 8 {
		t.Errorf("%s GPUs, want 8", got.String())
	}
	if got := requests[corev1.ResourceMemory]; got.String() != "128Gi" {
		t.Errorf("memory %s, want 128Gi", got.String())
	}
	if _, asks := tenth.Spec.Containers[0].Resources.Requests[Resource]; asks {
		t.Error("a pod without GPUs asks for them")
	}
}

func TestJoin(t *testing.T) {
	name := "g"
	tests := map[string]struct {
		gang load.Gang
		form GangForm
		// want are those of the pod.
		wantLabels      map[string]string
		wantAnnotations map[string]string
		wantGroup       *corev1.PodSchedulingGroup
	}{
		"Berth's labels": {gang: load.Gang{Name: name, Pods: 8},
			wantLabels: map[string]string{"app": "bench", "berth.dev/pod-group": name, "berth.dev/min-member": "8"}},
		"Berth's labels, a rack": {gang: load.Gang{Name: name, Pods: 4, TopologyKey: load.RackLabel},
			wantLabels:      map[string]string{"app": "bench", "berth.dev/pod-group": name, "berth.dev/min-member": "4"},
			wantAnnotations: map[string]string{"berth.dev/topology-required": "topology.kubernetes.io/rack"}},
		"a PodGroup": {gang: load.Gang{Name: name, Pods: 4, TopologyKey: load.RackLabel}, form: PodGroups,
			wantLabels: map[string]string{"app": "bench"}, wantGroup: &corev1.PodSchedulingGroup{PodGroupName: &name}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := pod(0, load.Pod{GPUs: 1}, "s")
			join(p, tc.gang, tc.form)
			if diff := cmp.Diff(tc.wantLabels, p.Labels); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantAnnotations, p.Annotations); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantGroup, p.Spec.SchedulingGroup); diff != "" {
				t.Errorf("scheduling group (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPodGroup(t *testing.T) {
	tests := map[string]struct {
		gang load.Gang
		want schedulingv1beta1.PodGroupSpec
	}{
		"anywhere": {gang: load.Gang{Name: "g", Pods: 8}, want: schedulingv1beta1.PodGroupSpec{
			SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: 8}}}},
		"within a rack": {gang: load.Gang{Name: "g", Pods: 4, TopologyKey: load.RackLabel}, want: schedulingv1beta1.PodGroupSpec{
			SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: 4}},
			SchedulingConstraints: &schedulingv1beta1.PodGroupSchedulingConstraints{
				Topology: []schedulingv1beta1.TopologyConstraint{{Key: "topology.kubernetes.io/rack"}}}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := podGroup(tc.gang)
			if got.Name != tc.gang.Name || got.Namespace != Namespace {
				t.Errorf("PodGroup %s/%s", got.Namespace, got.Name)
			}
			if diff := cmp.Diff(tc.want, got.Spec); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
		})
	}
}
