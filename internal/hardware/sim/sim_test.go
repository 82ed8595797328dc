package sim

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// temporary returns a folder for a machine, in memory where possible: a machine has hundreds of small files.
func temporary(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "sim")
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "sim")
}

// newMachine creates a machine without device nodes in a temporary folder.
func newMachine(t testing.TB, profileName string) *Machine {
	t.Helper()
	m, err := CreateWith(temporary(t), profileName, Options{Seed: "test", NoDeviceNodes: true})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// open initializes a library of the machine.
func open(t testing.TB, m *Machine) nvml.Interface {
	t.Helper()
	lib := m.NVML()
	if ret := lib.Init(); ret != nvml.SUCCESS {
		t.Fatalf("Init() = %v", ret)
	}
	return lib
}

// gpu returns the handle of a GPU.
func gpu(t testing.TB, lib nvml.Interface, index int) nvml.Device {
	t.Helper()
	d, ret := lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		t.Fatalf("DeviceGetHandleByIndex(%d) = %v", index, ret)
	}
	return d
}

func inject(t testing.TB, m *Machine, f Fault) {
	t.Helper()
	if err := m.Inject(f); err != nil {
		t.Fatal(err)
	}
}

func clearAll(t testing.TB, m *Machine) {
	t.Helper()
	if err := m.Clear(ClearAll); err != nil {
		t.Fatal(err)
	}
}
