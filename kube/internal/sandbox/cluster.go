package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Cluster is a sandbox.
type Cluster struct {
	dir     string
	cgroups *cgroupFS
	config  *rest.Config
	client  kubernetes.Interface

	controllers []Process // set by Up only, to notice one that ends during the start

	mu    sync.Mutex
	state *State
}

// Open attaches to the sandbox in dir, which may be stopped or broken; see Status.
func Open(dir string) (*Cluster, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open sandbox: %w", err)
	}
	s, err := readState(dir)
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir, state: s}
	if c.cgroups, err = detectCgroups("/proc/self/mountinfo"); err != nil {
		return nil, fmt.Errorf("open sandbox: %w", err)
	}
	// A sandbox that ended before it had a kubeconfig can still be removed.
	if _, err := os.Stat(c.KubeconfigPath()); err == nil {
		if err := c.connect(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *Cluster) connect() error {
	cfg, err := clientcmd.BuildConfigFromFlags("", c.KubeconfigPath())
	if err != nil {
		return fmt.Errorf("read kubeconfig of the sandbox: %w", err)
	}
	// The sandbox is on this machine: no proxy, and no client-side rate limit.
	cfg.Proxy = noProxy
	cfg.QPS, cfg.Burst = 500, 1000
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("connect to the sandbox: %w", err)
	}
	c.config, c.client = cfg, client
	return nil
}

// Dir is the directory of the sandbox.
func (c *Cluster) Dir() string { return c.dir }

// KubeconfigPath is a kubeconfig with all rights.
func (c *Cluster) KubeconfigPath() string { return filepath.Join(c.dir, "kubeconfig") }

// Client is a client with all rights.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// RESTConfig is a copy of what Client uses.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.config) }

// Nodes lists the nodes that run containers first, then the hollow ones.
func (c *Cluster) Nodes() []Node {
	var nodes []Node
	for _, ns := range c.snapshot().Nodes {
		nodes = append(nodes, Node{c: c, name: ns.Name})
	}
	return nodes
}

// Node finds a node by name.
func (c *Cluster) Node(name string) (Node, error) {
	for _, n := range c.Nodes() {
		if n.name == name {
			return n, nil
		}
	}
	return Node{}, fmt.Errorf("the sandbox has no node %q", name)
}

// State returns the current content of the state file.
func (c *Cluster) State() State { return *c.snapshot() }

// snapshot reads the state file, which another process may have changed.
func (c *Cluster) snapshot() *State {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, err := readState(c.dir); err == nil {
		c.state = s
	}
	return c.state
}

func (c *Cluster) update(change func(*State)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, err := updateState(c.dir, change)
	if err != nil {
		return err
	}
	c.state = s
	return nil
}

func (c *Cluster) logPath(node, name string) string {
	if node != "" {
		name = node + "-" + name
	}
	return filepath.Join(c.dir, "logs", name+".log")
}

// Health returns what is wrong with the sandbox, or nil.
func (c *Cluster) Health(ctx context.Context) error {
	s := c.snapshot()
	var errs []error
	if s.Phase != phaseReady {
		errs = append(errs, fmt.Errorf("it is %s: its berth-sandbox up was interrupted or still runs", s.Phase))
	}
	if s.BootID != bootID() {
		return errors.Join(append(errs, errors.New("the machine was restarted"))...)
	}
	for _, p := range s.Processes {
		if !p.Alive() {
			errs = append(errs, fmt.Errorf("%s is not running; see %s", displayName(p), p.Log))
		}
	}
	if len(errs) == 0 && c.client != nil {
		if _, err := c.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
			errs = append(errs, fmt.Errorf("the API server is not ready: %w", err))
		}
	}
	return errors.Join(errs...)
}

// anyAlive reports whether at least one process of the sandbox runs.
func (s *State) anyAlive() bool {
	if s.BootID != bootID() {
		return false
	}
	for _, p := range s.Processes {
		if p.Alive() {
			return true
		}
	}
	return false
}

func displayName(p Process) string {
	if p.Node != "" {
		return p.Name + " of " + p.Node
	}
	return p.Name
}
