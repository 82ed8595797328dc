package sandbox

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"
)

// agentPrefix starts the name of every agent process of a node: the first is
// "agent", one started beside it "agent-2", and so on.
const agentPrefix = "agent"

// startAgents makes the simulated hardware of the nodes and starts an agent on
// each.
func (c *Cluster) startAgents(ctx context.Context, o Options, p *progress) error {
	if o.Profile == "" {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range c.Nodes() {
		group.Go(func() error {
			if err := n.CreateHardware(ctx, o.Profile); err != nil {
				return err
			}
			if !o.wantsAgent() {
				return nil
			}
			_, err := n.StartAgent(ctx)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if o.wantsAgent() {
		p.step("simulated %s and berth-agent on every node", o.Profile)
	} else {
		p.step("simulated %s on every node, no agent", o.Profile)
	}
	return nil
}

// CreateHardware makes the node's simulated hardware.
func (n Node) CreateHardware(ctx context.Context, profile string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(n.c.state.Bin, "berth"), "sim", "create", n.SimDir(), "--profile", profile)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make simulated hardware of %s: %w: %s", n.name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// AgentArgv is the command line of the node's agent as a process of the host.
func (n Node) AgentArgv(args ...string) []string {
	argv := []string{
		filepath.Join(n.c.state.Bin, "berth-agent"),
		"--sim", n.SimDir(),
		"--kubelet-dir", "/var/lib/kubelet",
		"--cdi-dir", "/var/run/cdi",
		"--kubeconfig", n.c.pkiPath("agent.conf"),
		"--node-name", n.name,
	}
	return append(append(argv, n.state().AgentArgs...), args...)
}

// StartAgent starts an agent in the node's mount namespace, beside those that
// already run there, and returns at once.
func (n Node) StartAgent(_ context.Context, args ...string) (Process, error) {
	name := agentPrefix
	for i := 2; ; i++ {
		if p := n.process(name); p.PID == 0 || !p.Alive() {
			break
		}
		name = agentPrefix + "-" + strconv.Itoa(i)
	}
	return n.start(name, nil, n.AgentArgv(args...)...)
}

// Agents lists the running agents of the node, the oldest first.
func (n Node) Agents() []Process {
	var out []Process
	for _, p := range n.c.snapshot().Processes {
		if p.Node == n.name && isAgent(p.Name) && p.Alive() {
			out = append(out, p)
		}
	}
	return out
}

func isAgent(name string) bool {
	return name == agentPrefix || strings.HasPrefix(name, agentPrefix+"-")
}

// KillAgent ends every agent of the node without notice.
func (n Node) KillAgent(ctx context.Context) error { return n.stopAgents(ctx, syscall.SIGKILL) }

// StopAgent asks every agent of the node to end, and waits until it has.
func (n Node) StopAgent(ctx context.Context) error { return n.stopAgents(ctx, syscall.SIGTERM) }

func (n Node) stopAgents(ctx context.Context, sig syscall.Signal) error {
	for _, p := range n.Agents() {
		if err := n.stop(ctx, p.Name, sig); err != nil {
			return err
		}
	}
	return nil
}
