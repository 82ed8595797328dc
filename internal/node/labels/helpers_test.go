package labels

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/nvidia/gpulabels"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/offer"
)

var update = flag.Bool("update", false, "write the golden files again")

// build computes the labels, including those about NVIDIA's GPUs.
func build(in Input) Labels {
	in.Vendors = []Vendor{gpulabels.Vendor{}}
	return Build(in)
}

// golden compares text with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; go test -update writes it again):\n%s", path, diff)
	}
}

// node is a simulated machine with the readers of an agent.
type node struct {
	t       testing.TB
	machine *sim.Machine
	adapter *nvidia.Adapter
	actions *nvidia.Actions
}

// temporary returns a folder for a machine, in memory where the system has one: machines are hundreds of small files.
func temporary(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "features")
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "machine")
}

func newNode(t testing.TB, profile string) *node {
	t.Helper()
	m, err := sim.CreateWith(temporary(t), profile, sim.Options{Seed: profile, NoDeviceNodes: true})
	if err != nil {
		t.Fatal(err)
	}
	root := m.Root()
	deps := nvidia.Deps{Library: m.NVML(), Roots: nvidia.Roots{
		Driver: root, Dev: root, Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys"),
	}}
	n := &node{t: t, machine: m, adapter: nvidia.New(deps), actions: nvidia.NewActions(deps)}
	t.Cleanup(n.adapter.Close)
	return n
}

func (n *node) scan() *gpu.Snapshot {
	n.t.Helper()
	snapshot, err := n.adapter.Scan(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	return &snapshot
}

// input returns the input of Build under the settings, as the agent computes it.
func (n *node) input(settings offer.Settings) Input {
	n.t.Helper()
	snapshot := n.scan()
	units, _ := offer.Resolve(snapshot, settings)
	return Input{
		Snapshot: snapshot, Units: units, ResourceName: settings.ResourceName, MIGStrategy: settings.MIGStrategy,
		Host: ReadHost(filepath.Join(n.machine.Root(), "sys"), snapshot, gpulabels.Vendor{}),
	}
}

// partition enables MIG and creates devices at the places, by profile.
func (n *node) partition(g gpu.UUID, places map[int]string) {
	n.t.Helper()
	pending, err := n.actions.SetMIGMode(g, true)
	if err != nil {
		n.t.Fatal(err)
	}
	if pending {
		if err := n.machine.ResetGPUs(string(g)); err != nil {
			n.t.Fatal(err)
		}
	}
	for start := range 8 {
		if profile, ok := places[start]; ok {
			if _, err := n.actions.CreateMIG(g, profile, start); err != nil {
				n.t.Fatal(err)
			}
		}
	}
}
