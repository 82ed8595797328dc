package doctor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/cli/doctor"
	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestOtherVendor: the checks of the driver look for what the vendor's data says, and for nothing of NVIDIA's.
func TestOtherVendor(t *testing.T) {
	root := t.TempDir()
	write := func(path, content string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("proc/driver/example/version", "Example driver 1.2.3\n")
	write("proc/driver/example/gpus/0000:01:00.0/information", "GPU UUID: EX-0\nDevice Minor: 4\n")
	write("proc/devices", "Character devices:\n240 example\n")
	write("mps/EX-9/pipe", "")
	report := doctor.Run(t.Context(), doctor.Deps{
		HostRoot: root, DriverRoot: root, Proc: filepath.Join(root, "proc"), MPSRoot: "/mps", NoAPI: "none",
		Vendor: gpu.Traits{Title: "Example", UUIDPrefix: "EX-", Files: gpu.DriverFiles{
			Proc: "driver/example", Libraries: []string{"libexample.so.1"}, LibraryFolders: []string{"usr/lib64"},
			Node:  gpu.DriverNode{Name: "example", Drivers: []string{"example"}},
			Nodes: []gpu.DriverNode{{Name: "example-control", Drivers: []string{"example-control"}}},
		}},
	})
	found := map[string]string{}
	for _, finding := range report.Findings {
		found[finding.Check] += finding.Code + " " + finding.Evidence + "\n"
	}
	for check, want := range map[string]string{
		"driver":          "version 1.2.3, 1 GPU",
		"libraries":       "DRIVER_LIBRARY_MISSING libexample.so.1 is in none of the 1 usual folders",
		"device nodes":    "dev/example-control (the module example-control is not loaded), " + filepath.Join(root, "dev/example4"),
		"MPS directories": "MPS_LEFTOVER " + filepath.Join(root, "mps/EX-9"),
	} {
		if !strings.Contains(found[check], want) || strings.Contains(found[check], "nvidia") {
			t.Errorf("%s: %q, want %q", check, found[check], want)
		}
	}
}
