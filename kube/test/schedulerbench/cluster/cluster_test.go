package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/load"
)

func TestObjectsAgree(t *testing.T) {
	n, g := node(7), gpuNode(7)
	gpus := n.Status.Allocatable[Resource]
	if n.Name != g.Name || gpus.Value() != int64(len(g.Status.Devices)) || len(g.Status.Devices) != g.Status.Summary.GPUs {
		t.Errorf("Node %s has %s GPUs, GPUNode %s has %d", n.Name, gpus.String(), g.Name, len(g.Status.Devices))
	}
	topology, err := gpu.ParseTopology(g.Status.Topology)
	if err != nil {
		t.Fatal(err)
	}
	if link := topology[0][7]; len(topology) != load.NodeGPUs || link.Letters() != "NV12" {
		t.Errorf("%d rows, link %q; want %d rows and NV12", len(topology), link.Letters(), load.NodeGPUs)
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
