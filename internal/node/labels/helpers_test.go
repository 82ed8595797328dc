package labels

import (
	"path/filepath"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia/gpulabels"
	"github.com/berth-gpu/berth/internal/hardware/nvidiatest"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// build computes the labels, including those about NVIDIA's GPUs.
func build(in Input) Labels {
	in.Vendors = []Vendor{gpulabels.Vendor{}}
	return Build(in)
}

// node is a simulated machine with the readers of an agent.
type node struct {
	*nvidiatest.Node
	t testing.TB
}

func newNode(t testing.TB, profile string) *node {
	t.Helper()
	return &node{Node: nvidiatest.New(t, profile), t: t}
}

// input returns the input of Build under the settings, as the agent computes it.
func (n *node) input(settings offer.Settings) Input {
	n.t.Helper()
	snapshot := n.Scan()
	units, _ := offer.Resolve(snapshot, settings)
	return Input{
		Snapshot: snapshot, Units: units, ResourceName: settings.ResourceName, MIGStrategy: settings.MIGStrategy,
		Host: ReadHost(filepath.Join(n.Machine.Root(), "sys"), snapshot, gpulabels.Vendor{}),
	}
}

// partition enables MIG and creates devices at the places, by profile.
func (n *node) partition(g gpu.UUID, places map[int]string) {
	n.t.Helper()
	n.EnableMIG(g)
	for start := range 8 {
		if profile, ok := places[start]; ok {
			if _, err := n.Actions.CreateMIG(g, profile, start); err != nil {
				n.t.Fatal(err)
			}
		}
	}
}
