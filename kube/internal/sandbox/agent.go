package sandbox

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-gpu/berth/internal/node/pages"
)

// agentPrefix starts the name of every agent process of a node: the first is
// "agent", one started beside it "agent-2", and so on.
const agentPrefix = "agent"

// procMPS is the name of a node's supervisor of MPS daemons.
const procMPS = "mps"

const instanceFlag = "--instance"

// makeHardware makes the simulated hardware of the nodes: before anything is
// started, so that a wrong profile is known at once.
func (c *Cluster) makeHardware(ctx context.Context, o Options, p *progress) error {
	if o.Profile == "" {
		return nil
	}
	for _, n := range c.Nodes() {
		if err := os.MkdirAll(filepath.Dir(n.SimDir()), 0o755); err != nil {
			return fmt.Errorf("make simulated hardware of %s: %w", n.name, err)
		}
		if err := n.CreateHardware(ctx, o.Profile); err != nil {
			return err
		}
	}
	p.step("simulated %s on every node", o.Profile)
	return nil
}

// startAgents starts an agent on each node.
func (c *Cluster) startAgents(ctx context.Context, o Options, p *progress) error {
	if o.Profile == "" || !o.wantsAgent() {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range c.Nodes() {
		group.Go(func() error {
			agent, err := n.StartAgent(ctx)
			if err != nil {
				return err
			}
			if err := n.WaitAgentReady(ctx, agent); err != nil {
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

// CreateHardware makes the node's simulated hardware. Its UUIDs follow from the
// name of the node, so they are the same in every sandbox.
func (n Node) CreateHardware(ctx context.Context, profile string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(n.c.state.Bin, "berth"), "sim", "create", n.SimDir(), "--profile", profile, "--seed", n.name)
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
		"--kubeconfig", n.agentKubeconfigPath(),
		"--node-name", n.name,
		// The machine's processes and /opt are shared by all nodes.
		"--cgroup-root", "/" + n.Cgroup(),
		"--hook-dir", n.HookDir(),
	}
	return append(append(argv, n.state().AgentArgs...), args...)
}

// StartMPS starts the supervisor of MPS daemons, berth-agent mps, in the node's mount namespace
// and returns at once. A node has one at most.
func (n Node) StartMPS(_ context.Context, args ...string) (Process, error) {
	if p := n.process(procMPS); p.Alive() {
		return p, nil
	}
	argv := n.AgentArgv(args...)
	return n.start(procMPS, nil, append([]string{argv[0], "mps"}, argv[1:]...)...)
}

// HookDir is where the node's agent installs its CDI hook, the same inside and outside.
func (n Node) HookDir() string { return filepath.Join(n.dir(), "hooks") }

// StartAgent starts an agent in the node's mount namespace, beside those that
// already run there, and returns at once. It has a socket of its own; see
// [Node.AgentSocket].
func (n Node) StartAgent(_ context.Context, args ...string) (Process, error) {
	name := agentPrefix
	for i := 2; n.process(name).Alive(); i++ {
		name = agentPrefix + "-" + strconv.Itoa(i)
	}
	return n.start(name, nil, n.AgentArgv(append([]string{instanceFlag, name}, args...)...)...)
}

// AgentSocket is the socket of an agent started by StartAgent as seen from outside.
func (n Node) AgentSocket(agent Process) string {
	return pages.Own(n.AgentDir(), agent.Name)
}

// AgentDir is the node's /run/berth as seen from outside.
func (n Node) AgentDir() string { return filepath.Join(n.dir(), "run", "berth") }

// WaitAgentReady waits until an agent says that it is ready.
func (n Node) WaitAgentReady(ctx context.Context, agent Process) error {
	return waitFor(ctx, "berth-agent of "+n.name, []Process{agent}, func(ctx context.Context) error {
		_, err := pages.Client{Socket: n.AgentSocket(agent)}.Get(ctx, "/readyz")
		return err
	})
}

// waitForDevices gives kubelet the time to write the agent's devices into the
// node's status. What an agent offers is its own affair, so nothing is no
// error.
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

// EndAgent sends sig to one agent of the node, and waits until it is gone.
func (n Node) EndAgent(ctx context.Context, agent Process, sig syscall.Signal) error {
	return n.stop(ctx, agent.Name, sig)
}

func (n Node) stopAgents(ctx context.Context, sig syscall.Signal) error {
	for _, p := range n.Agents() {
		if err := n.EndAgent(ctx, p, sig); err != nil {
			return err
		}
	}
	return nil
}
