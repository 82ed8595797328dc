package stub_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/stub"
	"github.com/berth-gpu/berth/internal/hardware/vendortest"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// machine describes two GPUs and returns their folder.
func machine(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	write(t, filepath.Join(root, "driver"), "1.0\n")
	for _, index := range []string{"0", "1"} {
		write(t, filepath.Join(root, "gpu"+index, "uuid"), "EX-"+index)
		write(t, filepath.Join(root, "gpu"+index, "product"), "Example One")
		write(t, filepath.Join(root, "gpu"+index, "memory"), "1073741824")
	}
	return root
}

func TestVendor(t *testing.T) {
	vendortest.Run(t, func(t *testing.T) vendortest.Machine {
		root := machine(t)
		return vendortest.Machine{
			Vendor: stub.New(root), GPUs: 2,
			RemoveDriver: func(t *testing.T) {
				if err := os.Remove(filepath.Join(root, "driver")); err != nil {
					t.Fatal(err)
				}
			},
			RestoreDriver: func(t *testing.T) { write(t, filepath.Join(root, "driver"), "1.0") },
		}
	})
}

func TestFaults(t *testing.T) {
	root := machine(t)
	write(t, filepath.Join(root, "gpu1", "fault"), "it is too hot")
	s, err := stub.New(root).Scan(t.Context())
	if err != nil || len(s.GPUs) != 2 || len(s.GPUs[0].Health.Causes) != 0 || s.GPUs[1].Health.Causes[0].Message != "it is too hot" {
		t.Errorf("%+v, %v", s.GPUs, err)
	}
	if got := s.GPUs[0].Nodes[0]; got != (gpu.DeviceNode{Path: "/dev/example0"}) {
		t.Errorf("the device node that the host does not have is %+v", got)
	}
	write(t, filepath.Join(root, "gpu1", "memory"), "much")
	if _, err := stub.New(root).Scan(t.Context()); err == nil || !strings.Contains(err.Error(), "gpu1/memory") {
		t.Errorf("memory that is no number: %v", err)
	}
}
