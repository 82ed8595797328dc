package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/cdi"
	"github.com/berth-gpu/berth/internal/node/deviceplugin"
	"github.com/berth-gpu/berth/internal/node/inventory"
	"github.com/berth-gpu/berth/internal/node/kubelet"
)

func strategy(config *v1alpha1.AgentConfig) deviceplugin.Strategy {
	return deviceplugin.Strategy{
		ID: deviceplugin.IDStrategy(config.DeviceIDStrategy), PassDeviceSpecs: config.PassDeviceSpecs,
		AnnotationPrefix: config.CDIAnnotationPrefix, List: config.DeviceListStrategy,
	}
}

// installHook installs the hook program where the container runtime can run it: on the host, also when the agent is in a
// container. Without a CDI strategy nothing needs it.
func installHook(config *v1alpha1.AgentConfig, source string) (string, error) {
	if !config.UsesCDI() {
		return "", nil
	}
	if _, err := os.Stat(source); err != nil {
		return "", fmt.Errorf("install CDI hook: %w (it belongs beside berth-agent; make build makes both)", err)
	}
	return cdi.InstallHook(source, config.HookDir)
}

// bundles are the places of the runtime's OCI specs: the usual ones beside the
// given containerd.
func bundles(config *v1alpha1.AgentConfig) []kubelet.Bundle {
	places := []kubelet.Bundle{{
		Dir:  filepath.Join(config.ContainerdStateDir, "io.containerd.runtime.v2.task", "k8s.io"),
		File: "config.json",
	}}
	for _, place := range kubelet.DefaultBundles(filepath.Join(config.HostRoot, "run")) {
		if place != places[0] {
			places = append(places, place)
		}
	}
	return places
}

// mark names the devices of a container in its environment, for a look at it later.
func mark(resource string, keys []gpu.DeviceKey) (name, value string) {
	return kubelet.DevicesEnv(resource), kubelet.FormatKeys(keys)
}

// scanned is the inventory of MIG changes.
type scanned struct{ inventory *inventory.Inventory }

// Current implements migapply.Inventory.
func (s scanned) Current() *gpu.Snapshot { return s.inventory.Current() }

// Rescan implements migapply.Inventory.
func (s scanned) Rescan(ctx context.Context) error { return s.inventory.Refresh(ctx) }
