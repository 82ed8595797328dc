package validate

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHost checks the files of a container below another root.
func TestHost(t *testing.T) {
	dev, proc := t.TempDir(), t.TempDir()
	for _, file := range []string{filepath.Join(dev, "dev/nvidia0"), filepath.Join(dev, "dev/nvidia-caps/nvidia-cap4"), filepath.Join(proc, "proc/driver/nvidia/version")} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(filepath.Base(file)), 0o400); err != nil {
			t.Fatal(err)
		}
	}
	host := Host{DevRoot: dev, ProcRoot: proc}
	if names, err := host.Names(deviceFolder); err != nil || !slices.Equal(names, []string{"nvidia-caps", "nvidia0"}) {
		t.Errorf("Names() = %q, %v", names, err)
	}
	if names, err := host.Names("/dev/dri"); err != nil || names != nil {
		t.Errorf("Names() of a folder that does not exist = %q, %v", names, err)
	}
	if text, err := host.Read(versionFile); err != nil || text != "version" {
		t.Errorf("Read() = %q, %v", text, err)
	}
	if err := host.Open("/dev/nvidia-caps/nvidia-cap4"); err != nil {
		t.Errorf("Open() of a capability: %v", err)
	}
	if err := host.Open("/dev/nvidia9"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open() of nothing: %v", err)
	}
	if made, err := host.OpenOther("/dev/nvidia0", 1); made || err == nil {
		t.Errorf("OpenOther() of a regular file = %v, %v", made, err)
	}
}

// TestOpenOther checks that a device node of another device is made, opened and removed.
func TestOpenOther(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	const null, zero = 3, 5 // minor numbers of /dev/null and /dev/zero, of major 1
	if err := unix.Mknod(filepath.Join(dir, "dev/nvidia0"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, null))); err != nil {
		t.Skipf("this process may not make device nodes: %v", err)
	}
	host := Host{DevRoot: dir}
	if err := host.Open("/dev/nvidia0"); err != nil {
		t.Skipf("this folder has no devices: %v", err)
	}
	tests := map[string]struct {
		minor int
		want  error
	}{"a device": {zero, nil}, "no device": {250, syscall.ENXIO}}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if made, err := host.OpenOther("/dev/nvidia0", tc.minor); !made || !errors.Is(err, tc.want) {
				t.Errorf("OpenOther() = %v, %v; want %v", made, err, tc.want)
			}
			if names, _ := host.Names(deviceFolder); !slices.Equal(names, []string{"nvidia0"}) {
				t.Errorf("it leaves %q", names)
			}
		})
	}
}
