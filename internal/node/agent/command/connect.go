package command

import (
	"errors"
	"fmt"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// A prepare reads its ResourceClaim, and a node may have to prepare many at once. The limits are the kubelet's defaults (kubeAPIQPS,
// kubeAPIBurst); those of client-go, 5 and 10, would delay the last of 64 claims by 11 s.
const (
	clientQPS   = 50
	clientBurst = 100
)

// Clientsets returns a client of the API server for the types of Kubernetes, or nil when standalone, and the client that asks about the
// tokens of those who read /metrics, or nil where they need none. It is one of its own: whoever sends tokens must not delay the agent's
// other requests.
func (f *sharedFlags) Clientsets(config *v1alpha1.AgentConfig) (kube, metrics kubernetes.Interface, err error) {
	switch {
	case f.MetricsAuth != AuthNone && f.MetricsAuth != AuthKubernetes:
		return nil, nil, fmt.Errorf("--metrics-auth %s: want %s or %s", f.MetricsAuth, AuthNone, AuthKubernetes)
	case config.Standalone && f.MetricsAuth == AuthKubernetes:
		return nil, nil, errors.New("--metrics-auth kubernetes needs an API server, and --standalone works without one (leave out one of them)")
	case config.Standalone:
		return nil, nil, nil
	case f.MetricsAuth == AuthKubernetes:
		if metrics, err = f.clientset(); err != nil {
			return nil, nil, err
		}
	}
	kube, err = f.clientset()
	return kube, metrics, err
}

func (f *sharedFlags) clientset() (kubernetes.Interface, error) {
	to, err := f.server()
	if err != nil {
		return nil, err
	}
	to.QPS, to.Burst = clientQPS, clientBurst
	client, err := kubernetes.NewForConfig(to)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	return client, nil
}

// server returns the address of the API server and the agent's credentials.
func (f *sharedFlags) server() (*rest.Config, error) {
	to, err := access(f.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	to.UserAgent = "berth-agent"
	return to, nil
}

// Connect returns a client of the API server, or nil when standalone. A ConfigMap cannot be read without an API server.
func (f *sharedFlags) Connect(config *v1alpha1.AgentConfig) (dynamic.Interface, error) {
	if config.Standalone {
		if f.ConfigMap != "" {
			return nil, fmt.Errorf("--config-map %s needs an API server, and --standalone works without one (use --config FILE, or leave out --standalone)", f.ConfigMap)
		}
		return nil, nil
	}
	to, err := f.server()
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(to)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	return client, nil
}

func access(kubeconfig string) (*rest.Config, error) {
	if kubeconfig != "" {
		to, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("read --kubeconfig: %w (correct the path or the file)", err)
		}
		return to, nil
	}
	to, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, errors.New("this process is not in a pod, and --kubeconfig is not given (use --kubeconfig FILE, or --standalone to work without an API server)")
	}
	if err != nil {
		return nil, fmt.Errorf("%w (check the pod's service account, or use --kubeconfig FILE)", err)
	}
	return to, nil
}
