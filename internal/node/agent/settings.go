package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/cdi"
	"github.com/berth-gpu/berth/internal/node/deviceplugin"
	"github.com/berth-gpu/berth/internal/node/kubelet"
)

// hookName is the hook program that is built beside berth-agent.
const hookName = "berth-cdi-hook"

func usesCDI(config *v1alpha1.AgentConfig) bool {
	return slices.Contains(config.DeviceListStrategy, v1alpha1.StrategyCDICRI) ||
		slices.Contains(config.DeviceListStrategy, v1alpha1.StrategyCDIAnnotations)
}

func strategy(config *v1alpha1.AgentConfig) deviceplugin.Strategy {
	s := deviceplugin.Strategy{
		ID: deviceplugin.IDStrategy(config.DeviceIDStrategy), PassDeviceSpecs: config.PassDeviceSpecs,
		AnnotationPrefix: config.CDIAnnotationPrefix,
	}
	for _, list := range config.DeviceListStrategy {
		s.List = append(s.List, deviceplugin.ListStrategy(list))
	}
	return s
}

// installHook puts the hook program where the container runtime can run it: on the host,
// also when the agent is in a container. Without a CDI strategy nothing needs it.
func installHook(config *v1alpha1.AgentConfig) (string, error) {
	if !usesCDI(config) {
		return "", nil
	}
	source, err := hookSource()
	if err != nil {
		return "", fmt.Errorf("install CDI hook: %w", err)
	}
	if _, err := os.Stat(source); err != nil {
		return "", fmt.Errorf("install CDI hook: %w (it belongs beside berth-agent; make build makes both)", err)
	}
	return cdi.InstallHook(source, config.HookDir)
}

// hookSource is the hook program beside this one.
func hookSource() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return filepath.Join(filepath.Dir(self), hookName), nil
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

// connect finds the API server: nil when standalone.
func connect(config *v1alpha1.AgentConfig, kubeconfig string) (dynamic.Interface, error) {
	if config.Standalone {
		return nil, nil
	}
	access, err := access(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w (give --kubeconfig FILE, run in a pod with a service account, or work without it: --standalone)", err)
	}
	access.UserAgent = "berth-agent"
	client, err := dynamic.NewForConfig(access)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	return client, nil
}

func access(kubeconfig string) (*rest.Config, error) {
	if kubeconfig != "" {
		return clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	return rest.InClusterConfig()
}
