package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Node is a node of a sandbox.
type Node struct {
	c    *Cluster
	name string
}

// The processes of a node, as named in the state file.
const (
	procHolder     = "namespace"
	procContainerd = "containerd"
	procFakeCRI    = "fake-cri"
	procKubelet    = "kubelet"
)

// Name is the node's name in the cluster.
func (n Node) Name() string { return n.name }

func (n Node) state() NodeState {
	s := n.c.snapshot()
	for _, ns := range s.Nodes {
		if ns.Name == n.name {
			return ns
		}
	}
	return NodeState{Name: n.name}
}

func (n Node) dir() string { return filepath.Join(n.c.dir, "nodes", n.name) }

// Hollow reports whether the node's container runtime only records.
func (n Node) Hollow() bool { return n.state().Hollow }

// KubeletDir is the outside path of the node's /var/lib/kubelet. The volumes of pods are mounts of the node and are
// visible below Root only.
func (n Node) KubeletDir() string { return filepath.Join(n.dir(), "kubelet") }

// CDIDir is the outside path of the node's /var/run/cdi.
func (n Node) CDIDir() string { return filepath.Join(n.dir(), "run", "cdi") }

// EtcCDIDir is the outside path of the node's /etc/cdi.
func (n Node) EtcCDIDir() string { return filepath.Join(n.dir(), "etc-cdi") }

// SimDir is the outside path of the node's simulated hardware.
func (n Node) SimDir() string { return filepath.Join(n.dir(), "sim") }

// HardwareDir is the inside path of the node's simulated hardware, which is the same on each node.
func (n Node) HardwareDir() string { return n.c.hardwareDir() }

func (c *Cluster) hardwareDir() string { return filepath.Join(c.dir, "hardware") }

// Root is the node's root directory as its processes see it.
func (n Node) Root() string { return fmt.Sprintf("/proc/%d/root", n.PID()) }

// PID is a process that stays in the node's mount namespace for the node's lifetime.
func (n Node) PID() int { return n.process(procHolder).PID }

// Cgroup is the node's cgroup, relative to the root of a hierarchy.
func (n Node) Cgroup() string { return filepath.Join(n.c.snapshot().Cgroup, n.name) }

// LogPath is the log file of a process of the node, for example "kubelet".
func (n Node) LogPath(process string) string { return n.c.logPath(n.name, process) }

func (n Node) process(name string) Process {
	if p := n.c.snapshot().process(n.name, name); p != nil {
		return *p
	}
	return Process{Name: name, Node: n.name}
}

// start starts a process inside the node's mount namespace.
func (n Node) start(name string, env []string, argv ...string) (Process, error) {
	holder := n.process(procHolder)
	return n.c.start(launch{name: name, node: n.name, argv: argv, env: env, enter: func() error {
		if !holder.Alive() {
			return fmt.Errorf("node %s is not running", n.name)
		}
		return enterNamespace(holder.PID)
	}})
}

// Exec runs a program of the host inside the node's mount namespace and returns its output.
func (n Node) Exec(ctx context.Context, argv ...string) ([]byte, error) {
	if len(argv) == 0 {
		return nil, errors.New("run in node: no command given")
	}
	var out []byte
	err := onFreshThread(func() error {
		if err := enterNamespace(n.PID()); err != nil {
			return err
		}
		var err error
		out, err = exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
		return err
	})
	if err != nil {
		return out, fmt.Errorf("run %s in node %s: %w", argv[0], n.name, err)
	}
	return out, nil
}

// makeNode creates the node's directories, cgroup and mount namespace.
func (n Node) makeNode() error {
	for _, dir := range []string{"kubelet", "cni/conf", "cni/state", "lib-berth", "etc-cdi", "log", "run/cdi",
		"run/containerd", "containerd", "config"} {
		if err := os.MkdirAll(filepath.Join(n.dir(), dir), 0o755); err != nil {
			return fmt.Errorf("make node %s: %w", n.name, err)
		}
	}
	// The host's resolver is not used: a sandbox has no name service.
	if err := os.WriteFile(filepath.Join(n.dir(), "config", "resolv.conf"), nil, 0o644); err != nil {
		return fmt.Errorf("make node %s: %w", n.name, err)
	}
	if err := n.c.cgroups.create(n.Cgroup()); err != nil {
		return fmt.Errorf("make node %s: %w", n.name, err)
	}
	holder, err := n.c.start(launch{
		name: procHolder, node: n.name,
		argv:  []string{filepath.Join(n.c.state.Bin, "workload"), "pause"},
		enter: func() error { return makeNodeNamespace(n.dir(), n.HardwareDir()) },
	})
	if err != nil {
		return err
	}
	return n.c.update(func(s *State) {
		for i := range s.Nodes {
			if s.Nodes[i].Name == n.name {
				s.Nodes[i].Root = fmt.Sprintf("/proc/%d/root", holder.PID)
			}
		}
	})
}

// StartKubelet starts the node's kubelet and waits until it is healthy and accepts registrations of device plugins.
func (n Node) StartKubelet(ctx context.Context) error {
	if p := n.process(procKubelet); p.Alive() {
		return nil
	}
	p, err := n.start(procKubelet, nil, n.kubeletArgv()...)
	if err != nil {
		return err
	}
	healthz := fmt.Sprintf("http://127.0.0.1:%d/healthz", n.state().HealthzPort)
	registration := n.Root() + "/var/lib/kubelet/device-plugins/kubelet.sock"
	return waitFor(ctx, "kubelet of "+n.name, []Process{p}, func(ctx context.Context) error {
		if err := n.c.httpOK(ctx, healthz); err != nil {
			return err
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", registration)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

func (c *Cluster) httpOK(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: &http.Transport{DialContext: c.DialInside, DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return nil
}

// StopKubelet stops the node's kubelet; its containers keep running.
func (n Node) StopKubelet(ctx context.Context) error {
	return n.stop(ctx, procKubelet, syscall.SIGTERM)
}

// RestartKubelet stops the node's kubelet and starts it again.
func (n Node) RestartKubelet(ctx context.Context) error {
	if err := n.StopKubelet(ctx); err != nil {
		return err
	}
	return n.StartKubelet(ctx)
}

func (n Node) stop(ctx context.Context, name string, sig syscall.Signal) error {
	if err := n.process(name).Stop(ctx, sig, 10*time.Second); err != nil {
		return err
	}
	return n.c.update(func(s *State) { s.dropProcess(n.name, name) })
}

// WaitReady waits until the API server reports that the node is ready.
func (n Node) WaitReady(ctx context.Context) error {
	return waitFor(ctx, "node "+n.name+" to be Ready", []Process{n.process(procKubelet)}, func(ctx context.Context) error {
		node, err := n.c.client.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, cond := range node.Status.Conditions {
			if cond.Type == corev1.NodeReady {
				if cond.Status == corev1.ConditionTrue {
					return nil
				}
				return errors.New(cond.Message)
			}
		}
		return errors.New("no Ready condition yet")
	})
}
