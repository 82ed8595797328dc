package gpu_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestIslands joins GPUs directly and through others, and leaves out those without links and those that do not respond.
func TestIslands(t *testing.T) {
	link := func(n int, pairs ...[2]int) *gpu.Snapshot {
		s := &gpu.Snapshot{GPUs: make([]gpu.GPU, n), Topology: gpu.NewTopology(n)}
		for _, p := range pairs {
			s.Topology.Set(p[0], p[1], gpu.Link{Kind: gpu.LinkNVLink, Count: 2})
		}
		return s
	}
	lost := link(4, [2]int{0, 1}, [2]int{1, 2}, [2]int{2, 3})
	lost.GPUs[1].Health.State = gpu.Gone
	pcie := link(2)
	pcie.Topology.Set(0, 1, gpu.Link{Path: gpu.PathSingleSwitch})
	unknown := link(2, [2]int{0, 1})
	unknown.Topology = nil
	for name, test := range map[string]struct {
		in      *gpu.Snapshot
		want    [][]int
		unknown bool
	}{
		"none":             {in: link(0)},
		"PCIe only":        {in: pcie},
		"a chain":          {in: link(4, [2]int{3, 1}, [2]int{1, 2}), want: [][]int{{1, 2, 3}}},
		"two":              {in: link(5, [2]int{0, 4}, [2]int{1, 3}), want: [][]int{{0, 4}, {1, 3}}},
		"cut by a loss":    {in: lost, want: [][]int{{2, 3}}},
		"topology unknown": {in: unknown, unknown: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, known := test.in.Islands()
			if diff := cmp.Diff(test.want, got); diff != "" || known == test.unknown {
				t.Errorf("known is %v; (-want +got):\n%s", known, diff)
			}
		})
	}
}
