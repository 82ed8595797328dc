package hostruntime

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"

	securejoin "github.com/cyphar/filepath-securejoin"

	"github.com/berth-gpu/berth/internal/node/hostconfig"
	"github.com/berth-gpu/berth/internal/node/kubelet"
)

// Kind is a container runtime; empty if none was found.
type Kind string

// The container runtimes.
const (
	Containerd Kind = "containerd"
	CRIO       Kind = "CRI-O"
)

// The directories that containerd and CRI-O read CDI specs from by default; the later one takes precedence.
const (
	cdiStatic  = "/etc/cdi"
	cdiDynamic = "/var/run/cdi"
)

// Place is a path of the host, and where it was found.
type Place struct {
	Path string
	From string
}

// Runtime is the container runtime that the kubelet uses.
type Runtime struct {
	Kind Kind
	// PID is the process; 0 if the runtime was found without one.
	PID int
	// Socket is the socket of its CRI.
	Socket Place
	// Served is true if the socket is there and belongs to the owner of the host's root.
	Served bool
	// State is the directory of what runs: containerd's state directory, CRI-O's runroot.
	State Place
	// Config is the first file of the configuration, which need not exist, and ConfigDir CRI-O's directory of more.
	Config    Place
	ConfigDir Place
	// bundles are where the OCI specs of containers are.
	bundles []kubelet.Bundle
}

// Kubelet has the directories of the kubelet.
type Kubelet struct {
	// PID is the process; 0 if none was found.
	PID int
	// Root is its root directory, with pod-resources, plugins_registry and pods.
	Root Place
	// DevicePlugins is the directory of device plugins' sockets. Its path is fixed: --root-dir does not change it (kubelet 1.37).
	DevicePlugins Place
}

// Host is what was found.
type Host struct {
	Runtime Runtime
	Kubelet Kubelet
	// CDIDirs are the directories from which the runtime reads CDI specs, and CDIFrom says where they were found.
	CDIDirs []string
	CDIFrom string
	// Driver is the root below which the driver's library is, and DevRoot that of its device nodes; empty if the library was not found.
	Driver  Place
	DevRoot string
	// Notes say what was left out and why, in the order of the search.
	Notes []string
	// root is the host's root, and bundles are what Bundles returns.
	root    string
	bundles []kubelet.Bundle
}

// Deps are the sources of Find.
type Deps struct {
	// HostRoot is where the host's root directory is; empty means "/".
	HostRoot string
	// Proc is the host's /proc.
	Proc string
	// ContainerdState is containerd's state directory if the user has named it; it then decides which runtime is found. It is a path of the
	// host, or one of this process below HostRoot.
	ContainerdState string
	// Library is the file name of the driver's library, and LibraryFolders are the folders of a root in which it can be.
	Library        string
	LibraryFolders []string
}

// Find looks at a host.
func Find(deps Deps) *Host {
	f := &finder{deps: deps, host: &Host{root: hostconfig.Root(deps.HostRoot)}}
	f.owner, f.ownerErr = ownerOf(f.host.root)
	processes := f.processes()
	endpoint := f.kubelet(processes)
	f.runtime(processes, endpoint)
	f.cdi()
	f.driver()
	f.host.bundles = f.host.localBundles()
	return f.host
}

type finder struct {
	deps     Deps
	host     *Host
	owner    uint32
	ownerErr error
}

func (f *finder) note(format string, args ...any) {
	f.host.Notes = append(f.host.Notes, fmt.Sprintf(format, args...))
}

// Local converts a path of the host to one of this process. Links are followed within the host's root.
func (h *Host) Local(name string) string {
	if name == "" {
		return ""
	}
	full, err := securejoin.SecureJoin(h.root, name)
	if err != nil {
		return filepath.Join(h.root, path.Clean("/"+name))
	}
	return full
}

// Bundles are where the OCI specs of containers are, as paths of this process: those of the runtime, then the usual ones, as of docker.
func (h *Host) Bundles() []kubelet.Bundle { return h.bundles }

func (h *Host) localBundles() []kubelet.Bundle {
	var found []kubelet.Bundle
	for _, bundle := range h.Runtime.bundles {
		found = append(found, kubelet.Bundle{Dir: h.Local(bundle.Dir), File: bundle.File, Keys: bundle.Keys})
	}
	for _, usual := range kubelet.DefaultBundles(h.Local("/run")) {
		if !slices.Contains(found, usual) {
			found = append(found, usual)
		}
	}
	return found
}

// cdi finds the directories of CDI specs.
func (f *finder) cdi() {
	f.host.CDIDirs, f.host.CDIFrom = []string{cdiStatic, cdiDynamic}, "the default"
	dirs, from, err := []string(nil), "", error(nil)
	switch runtime := &f.host.Runtime; runtime.Kind {
	case Containerd:
		config, failure := hostconfig.ReadContainerd(f.host.root, runtime.Config.Path)
		dirs, from, err = config.Dirs, config.DirsFrom, failure
	case CRIO:
		config, failure := hostconfig.ReadCRIO(f.host.root, runtime.Config.Path, runtime.ConfigDir.Path)
		dirs, from, err = config.Dirs, config.DirsFrom, failure
	}
	if err == nil && len(dirs) > 0 {
		f.host.CDIDirs, f.host.CDIFrom = dirs, from
	}
}
