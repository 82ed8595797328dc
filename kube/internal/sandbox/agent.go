package sandbox

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-gpu/berth/internal/node/pages"
)

// AgentOptions is how a node's agent differs from the one of the chart.
type AgentOptions struct {
	// Image replaces the agent's image; the node must have it.
	Image string `json:"image,omitempty"`
	// Args are added to the arguments of berth-agent.
	Args []string `json:"args,omitempty"`
	// Env are further environment variables, as NAME=VALUE.
	Env []string `json:"env,omitempty"`
	// Dirs are further directories of the machine that the agent's container has, at the same paths.
	Dirs []string `json:"dirs,omitempty"`
}

// with returns the options with those of more added.
func (o AgentOptions) with(more AgentOptions) AgentOptions {
	return AgentOptions{
		Image: cmp.Or(more.Image, o.Image),
		Args:  slices.Concat(o.Args, more.Args),
		Env:   slices.Concat(o.Env, more.Env),
		Dirs:  slices.Concat(o.Dirs, more.Dirs),
	}
}

// makeHardware creates the simulated hardware of the nodes. It runs before any process is started, so that a wrong
// profile fails early.
func (c *Cluster) makeHardware(ctx context.Context, p *progress) error {
	var made []string
	for _, n := range c.Nodes() {
		profile := n.state().Profile
		if profile == "" {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(n.SimDir()), 0o755); err != nil {
			return fmt.Errorf("make simulated hardware of %s: %w", n.name, err)
		}
		if err := n.CreateHardware(ctx, profile); err != nil {
			return err
		}
		made = append(made, profile+" on "+n.name)
	}
	if len(made) > 0 {
		p.step("simulated %s", strings.Join(made, ", "))
	}
	return nil
}

// startAgents starts an agent on each node.
func (c *Cluster) startAgents(ctx context.Context, o Options, p *progress) error {
	if !o.wantsAgent() {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range c.Nodes() {
		if n.state().Profile == "" {
			continue
		}
		group.Go(func() error {
			if err := n.StartAgent(ctx, AgentOptions{}); err != nil {
				return err
			}
			if err := n.WaitAgentReady(ctx); err != nil {
				return err
			}
			n.waitForDevices(ctx)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	p.step("berth-agent on every node")
	return nil
}

// install installs the chart, and gives the kubelets time to publish the devices.
func (c *Cluster) install(ctx context.Context, o Options, p *progress) error {
	if err := c.installChart(ctx, o.HelmValues); err != nil {
		return err
	}
	if err := c.startHollowAgents(ctx); err != nil {
		return err
	}
	for _, n := range c.Nodes() {
		if n.state().Profile != "" {
			n.waitForDevices(ctx)
		}
	}
	p.step("installed the chart with Helm: release %s in the namespace %s", releaseName, agentNamespace)
	return nil
}

// startHollowAgents starts the agents of the hollow nodes, which run no pod of the chart's DaemonSet, with the account of those that do.
// They have no gate: no pod could validate such a node.
func (c *Cluster) startHollowAgents(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range c.Nodes() {
		if !n.Hollow() || n.state().Profile == "" {
			continue
		}
		group.Go(func() error {
			if err := n.writeAgentKubeconfig(ctx); err != nil {
				return err
			}
			if err := n.StartAgent(ctx, AgentOptions{}); err != nil {
				return err
			}
			return n.WaitAgentReady(ctx)
		})
	}
	return group.Wait()
}

// CreateHardware creates the node's simulated hardware. Its UUIDs are derived from the name of the node, so they are
// the same in every sandbox.
func (n Node) CreateHardware(ctx context.Context, profile string) error {
	args := []string{"sim", "create", n.SimDir(), "--profile", profile, "--seed", n.name}
	if clique := n.state().Clique; clique != "" {
		args = append(args, "--clique", clique)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(n.c.state.Bin, "berth"), args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make simulated hardware of %s: %s", n.name, cmp.Or(strings.TrimPrefix(strings.TrimSpace(string(out)), "error: "), err.Error()))
	}
	return nil
}

// AgentSocket returns the outside path of the socket of one of the node's agents.
func (n Node) AgentSocket(agent Process) string {
	return pages.Own(n.AgentDir(), agent.Name)
}

// AgentDir returns the outside path of the node's /run/berth.
func (n Node) AgentDir() string { return filepath.Join(n.dir(), "run", "berth") }

// StartAgent starts the node's agent as it ships: the DaemonSet of the chart with its image, account and rights.
// It returns at once; see [Node.WaitAgentReady]. A node whose container runtime only records gets a process instead.
func (n Node) StartAgent(ctx context.Context, more AgentOptions) error {
	if n.Hollow() {
		_, err := n.StartAgentProcess(ctx, more.Args...)
		return err
	}
	set, err := n.agentSet(more)
	if err != nil {
		return err
	}
	return n.applySet(ctx, set)
}

// UpgradeAgent replaces the node's agent by a new one of the same DaemonSet, and returns when the old one has ended.
func (n Node) UpgradeAgent(ctx context.Context) error {
	return n.rollSet(ctx, agentSetName)
}

// WaitAgentReady waits until the node has one agent, which reports that it is ready.
func (n Node) WaitAgentReady(ctx context.Context) error {
	what := "berth-agent of " + n.name
	err := waitFor(ctx, what, nil, func(ctx context.Context) error {
		agents, err := n.Agents(ctx)
		if err != nil {
			return err
		}
		if len(agents) != 1 {
			return fmt.Errorf("%d agents run on the node, want one", len(agents))
		}
		_, err = pages.Client{Socket: n.AgentSocket(agents[0])}.Get(ctx, "/readyz")
		return err
	})
	if err != nil && !n.Hollow() {
		return fmt.Errorf("%w%s", err, n.describeSet(agentSetName))
	}
	return err
}

// Agents returns the running agents of the node, oldest first. The name of each is its instance: the name of its pod.
func (n Node) Agents(ctx context.Context) ([]Process, error) {
	if n.Hollow() {
		return n.AgentProcesses(), nil
	}
	return n.containersOf(ctx, agentNamespace, agentContainer)
}

// KillAgent kills every agent of the node with SIGKILL. None runs until [Node.StartAgent].
func (n Node) KillAgent(ctx context.Context) error {
	if n.Hollow() {
		return n.EndAgentProcesses(ctx, syscall.SIGKILL)
	}
	return n.killSet(ctx, agentSetName, agentContainer)
}

// StopAgent deletes the node's agent as a user does, and waits until it has ended.
func (n Node) StopAgent(ctx context.Context) error {
	if n.Hollow() {
		return n.EndAgentProcesses(ctx, syscall.SIGTERM)
	}
	return n.deleteSet(ctx, agentSetName)
}

// waitForDevices gives the kubelet time to publish the agent's devices in the node's status. Which devices an agent
// advertises is not checked, so having none is not an error.
func (n Node) waitForDevices(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		if _, gpus := n.c.nodeFacts(ctx, n); gpus != "-" {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}
