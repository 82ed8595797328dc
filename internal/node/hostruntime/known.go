package hostruntime

import (
	"os"
	"path"
	"slices"

	"github.com/berth-gpu/berth/internal/node/hostconfig"
)

// known are the places of a runtime in a distribution, for hosts whose processes cannot be seen.
type known struct {
	kind   Kind
	socket string
	state  string
	// configs are where the configuration can be, and dir is CRI-O's directory of more.
	configs []string
	dir     string
}

// knownPlaces lists distributions before the plain containerd, which docker brings to nodes of all of them.
func knownPlaces() []known {
	const rancher = "agent/etc/containerd/config.toml"
	return []known{
		{kind: Containerd, socket: "/run/k3s/containerd/containerd.sock", state: "/run/k3s/containerd",
			configs: []string{path.Join("/var/lib/rancher/k3s", rancher), path.Join("/var/lib/rancher/rke2", rancher)}},
		{kind: Containerd, socket: "/run/k0s/containerd.sock", state: "/run/k0s/containerd", configs: []string{"/etc/k0s/containerd.toml"}},
		{kind: Containerd, socket: "/var/snap/microk8s/common/run/containerd.sock", state: "/var/snap/microk8s/common/run/containerd",
			configs: []string{"/var/snap/microk8s/current/args/containerd.toml"}},
		{kind: Containerd, socket: containerdSocket, state: containerdState, configs: []string{"/etc/cri/containerd.toml", hostconfig.ContainerdPath}},
		{kind: CRIO, socket: crioSocket, state: crioRunRoot, configs: []string{hostconfig.CRIOPath}, dir: hostconfig.CRIODir},
	}
}

// knownBy returns the first known place that matches.
func (f *finder) knownBy(match func(known) bool) *known {
	places := knownPlaces()
	if at := slices.IndexFunc(places, match); at >= 0 {
		return &places[at]
	}
	return nil
}

// fromKnown uses the known place that has a socket, then the one that has a configuration.
func (f *finder) fromKnown() {
	if found := f.knownBy(func(k known) bool { return f.notServed(k.socket) == "" }); found != nil {
		f.host.Runtime = f.runtimeAt(found, "its socket")
		return
	}
	if found := f.knownBy(f.hasConfig); found != nil {
		f.host.Runtime = f.runtimeAt(found, "its configuration")
	}
}

// runtimeAt returns the runtime of a known place.
func (f *finder) runtimeAt(k *known, from string) Runtime {
	return Runtime{Kind: k.kind, Socket: Place{k.socket, from}, State: Place{k.state, from}, Config: f.configOf(k), ConfigDir: Place{k.dir, byDefault}}
}

// configOf returns the first configuration file of a known place that exists, or the last.
func (f *finder) configOf(k *known) Place {
	for _, name := range k.configs {
		if _, err := os.Stat(f.host.Local(name)); err == nil {
			return Place{name, byDefault}
		}
	}
	return Place{k.configs[len(k.configs)-1], byDefault}
}

func (f *finder) hasConfig(k known) bool {
	if slices.ContainsFunc(k.configs, func(name string) bool { _, err := os.Stat(f.host.Local(name)); return err == nil }) {
		return true
	}
	return k.dir != "" && len(hostconfig.Glob(f.host.root, path.Join(k.dir, "*"))) > 0
}
