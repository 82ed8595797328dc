package sim

import (
	"os"
	"path/filepath"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// What the shared library (libnvml) needs of the simulator beside nvml.Interface.

// RootOf finds the machine in whose file tree a file is, from the path of the file: the root of the tree.
func RootOf(file string) (root string, ok bool) {
	for folder := filepath.Dir(file); ; folder = filepath.Dir(folder) {
		if _, err := os.Stat(filepath.Join(folder, hardwareFile)); err == nil {
			return folder, true
		}
		if folder == filepath.Dir(folder) {
			return "", false
		}
	}
}

// NoMachine is a library that was not initialised: every call returns ERROR_UNINITIALIZED.
func NoMachine() nvml.Interface {
	return &unsupportedLibrary{answer: func(string) nvml.Return { return nvml.ERROR_UNINITIALIZED }}
}

// Unsupported is what a call that is not simulated returns: of the library, or of one of its handles. It hangs and fails as injected.
func Unsupported(on any, call string) nvml.Return {
	base, ok := on.(interface{ unsupported(call string) nvml.Return })
	if !ok {
		return nvml.ERROR_NOT_SUPPORTED
	}
	return base.unsupported(call)
}

// ProfileName is the name of a profile of GPU instances, such as 1g.10gb; empty when the GPU has none of that ID.
func ProfileName(on nvml.Device, id uint32) string {
	d, ok := on.(*device)
	if !ok {
		return ""
	}
	g := &d.lib.machine.hw.GPUs[d.slot]
	if g.Geometry == nil {
		return ""
	}
	if p := giProfile(g, id); p != nil {
		return p.Name
	}
	return ""
}
