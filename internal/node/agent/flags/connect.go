package flags

import (
	"fmt"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// Connect returns a client of the API server, or nil when standalone.
func (f *Flags) Connect(config *v1alpha1.AgentConfig) (dynamic.Interface, error) {
	if config.Standalone {
		return nil, nil
	}
	to, err := access(f.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w (use --kubeconfig FILE, run in a pod with a service account, or run without it: --standalone)", err)
	}
	to.UserAgent = "berth-agent"
	client, err := dynamic.NewForConfig(to)
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
