package hostruntime

import (
	"os"
	"path"
)

// driverRoot is a root that the driver's files can be below.
type driverRoot struct {
	path string
	// dev is the root of the device nodes.
	dev string
	of  string
}

// driverRoots are where the driver is installed, in the order of the search: a driver container's comes first, whose library is the one
// that fits the module it has loaded.
func driverRoots() []driverRoot {
	return []driverRoot{
		{"/run/nvidia/driver", "/run/nvidia/driver", "a driver container"},
		{"/", "/", "the host"},
		{"/usr/local/glibc", "/", "Talos' extension"},
		{"/opt/nvidia/current", "/", "Flatcar's driver"},
		{"/x86_64-bottlerocket-linux-gnu/sys-root", "/", "Bottlerocket's driver"},
		{"/aarch64-bottlerocket-linux-gnu/sys-root", "/", "Bottlerocket's driver"},
	}
}

// driver finds the root of the driver's library.
func (f *finder) driver() {
	if f.deps.Library == "" {
		return
	}
	for _, root := range driverRoots() {
		for _, folder := range f.deps.LibraryFolders {
			if _, err := os.Stat(f.host.Local(path.Join(root.path, folder, f.deps.Library))); err != nil {
				continue
			}
			f.host.Driver, f.host.DevRoot = Place{root.path, root.of}, root.dev
			return
		}
	}
}
