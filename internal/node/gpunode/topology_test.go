package gpunode_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidiatest"
	"github.com/berth-gpu/berth/internal/hardware/sim/profile"
	"github.com/berth-gpu/berth/internal/node/gpunode"
)

// TestTopologyCanBeParsed reads back what the object of each simulated machine says about links: all that a letter tells.
func TestTopologyCanBeParsed(t *testing.T) {
	for _, name := range profile.Names() {
		t.Run(name, func(t *testing.T) {
			snapshot := nvidiatest.New(t, name).Scan()
			node := gpunode.Build("n", gpunode.Input{Snapshot: snapshot})
			if len(node.Status.Topology) != len(snapshot.GPUs) || len(snapshot.GPUs) == 0 {
				t.Fatalf("%d rows for %d GPUs", len(node.Status.Topology), len(snapshot.GPUs))
			}
			got, err := gpu.ParseTopology(node.Status.Topology)
			if err != nil {
				t.Fatal(err)
			}
			want := gpu.NewTopology(len(snapshot.GPUs))
			for i, row := range snapshot.Topology {
				for j, link := range row {
					want[i][j] = gpu.Link{Kind: link.Kind, Count: link.Count}
					if link.Count == 0 {
						want[i][j] = gpu.Link{Path: link.Path}
					}
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%q (-want +got):\n%s", node.Status.Topology, diff)
			}
		})
	}
}
