package why

import (
	"fmt"
	"testing"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// fullCluster has nodes of 8 GPUs each, of which pods of different sizes have all but one.
func fullCluster(nodes int) Input {
	in := Input{Pod: Pod{Name: "ml/waits", Requests: []fleet.Shape{{CPU: 8000, Memory: 1024, Resource: gpuName, GPUs: 8}}, Others: map[string]int64{pods: 1}, Most: 8}}
	for i := range nodes {
		n := Node{Node: fleet.Empty(fmt.Sprintf("node-%04d", i), "A", 96_000, 1<<20, 0), Kind: "8 x A", Others: map[string]Other{pods: {110, 103}}}
		for k := range 8 {
			n.GPUs = append(n.GPUs, fleet.GPU{Resource: gpuName, Unit: fleet.Whole, Free: fleet.Whole, Physical: uint8(k)})
		}
		for k := range 7 {
			n.GPUs[k].Free = 0
			n.FreeCPU -= int64(1000 * (k + 1))
			in.Holders = append(in.Holders, Holder{Name: fmt.Sprintf("ml/p-%d-%d", i, k), Node: n.Name, Devices: []Devices{{k, 1}}, CPU: int64(1000 * (k + 1)), Memory: 512,
				Others: map[string]int64{pods: 1}, Priority: int32(k % 3), Since: int64(i*10 + k)})
		}
		in.Nodes = append(in.Nodes, n)
	}
	return in
}

// BenchmarkExplain measures the answer for 500 nodes on which seven different pods each have a GPU.
func BenchmarkExplain(b *testing.B) {
	in := fullCluster(500)
	for b.Loop() {
		if answer := Explain(in); answer.Code != InUse && answer.Code != Scattered {
			b.Fatalf("%+v", answer)
		}
	}
}

// TestWork bounds how many states are looked at for 500 nodes.
func TestWork(t *testing.T) {
	in := fullCluster(500)
	s := &search{left: limit}
	w := newWorld(&in)
	if changes := w.changes(s); len(changes) < 2 || s.limited {
		t.Errorf("%+v, limited %v after %d states; want a smaller request and pods that end", changes, s.limited, limit-s.left)
	}
	t.Logf("%d states", limit-s.left)
}
