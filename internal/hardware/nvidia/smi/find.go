package smi

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// program is how nvidia-smi is run.
type program struct {
	// args is the argv prefix.
	args []string
	// root is the folder that becomes the program's root directory; empty for this process's own.
	root string
	env  []string
}

// places are where a driver root has the program, each with the folder of its libraries if the dynamic loader does not
// search it by default. They are those of distributions and NVIDIA's driver images, then of systems that keep the
// driver elsewhere.
func places() []struct{ program, libraries string } {
	return []struct{ program, libraries string }{
		{"/usr/bin/nvidia-smi", ""},
		{"/bin/nvidia-smi", ""},
		{"/usr/local/bin/nvidia-smi", ""},
		{"/usr/local/nvidia/bin/nvidia-smi", "/usr/local/nvidia/lib64"},
		{"/opt/bin/nvidia-smi", ""},
		{"/opt/driver/usr/bin/nvidia-smi", "/opt/driver/usr/lib64"},
		{"/run/current-system/sw/bin/nvidia-smi", "/run/opengl-driver/lib"},
		{"/home/kubernetes/bin/nvidia/bin/nvidia-smi", "/home/kubernetes/bin/nvidia/lib64"},
	}
}

// find searches for the program under a driver root. If that is not this process's own root, it becomes the program's
// root directory: nvidia-smi uses the C library of that root, it starts nvidia-modprobe by its absolute path, and the
// device nodes that this creates must be in that root's /dev.
func find(driverRoot string) (program, error) {
	driverRoot = filepath.Clean("/" + driverRoot)
	for _, place := range places() {
		// A link that is dangling from here may resolve from inside the root.
		if _, err := os.Lstat(filepath.Join(driverRoot, place.program)); err != nil {
			continue
		}
		found := program{args: []string{place.program}}
		if driverRoot != "/" {
			found.root = driverRoot
		}
		if place.libraries != "" {
			found.env = []string{"LD_LIBRARY_PATH=" + place.libraries}
		}
		return found, nil
	}
	var names []string
	for _, place := range places() {
		names = append(names, place.program)
	}
	return program{}, fmt.Errorf("find nvidia-smi: the driver root %s has none of %s; install the driver's tools (nvidia-utils), or correct the driver root",
		driverRoot, strings.Join(names, ", "))
}
