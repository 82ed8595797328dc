package nvidia_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
)

// needMknod skips the test where this process may not create device nodes.
func needMknod(t *testing.T) {
	t.Helper()
	if err := unix.Mknod(filepath.Join(t.TempDir(), "node"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		t.Skip("this process may not make device nodes:", err)
	}
}

// numbers returns the mode and the device numbers of a node; zero when there is none.
func numbers(t *testing.T, path string) [3]uint32 {
	t.Helper()
	var stat syscall.Stat_t
	if err := syscall.Stat(path, &stat); err != nil {
		return [3]uint32{}
	}
	return [3]uint32{stat.Mode & 0o777, unix.Major(stat.Rdev), unix.Minor(stat.Rdev)}
}

func faultCodes(s *gpu.Snapshot) (codes []string) {
	for _, fault := range s.Faults {
		codes = append(codes, fault.Code)
	}
	return codes
}

// TestMissingNodesAreMade: the first scan after a boot creates all device nodes of the driver with its numbers and modes, those
// of MIG devices too; a later scan creates those that were removed, or have the numbers of an earlier load of a module.
func TestMissingNodesAreMade(t *testing.T) {
	needMknod(t)
	m, _ := partitioned(t, "a100x8-40g")
	dev := filepath.Join(m.Root(), "dev")
	names := []string{"nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1"}
	caps, err := filepath.Glob(filepath.Join(dev, "nvidia-caps", "nvidia-cap*"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][3]uint32{}
	for _, name := range names {
		want[filepath.Join(dev, name)] = numbers(t, filepath.Join(dev, name))
	}
	for _, device := range scan(t, adapterOn(t, m)).GPUs[0].MIG.Devices {
		for _, node := range device.Nodes {
			want[node.HostPath] = numbers(t, node.HostPath)
		}
	}
	if len(want) < len(names)+4 || len(caps) < 4 {
		t.Fatalf("the machine has %v", want)
	}
	for path := range want {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	a := nvidia.New(nvidia.Deps{Library: m.NVML(), Roots: rootsOf(m), MakeNodes: []string{m.Root()}})
	defer a.Close()
	check := func(when string) {
		t.Helper()
		got := scan(t, a)
		if len(got.Faults) > 0 || len(got.Vendor(gpu.NVIDIA).Shared) != 4 {
			t.Errorf("%s: faults %v, control nodes %v", when, got.Faults, got.Vendor(gpu.NVIDIA).Shared)
		}
		for path, numbersWanted := range want {
			if made := numbers(t, path); made != numbersWanted {
				t.Errorf("%s: %s is %v; want %v", when, path, made, numbersWanted)
			}
		}
	}
	check("first scan")
	uvm := filepath.Join(dev, "nvidia-uvm")
	if err := os.Remove(uvm); err != nil {
		t.Fatal(err)
	}
	check("a node removed")
	if err := os.Remove(uvm); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(uvm, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
	check("a node of another major")
}

// TestMissingControlNodeIsAFault: without /dev/nvidia-uvm no CUDA program starts.
func TestMissingControlNodeIsAFault(t *testing.T) {
	m, a := machine(t, "t4x4")
	if !slices.Equal(faultCodes(scan(t, a)), nil) {
		t.Skip("this process may not make device nodes")
	}
	for _, name := range []string{"nvidia-uvm", "nvidiactl"} {
		path := filepath.Join(m.Root(), "dev", name)
		if err := os.Rename(path, path+".away"); err != nil {
			t.Fatal(err)
		}
		got := scan(t, a)
		if !slices.Equal(faultCodes(got), []string{"DEVICE_NODE_MISSING"}) || !strings.Contains(got.Faults[0].Message, path) {
			t.Errorf("without %s: %+v", name, got.Faults)
		}
		if err := os.Rename(path+".away", path); err != nil {
			t.Fatal(err)
		}
		if got := scan(t, a); len(got.Faults) > 0 {
			t.Errorf("with %s again: %+v", name, got.Faults)
		}
	}
}

// TestUVMNotLoaded: the fault names the missing module.
func TestUVMNotLoaded(t *testing.T) {
	m, a := machine(t, "t4x4")
	path := filepath.Join(m.Root(), "proc/devices")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for line := range strings.Lines(string(content)) {
		if !strings.Contains(line, "nvidia-uvm") {
			kept = append(kept, line)
		}
	}
	write(t, path, strings.Join(kept, ""))
	for _, name := range []string{"nvidia-uvm", "nvidia-uvm-tools"} {
		_ = os.Remove(filepath.Join(m.Root(), "dev", name)) // a machine without nodes has none
	}
	got := scan(t, a)
	if !slices.ContainsFunc(got.Faults, func(c gpu.Cause) bool {
		return c.Code == "DEVICE_NODE_MISSING" && strings.Contains(c.Message, "modprobe nvidia-uvm")
	}) {
		t.Errorf("faults %+v", got.Faults)
	}
}
