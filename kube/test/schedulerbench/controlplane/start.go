package controlplane

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-gpu/berth/kube/test/schedulerbench/process"
)

// Command is the name of the command that calls Serve with the flags --dir, --port, --streamed-lists and --gates.
const Command = "control-plane"

// ControlPlane is etcd and an API server that respond.
type ControlPlane struct {
	*process.Process
	// Kubeconfig is the path of a kubeconfig for it.
	Kubeconfig string
	// Config is for clients in this process. It does not limit their requests.
	Config *rest.Config
}

// Start starts a control plane from a program that has the command, on the given cores, and waits until it is ready. All its files are
// in dir. The caller stops it.
func Start(ctx context.Context, program, dir string, cores []int, options Options) (*ControlPlane, error) {
	port, err := process.FreePort(ctx)
	if err != nil {
		return nil, err
	}
	host := fmt.Sprintf("https://127.0.0.1:%d", port)
	c := &ControlPlane{Kubeconfig: filepath.Join(dir, "kubeconfig"), Config: &rest.Config{
		Host: host, BearerToken: token, QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("start a control plane: %w", err)
	}
	// The certificate is made by the API server at its start, for no one else.
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"bench": {Server: host, InsecureSkipTLSVerify: true}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"bench": {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{"bench": {Cluster: "bench", AuthInfo: "bench"}},
		CurrentContext: "bench",
	}, c.Kubeconfig); err != nil {
		return nil, fmt.Errorf("write a kubeconfig: %w", err)
	}
	if c.Process, err = process.Start(dir, Command, cores, program, Command, "--dir", dir, "--port", strconv.Itoa(port),
		"--streamed-lists="+strconv.FormatBool(options.Lists == Streamed), "--gates="+strings.Join(options.Gates, ",")); err != nil {
		return nil, err
	}
	if err := c.waitReady(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// waitReady waits until the API server serves.
func (c *ControlPlane) waitReady(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return c.Wait(ctx, "the API server", func(ctx context.Context) error {
		_, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	})
}
