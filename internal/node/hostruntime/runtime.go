package hostruntime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/node/hostconfig"
	"github.com/berth-gpu/berth/internal/node/kubelet"
)

// Where programs keep things unless told otherwise.
const (
	containerdState  = "/run/containerd"
	containerdSocket = "/run/containerd/containerd.sock"
	crioSocket       = "/var/run/crio/crio.sock"
	crioRunRoot      = "/run/containers/storage"
	byDefault        = "the default"
)

// runtime finds the runtime that serves an endpoint of the kubelet; without one, the only one that is not a runtime of the system's own.
func (f *finder) runtime(processes []process, endpoint Place) {
	var found []Runtime
	for i := range processes {
		one, ok := f.runtimeOf(&processes[i])
		if !ok {
			continue
		}
		if why := f.notServed(one.Socket.Path); why != "" {
			f.note("process %d (%s) is not used: %s", one.PID, one.Kind, why)
			continue
		}
		found = append(found, one)
	}
	switch state := f.onHost(f.deps.ContainerdState); {
	case state != "":
		f.explicit(found, state)
	case endpoint.Path != "":
		f.byEndpoint(found, endpoint)
	default:
		f.only(found)
	}
	f.host.Runtime.Served = f.host.Runtime.Kind != "" && f.notServed(f.host.Runtime.Socket.Path) == ""
	f.host.Runtime.bundles = f.bundles()
}

// onHost converts a path of this process below the host's root to one of the host.
func (f *finder) onHost(name string) string {
	if rest, ok := strings.CutPrefix(name, f.host.root+"/"); ok && f.host.root != "/" {
		return "/" + rest
	}
	return name
}

// explicit uses the state directory that the user has named.
func (f *finder) explicit(found []Runtime, state string) {
	from := "an option"
	at := slices.IndexFunc(found, func(r Runtime) bool { return f.same(r.State.Path, state) })
	if at >= 0 {
		f.host.Runtime = found[at]
		f.host.Runtime.State = Place{state, from}
		return
	}
	f.host.Runtime = Runtime{Kind: Containerd, State: Place{state, from}, Socket: Place{path.Join(state, "containerd.sock"), "the state directory"},
		Config: Place{hostconfig.ContainerdPath, byDefault}}
	if place := f.knownBy(func(k known) bool { return f.same(k.state, state) }); place != nil {
		f.host.Runtime.Socket, f.host.Runtime.Config = Place{place.socket, from}, f.configOf(place)
	}
}

// byEndpoint uses the runtime that serves the kubelet.
func (f *finder) byEndpoint(found []Runtime, endpoint Place) {
	at := slices.IndexFunc(found, func(r Runtime) bool { return f.same(r.Socket.Path, endpoint.Path) })
	if at >= 0 {
		f.host.Runtime = found[at]
		return
	}
	if place := f.knownBy(func(k known) bool { return f.same(k.socket, endpoint.Path) && f.notServed(k.socket) == "" }); place != nil {
		f.host.Runtime = f.runtimeAt(place, endpoint.From)
		return
	}
	f.note("no runtime serves the kubelet's endpoint %s (%s)", endpoint.Path, endpoint.From)
	f.only(found)
}

// only uses the runtime that is not a system's own; of several, the first. Without one, a known place is tried.
func (f *finder) only(found []Runtime) {
	found = slices.DeleteFunc(found, func(r Runtime) bool { return systemOwn(r.Socket.Path) })
	if len(found) == 0 {
		f.fromKnown()
		return
	}
	f.host.Runtime = found[0]
	for _, other := range found[1:] {
		f.note("process %d (%s, %s) is not used: the kubelet's endpoint is not known, and process %d comes first", other.PID, other.Kind, other.Socket.Path, found[0].PID)
	}
}

// systemOwn reports whether a socket is of a runtime that runs no pods: Talos' and Bottlerocket's for their own programs, and docker's.
func systemOwn(socket string) bool {
	for _, dir := range []string{"/system/run/", "/run/host-containerd/", "/var/run/docker/", "/run/docker/"} {
		if strings.HasPrefix(socket, dir) {
			return true
		}
	}
	return false
}

// runtimeOf reads the places of a runtime from its command line and configuration.
func (f *finder) runtimeOf(p *process) (Runtime, bool) {
	if !p.onHost {
		if p.program() == "containerd" || p.program() == "crio" {
			f.note("process %d is named %s and is not used: it is in another mount namespace", p.pid, p.program())
		}
		return Runtime{}, false
	}
	switch p.program() {
	case "containerd":
		if len(p.argv) > 1 && !strings.HasPrefix(p.argv[1], "-") {
			return Runtime{}, false // A command, such as containerd config dump.
		}
		return f.containerd(p), true
	case "crio":
		return f.crio(p), true
	}
	return Runtime{}, false
}

// containerd reads a containerd's places: flags count before the configuration.
func (f *finder) containerd(p *process) Runtime {
	r := Runtime{Kind: Containerd, PID: p.pid, Socket: Place{containerdSocket, byDefault}, State: Place{containerdState, byDefault}, Config: Place{hostconfig.ContainerdPath, byDefault}}
	set(&r.Config, p, "--config", "-config", "-c")
	config, err := hostconfig.ReadContainerd(f.host.root, r.Config.Path)
	if err != nil && (r.Config.From != byDefault || !errors.Is(err, fs.ErrNotExist)) {
		f.note("the configuration %s of containerd was not read: %v", r.Config.Path, err)
	}
	configured(&r.Socket, config.Address, r.Config.Path)
	configured(&r.State, config.State, r.Config.Path)
	set(&r.Socket, p, "--address", "-address", "-a")
	set(&r.State, p, "--state", "-state")
	return r
}

// crio reads a CRI-O's places: flags count before the configuration.
func (f *finder) crio(p *process) Runtime {
	r := Runtime{Kind: CRIO, PID: p.pid, Socket: Place{crioSocket, byDefault}, State: Place{crioRunRoot, byDefault},
		Config: Place{hostconfig.CRIOPath, byDefault}, ConfigDir: Place{hostconfig.CRIODir, byDefault}}
	set(&r.Config, p, "--config", "-config", "-c")
	set(&r.ConfigDir, p, "--config-dir", "-config-dir", "-d")
	config, err := hostconfig.ReadCRIO(f.host.root, r.Config.Path, r.ConfigDir.Path)
	if err != nil && (r.Config.From != byDefault || !errors.Is(err, fs.ErrNotExist)) {
		f.note("the configuration %s and %s of CRI-O was not read: %v", r.Config.Path, r.ConfigDir.Path, err)
	}
	configured(&r.Socket, config.Listen, "its configuration")
	configured(&r.State, config.RunRoot, "its configuration")
	set(&r.Socket, p, "--listen", "-listen")
	set(&r.State, p, "--runroot", "-runroot")
	return r
}

// set sets a place to the value of a flag, if it was given.
func set(to *Place, p *process, names ...string) {
	if value, given := flag(p.argv[1:], names...); given && value != "" {
		*to = Place{clean(value), p.place()}
	}
}

// configured sets a place to the value of a configuration file, if it has one.
func configured(to *Place, value, from string) {
	if value != "" {
		*to = Place{clean(value), from}
	}
}

// clean returns the path of a socket or directory, which can be written as a URL.
func clean(value string) string {
	return path.Clean(strings.TrimPrefix(value, "unix://"))
}

// bundles are the directories with the OCI specs of the runtime's containers, as paths of the host.
func (f *finder) bundles() []kubelet.Bundle {
	switch r := &f.host.Runtime; r.Kind {
	case Containerd:
		return []kubelet.Bundle{kubelet.TaskBundle(r.State.Path)}
	case CRIO:
		driver := "overlay"
		if config, err := hostconfig.ReadCRIO(f.host.root, r.Config.Path, r.ConfigDir.Path); err == nil && config.StorageDriver != "" {
			driver = config.StorageDriver
		}
		return []kubelet.Bundle{kubelet.CRIOBundle(r.State.Path, path.Base(driver))}
	}
	return nil
}

// notServed returns why a path is not the socket of a runtime of the host; empty if it is.
func (f *finder) notServed(socket string) string {
	if f.ownerErr != nil {
		return f.ownerErr.Error()
	}
	info, err := os.Lstat(f.host.Local(socket))
	if err != nil {
		return fmt.Sprintf("its socket %s was not found", socket)
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return socket + " is not a socket"
	}
	if uid, err := owner(info); err != nil || uid != f.owner {
		return because(err, fmt.Sprintf("its socket %s belongs to the user %d", socket, uid))
	}
	return ""
}

// same compares two paths of the host, following links.
func (f *finder) same(a, b string) bool {
	return a != "" && b != "" && f.host.Local(a) == f.host.Local(b)
}
