// Package nvidiatest lets a test read a simulated machine as the agent does, through NVIDIA's adapter.
//
// Only tests may import it; it must not import anything of Berth but internal/core, internal/hardware/nvidia and
// internal/hardware/sim.
package nvidiatest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// Node is a simulated machine with the reader of an agent.
type Node struct {
	Machine *sim.Machine
	Adapter *nvidia.Adapter
	Actions *nvidia.Actions

	t testing.TB
}

// New creates a machine of a profile, without device nodes, until the test ends.
func New(t testing.TB, profile string) *Node {
	t.Helper()
	m, err := sim.CreateWith(temporary(t), profile, sim.Options{Seed: profile, NoDeviceNodes: true})
	if err != nil {
		t.Fatal(err)
	}
	root := m.Root()
	deps := nvidia.Deps{Library: m.NVML(), Roots: nvidia.Roots{
		Driver: root, Dev: root, Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys"),
	}}
	n := &Node{Machine: m, Adapter: nvidia.New(deps), Actions: nvidia.NewActions(deps), t: t}
	t.Cleanup(n.Adapter.Close)
	return n
}

// temporary returns a folder for a machine, in memory where the system has one: machines are hundreds of small files.
func temporary(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "nvidiatest")
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "machine")
}

// Scan returns what the adapter finds.
func (n *Node) Scan() *gpu.Snapshot {
	n.t.Helper()
	snapshot, err := n.Adapter.Scan(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	return &snapshot
}

// EnableMIG turns MIG on, with a reset where that takes one.
func (n *Node) EnableMIG(id gpu.UUID) {
	n.t.Helper()
	pending, err := n.Actions.SetMIGMode(id, true)
	if err != nil {
		n.t.Fatal(err)
	}
	if pending {
		if err := n.Machine.ResetGPUs(string(id)); err != nil {
			n.t.Fatal(err)
		}
	}
}
