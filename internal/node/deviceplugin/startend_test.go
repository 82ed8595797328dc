package deviceplugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-gpu/berth/internal/node/deviceplugin/fakekubelet"
)

// TestAgentStartsBeforeTheKubelet checks that the agent creates none of the kubelet's directories, and registers when the
// kubelet has created them and serves.
func TestAgentStartsBeforeTheKubelet(t *testing.T) {
	root, h := kubeletDir(t), machine(8)
	dir := filepath.Join(root, "kubelet")
	a := startAgent(t, dir, h, nil)
	a.Ping(t.Context()) // Run has started a server.
	if a.stat(t).Registered {
		t.Error("it is registered without a kubelet")
	}
	absent := func(when string) {
		t.Helper()
		if entries, err := os.ReadDir(root); err != nil || len(entries) > 0 {
			t.Errorf("%s: the agent created %v, %v", when, entries, err)
		}
	}
	absent("without a kubelet")
	// The directory comes before the socket.
	if err := os.MkdirAll(pluginDir(dir), 0o750); err != nil {
		t.Fatal(err)
	}
	k := startKubelet(t, dir, fakekubelet.Options{})
	await(t, k, healthy(8))
	k.Kill()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	h.setHealthy(3, false)
	a.Ping(t.Context())
	absent("after the removal of the directory")
	await(t, startKubelet(t, dir, fakekubelet.Options{}), healthy(7))
	a.stop(t)
	if strings.Contains(a.log.String(), "device plugin directory") {
		t.Errorf("it warns of an absent directory:\n%s", a.log)
	}
}

// TestEndDuringRegistration checks what an agent leaves behind when it ends, or no longer offers the resource, before the
// kubelet has answered.
func TestEndDuringRegistration(t *testing.T) {
	tests := map[string]struct {
		before func(*testing.T, *hardware, *agent)
		left   bool
	}{
		"shutdown": {func(*testing.T, *hardware, *agent) {}, true},
		"no more offers": {func(t *testing.T, h *hardware, a *agent) {
			h.change(func(h *hardware) { h.snapshot.GPUs = nil })
			eventually(t, "the resource is withdrawn", func() bool { return len(a.Stats()) == 0 })
		}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir, h := kubeletDir(t), machine(8)
			k := startKubelet(t, dir, fakekubelet.Options{})
			entered, release := make(chan struct{}), make(chan struct{})
			k.Refuse(func(*pluginapi.RegisterRequest) error {
				close(entered)
				<-release
				return nil
			})
			a := startAgent(t, dir, h, named("a"))
			<-entered
			tc.before(t, h, a)
			a.stop(t)
			close(release)
			if _, err := os.Lstat(filepath.Join(pluginDir(dir), "berth-gpu-a.sock")); (err == nil) != tc.left {
				t.Errorf("the socket: %v; want it left behind: %v", err, tc.left)
			}
		})
	}
}
