package gpunode_test

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
	"github.com/berth-gpu/berth/internal/hardware/nvidiatest"
	"github.com/berth-gpu/berth/internal/hardware/sim/profile"
	"github.com/berth-gpu/berth/internal/node/gpunode"
)

// TestTopologyCanBeParsed reads back what the object of each simulated machine says about links: the number of NVLinks and all paths. A
// choice among its GPUs is then that of the agent, which has the links themselves.
func TestTopologyCanBeParsed(t *testing.T) {
	for _, name := range profile.Names() {
		t.Run(name, func(t *testing.T) {
			snapshot := nvidiatest.New(t, name).Scan()
			status := gpunode.Build("n", gpunode.Input{Snapshot: snapshot}).Status
			if len(status.Topology) != len(snapshot.GPUs) || len(snapshot.GPUs) == 0 {
				t.Fatalf("%d rows for %d GPUs", len(status.Topology), len(snapshot.GPUs))
			}
			if linked := snapshot.Topology.HasNVLinks(); linked != (status.PCITopology != nil) {
				t.Errorf("NVLinks: %v; rows of PCIe paths: %q", linked, status.PCITopology)
			}
			got, err := gpu.ParseTopologies(len(status.Devices), status.Topology, status.PCITopology)
			if err != nil {
				t.Fatal(err)
			}
			want := gpu.NewTopology(len(snapshot.GPUs))
			for i, row := range snapshot.Topology {
				for j, link := range row {
					link.Switched = false
					want[i][j] = link
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%q %q (-want +got):\n%s", status.Topology, status.PCITopology, diff)
			}
			var numa, published []int
			for i := range snapshot.GPUs {
				numa, published = append(numa, snapshot.GPUs[i].NUMANode), append(published, status.Devices[i].NUMANode)
			}
			checkChoices(t, prepare(t, snapshot.Topology, numa), prepare(t, got, published), len(numa))
		})
	}
}

func prepare(t *testing.T, topology gpu.Topology, numa []int) *placement.Node {
	t.Helper()
	node, err := placement.NewNode(topology, numa)
	if err != nil {
		t.Fatal(err)
	}
	return node
}

// checkChoices asks both for the same: all sets of up to 8 GPUs, random ones of more.
func checkChoices(t *testing.T, agent, reader *placement.Node, gpus int) {
	t.Helper()
	check := func(available, must placement.Set, size int) {
		want, err1 := agent.Choose(available, must, size)
		got, err2 := reader.Choose(available, must, size)
		if err1 != nil || err2 != nil || got != want {
			t.Fatalf("%d of %v with %v: the agent takes %v, %v; a reader %v, %v", size, available, must, want, err1, got, err2)
		}
	}
	if gpus <= 8 {
		for available := placement.Set(1); available <= agent.All(); available++ {
			for size := 1; size <= available.Len(); size++ {
				check(available, 0, size)
			}
		}
		return
	}
	random := rand.New(rand.NewPCG(1, uint64(gpus)))
	for range 500 {
		available := placement.Set(random.Uint32()) & agent.All()
		if available == 0 {
			continue
		}
		size := 1 + random.IntN(available.Len())
		check(available, 0, size)
		must := available & placement.Set(random.Uint32()) & placement.Set(random.Uint32())
		check(available, must, max(size, must.Len()))
	}
}
