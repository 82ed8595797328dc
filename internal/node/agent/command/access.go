package command

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// hookName is the hook program that is built beside berth-agent.
const hookName = "berth-cdi-hook"

// hookSource returns the path of the hook program beside this one.
func hookSource() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the CDI hook: %w", err)
	}
	return filepath.Join(filepath.Dir(self), hookName), nil
}

// connect returns a client of the API server, or nil when standalone.
func connect(config *v1alpha1.AgentConfig, kubeconfig string) (dynamic.Interface, error) {
	if config.Standalone {
		return nil, nil
	}
	access, err := access(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w (use --kubeconfig FILE, run in a pod with a service account, or run without it: --standalone)", err)
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
