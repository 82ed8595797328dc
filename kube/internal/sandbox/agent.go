package sandbox

import (
	"cmp"
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

// agentPrefix is the prefix of the names of a node's agent processes: the first is "agent", the next "agent-2", and so
// on.
const agentPrefix = "agent"

// agentProgram is the program of a node's agent.
const agentProgram = "berth-agent"

// procMPS is the name of a node's supervisor of MPS daemons.
const procMPS = "mps"

const instanceFlag = "--instance"

// makeHardware creates the simulated hardware of the nodes. It runs before any process is started, so that a wrong
// profile fails early.
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

// CreateHardware creates the node's simulated hardware. Its UUIDs are derived from the name of the node, so they are
// the same in every sandbox.
func (n Node) CreateHardware(ctx context.Context, profile string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(n.c.state.Bin, "berth"), "sim", "create", n.SimDir(), "--profile",
		profile, "--seed", n.name)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make simulated hardware of %s: %s", n.name, cmp.Or(strings.TrimPrefix(strings.TrimSpace(string(out)), "error: "), err.Error()))
	}
	return nil
}

// AgentArgv returns the command line of the node's agent as a process of the host.
func (n Node) AgentArgv(args ...string) []string { return n.agentArgv(agentProgram, args...) }

func (n Node) agentArgv(program string, args ...string) []string {
	argv := []string{
		filepath.Join(n.c.state.Bin, program),
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

// StartMPS starts the supervisor of MPS daemons, berth-agent mps, in the node's mount namespace and returns at once. A
// node has at most one.
func (n Node) StartMPS(_ context.Context, args ...string) (Process, error) {
	if p := n.process(procMPS); p.Alive() {
		return p, nil
	}
	argv := n.AgentArgv(args...)
	return n.start(procMPS, nil, append([]string{argv[0], "mps"}, argv[1:]...)...)
}

// HookDir is the directory in which the node's agent installs its CDI hook; the path is the same inside and outside.
func (n Node) HookDir() string { return filepath.Join(n.dir(), "hooks") }

// StartAgent starts an agent in the node's mount namespace, in addition to running ones, and returns at once. The agent
// has its own socket; see [Node.AgentSocket].
func (n Node) StartAgent(_ context.Context, args ...string) (Process, error) {
	return n.StartAgentProgram(agentProgram, nil, args...)
}

// StartAgentProgram is StartAgent with another program of the sandbox that has the flags of berth-agent, and with more
// environment variables.
func (n Node) StartAgentProgram(program string, env []string, args ...string) (Process, error) {
	name := agentPrefix
	for i := 2; n.process(name).Alive(); i++ {
		name = agentPrefix + "-" + strconv.Itoa(i)
	}
	return n.start(name, env, n.agentArgv(program, append([]string{instanceFlag, name}, args...)...)...)
}

// AgentSocket returns the outside path of the socket of an agent that StartAgent started.
func (n Node) AgentSocket(agent Process) string {
	return pages.Own(n.AgentDir(), agent.Name)
}

// AgentDir returns the outside path of the node's /run/berth.
func (n Node) AgentDir() string { return filepath.Join(n.dir(), "run", "berth") }

// WaitAgentReady waits until an agent reports that it is ready.
func (n Node) WaitAgentReady(ctx context.Context, agent Process) error {
	return waitFor(ctx, "berth-agent of "+n.name, []Process{agent}, func(ctx context.Context) error {
		_, err := pages.Client{Socket: n.AgentSocket(agent)}.Get(ctx, "/readyz")
		return err
	})
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

// Agents returns the running agents of the node, oldest first.
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

// KillAgent kills every agent of the node with SIGKILL.
func (n Node) KillAgent(ctx context.Context) error { return n.stopAgents(ctx, syscall.SIGKILL) }

// StopAgent terminates every agent of the node, and waits until it has ended.
func (n Node) StopAgent(ctx context.Context) error { return n.stopAgents(ctx, syscall.SIGTERM) }

// EndAgent sends sig to one agent of the node, and waits until it has ended.
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
