package sim

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/golden"
	"github.com/berth-gpu/berth/internal/hardware/sim/profile"
)

// listing formats a tree, one file per line.
func listing(entries []entry) string {
	var out strings.Builder
	for _, e := range entries {
		name := strings.Replace(e.Path, libraryFolder(), "usr/lib/ARCH", 1)
		switch {
		case e.Target != "":
			fmt.Fprintf(&out, "%s -> %s\n", name, e.Target)
		case e.Device != nil:
			fmt.Fprintf(&out, "%s %o %d:%d\n", name, e.Mode, e.Device.Major, e.Device.Minor)
		default:
			fmt.Fprintf(&out, "%s %o\n", name, e.Mode)
		}
	}
	return out.String()
}

// design1 returns the hardware of a profile with fixed device numbers, without a folder.
func design1(t *testing.T, name string) (*hardware, *state) {
	t.Helper()
	spec, err := profile.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	hw, err := build(spec, "test", majors{NVIDIA: 195, UVM: 384, Caps: 385, DRM: 226, GDRCopy: 387, GDS: 388, Verbs: 389, IMEX: 390})
	if err != nil {
		t.Fatal(err)
	}
	return hw, &state{GPUs: make([]gpuState, len(hw.GPUs))}
}

func TestTreeGolden(t *testing.T) {
	hw, st := design1(t, "h100x8")
	st.GPUs[3].MIGEnabled = true
	st.GPUs[3].Instances = []gpuInstance{{ID: 9, Profile: 19, Start: 2, Size: 1, Compute: []computeInstance{{ID: 0, Profile: 0, Size: 1}}}}
	golden.File(t, "testdata/tree-h100x8.txt", listing(tree(hw, st)))
}

// TestTreeContents checks the files that adapters and NVIDIA's tools read.
func TestTreeContents(t *testing.T) {
	hw, st := design1(t, "v100x8-hybrid-mesh")
	contents := map[string]string{}
	for _, e := range tree(hw, st) {
		contents[e.Path] = string(e.Content) + e.Target
	}
	tests := map[string]string{
		"sys/bus/pci/devices/0000:86:00.0":                                                     "../../../devices/pci0000:80/0000:80:02.0/0000:83:00.0/0000:84:10.0/0000:86:00.0",
		"sys/devices/pci0000:80/0000:80:02.0/0000:83:00.0/0000:84:10.0/0000:86:00.0/vendor":    "0x10de\n",
		"sys/devices/pci0000:80/0000:80:02.0/0000:83:00.0/0000:84:10.0/0000:86:00.0/device":    "0x1db1\n",
		"sys/devices/pci0000:80/0000:80:02.0/0000:83:00.0/0000:84:10.0/0000:86:00.0/class":     "0x030200\n",
		"sys/devices/pci0000:80/0000:80:02.0/0000:83:00.0/0000:84:10.0/0000:86:00.0/numa_node": "1\n",
		"sys/devices/system/node/online":                                                       "0-1\n",
		"sys/class/dmi/id/product_name":                                                        "DGX-1 with V100\n",
		"proc/driver/nvidia/params":                                                            "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\nEnableMSI: 1\nEnableGpuFirmware: 18\n",
		libraryFolder() + "/libcuda.so.1":                                                      "libcuda.so." + driverVersion,
		"dev/dri/by-path/pci-0000:86:00.0-render":                                              "../renderD133",
	}
	for name, want := range tests {
		if got := contents[name]; got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	information := contents["proc/driver/nvidia/gpus/0000:86:00.0/information"]
	for _, want := range []string{"GPU UUID: \t " + hw.GPUs[5].UUID, "Device Minor: \t 5", "Bus Location: \t 0000:86:00.0"} {
		if !strings.Contains(information, want) {
			t.Errorf("information lacks %q:\n%s", want, information)
		}
	}
	if _, ok := contents["proc/driver/nvidia-caps/mig-minors"]; ok {
		t.Error("a machine without MIG has MIG minors")
	}
	minors := strings.Split(migMinors(), "\n")
	for _, want := range []string{"config 1", "gpu0/gi0/access 3", "gpu0/gi0/ci0/access 4", "gpu31/gi14/ci7/access 4322"} {
		if !slices.Contains(minors, want) {
			t.Errorf("mig-minors lacks %q", want)
		}
	}
}

// TestLinksResolve checks that each symbolic link of the tree leads to a file of the tree.
func TestLinksResolve(t *testing.T) {
	m := newMachine(t, "a100x16")
	for name := range files(t, m.Root()) {
		if _, err := os.Stat(filepath.Join(m.Root(), name)); err != nil {
			t.Error(err)
		}
	}
}

func TestSharedObject(t *testing.T) {
	file, err := elf.NewFile(bytes.NewReader(sharedObject("libcuda.so.1")))
	if err != nil {
		t.Fatal(err)
	}
	sonames, err := file.DynString(elf.DT_SONAME)
	if err != nil || len(sonames) != 1 || sonames[0] != "libcuda.so.1" {
		t.Errorf("SONAME = %v, %v", sonames, err)
	}
	if file.Type != elf.ET_DYN || file.Machine != elfMachine() {
		t.Errorf("type %v, machine %v", file.Type, file.Machine)
	}
}

func TestChooseMajors(t *testing.T) {
	devices := func(lines string) string {
		path := filepath.Join(t.TempDir(), "devices")
		writeFile(t, path, []byte("Character devices:\n"+lines+"\nBlock devices:\n195 sd\n"))
		return path
	}
	tests := map[string]struct {
		path string
		want majors
		err  string
	}{
		"nothing there": {"/nonexistent", majors{195, 384, 385, 226, 387, 388, 389, 390}, ""},
		"block majors":  {devices("  1 mem"), majors{195, 384, 385, 226, 387, 388, 389, 390}, ""},
		"some in use":   {devices("384 x\n386 y"), majors{195, 385, 387, 226, 389, 390, 391, 392}, ""},
		"a display":     {devices("226 drm"), majors{195, 384, 385, 386, 387, 388, 389, 390}, ""},
		"a real driver": {devices("195 nvidia-frontend"), majors{}, "real NVIDIA driver"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := chooseMajors(test.path)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if (err == nil) != (test.err == "") || (err != nil && !strings.Contains(err.Error(), test.err)) {
				t.Errorf("err = %v, want %q", err, test.err)
			}
		})
	}
}

// TestDeviceNodes checks that the nodes have NVIDIA's numbers, and that opening one returns ENXIO.
func TestDeviceNodes(t *testing.T) {
	if err := tryMknod(t.TempDir()); err != nil {
		t.Skipf("no device nodes here: mknod: %v", err)
	}
	m, err := Create(filepath.Join(t.TempDir(), "sim"), "t4x4")
	if err != nil {
		if strings.Contains(err.Error(), "real NVIDIA driver") {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	description, _ := m.Show()
	if !description.DeviceNodes {
		t.Fatal(description.NoDeviceNodes)
	}
	for name, minor := range map[string]uint32{"nvidia0": 0, "nvidia3": 3, "nvidiactl": 255, "nvidia-modeset": 254} {
		path := filepath.Join(m.Root(), "dev", name)
		var stat unix.Stat_t
		if err := unix.Stat(path, &stat); err != nil || stat.Rdev != unix.Mkdev(195, minor) || stat.Mode&0o777 != 0o666 {
			t.Errorf("%s: %v, device %d:%d, mode %o", name, err, unix.Major(stat.Rdev), unix.Minor(stat.Rdev), stat.Mode)
		}
		file, err := os.Open(path)
		if err == nil {
			file.Close()
		}
		// In a folder mounted with nodev, open fails earlier.
		if !errorsIsAny(err, syscall.ENXIO, syscall.EACCES) {
			t.Errorf("open %s = %v, want ENXIO", name, err)
		}
	}
	inject(t, m, Fault{GPU: "3", Remove: true})
	if _, err := os.Stat(filepath.Join(m.Root(), "dev/nvidia3")); !os.IsNotExist(err) {
		t.Errorf("the node of a removed GPU: %v", err)
	}
}

func errorsIsAny(err error, targets ...syscall.Errno) bool {
	return slices.ContainsFunc(targets, func(target syscall.Errno) bool { return errors.Is(err, target) })
}
