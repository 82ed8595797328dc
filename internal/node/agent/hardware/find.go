package hardware

import (
	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/node/hostruntime"
)

// FindDriver sets the roots of the driver and of its device nodes to where the driver's library is now, if the configuration names neither.
func FindDriver(config *v1alpha1.AgentConfig) {
	if config.DriverRoot != "" || config.DevRoot != "" {
		return
	}
	files := nvidia.Traits().Files
	found := hostruntime.Find(hostruntime.Deps{HostRoot: config.HostRoot, Library: files.Libraries[0], LibraryFolders: files.LibraryFolders})
	config.DriverRoot, config.DevRoot = found.Driver.Path, found.DevRoot
}
