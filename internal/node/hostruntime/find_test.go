package hostruntime_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/golden"
	"github.com/berth-gpu/berth/internal/node/hostruntime"
	"github.com/berth-gpu/berth/internal/node/hostruntime/hosttest"
	"github.com/berth-gpu/berth/internal/node/kubelet"
)

// find makes a host and looks at it.
func find(t *testing.T, host *hosttest.Host, state string) *hostruntime.Host {
	t.Helper()
	return hostruntime.Find(hostruntime.Deps{HostRoot: host.Root, Proc: host.Proc, ContainerdState: state, Library: "libnvidia-ml.so.1",
		LibraryFolders: []string{"usr/lib64", "lib64", "usr/lib/x86_64-linux-gnu", "usr/lib", "usr/lib/nvidia"}})
}

// settings is what was found of a host, and what the running runtime and container say of it.
func settings(t *testing.T, host *hosttest.Host, found *hostruntime.Host) string {
	t.Helper()
	var text strings.Builder
	line := func(name, value, from string) { fmt.Fprintf(&text, "%-15s %s (%s)\n", name, value, from) }
	r, k := &found.Runtime, &found.Kubelet
	name, version, err := hostruntime.Version(t.Context(), found.Local(r.Socket.Path))
	if err != nil {
		t.Error(err)
	}
	line("runtime", name+" "+version, fmt.Sprintf("%s, process %d", r.Kind, r.PID))
	line("socket", r.Socket.Path, r.Socket.From)
	line("state", r.State.Path, r.State.From)
	line("configuration", strings.TrimSpace(r.Config.Path+" "+r.ConfigDir.Path), r.Config.From)
	line("CDI", strings.Join(found.CDIDirs, ", "), found.CDIFrom)
	line("kubelet", k.Root.Path, k.Root.From)
	line("device plugins", k.DevicePlugins.Path, k.DevicePlugins.From)
	line("driver", found.Driver.Path+", devices "+found.DevRoot, found.Driver.From)
	containers := kubelet.NewContainers(kubelet.ContainersDeps{ProcRoot: host.Proc, Bundles: found.Bundles})
	live, err := containers.Live()
	if err != nil || len(live) != 1 {
		t.Errorf("found containers %v, %v; want 1", live, err)
	}
	for _, one := range live {
		line("OCI spec", strings.TrimPrefix(one.Spec, host.Root), one.Namespace+"/"+one.Pod+", "+one.Name+one.SpecError)
	}
	for _, note := range found.Notes {
		line("note", note, "-")
	}
	return text.String()
}

func TestHosts(t *testing.T) {
	for _, name := range hosttest.Names() {
		t.Run(name, func(t *testing.T) {
			host, err := hosttest.New(name)
			if err != nil {
				t.Fatal(err)
			}
			defer host.Close()
			got := settings(t, host, find(t, host, ""))
			golden.File(t, filepath.Join("testdata", name+".golden"), got)
		})
	}
}
