package sandbox

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/berth-gpu/berth/internal/node/pages"
)

// agentPrefix is the prefix of the names of a node's agent processes: the first is "agent", the next "agent-2", and so
// on.
const agentPrefix = "agent"

// AgentArgv returns the command line of the node's agent as a process of the host.
func (n Node) AgentArgv(args ...string) []string {
	argv := []string{
		filepath.Join(n.c.state.Bin, "berth-agent"),
		"--sim", n.HardwareDir(),
		"--kubelet-dir", "/var/lib/kubelet",
		"--cdi-dir", "/var/run/cdi",
		"--kubeconfig", n.agentKubeconfigPath(),
		"--node-name", n.name,
		// The machine's processes and /opt are shared by all nodes.
		"--cgroup-root", "/" + n.Cgroup(),
		"--hook-dir", hookDir,
	}
	return append(append(argv, n.state().Agent.Args...), args...)
}

// StartAgentProcess starts an agent as a process of the host in the node's mount namespace, in addition to running
// ones, and waits until it is ready.
func (n Node) StartAgentProcess(ctx context.Context, args ...string) (Process, error) {
	agent, err := n.launchAgent(args...)
	if err != nil {
		return agent, err
	}
	return agent, n.waitAgentProcess(ctx, agent)
}

// launchAgent starts an agent as a process of the host.
func (n Node) launchAgent(args ...string) (Process, error) {
	name := agentPrefix
	for i := 2; n.process(name).Alive(); i++ {
		name = agentPrefix + "-" + strconv.Itoa(i)
	}
	return n.start(name, nil, n.AgentArgv(append([]string{"--instance", name}, args...)...)...)
}

// waitAgentProcess waits until an agent that runs as a process of the host is ready.
func (n Node) waitAgentProcess(ctx context.Context, agent Process) error {
	return waitFor(ctx, fmt.Sprintf("the process berth-agent of %s", n.name), []Process{agent}, func(ctx context.Context) error {
		_, err := pages.Client{Socket: n.AgentSocket(agent)}.Get(ctx, "/readyz")
		return err
	})
}

// procMPS is the name of a supervisor of MPS daemons that runs as a process of the host.
const procMPS = "mps"

// StartMPSProcess starts the supervisor of MPS daemons as a process of the host in the node's mount namespace, and
// returns at once. A node has at most one.
func (n Node) StartMPSProcess() error {
	argv := n.AgentArgv()
	_, err := n.start(procMPS, nil, append([]string{argv[0], "mps"}, argv[1:]...)...)
	return err
}

// EndMPSProcess sends sig to the supervisor that StartMPSProcess started, and waits until it has ended.
func (n Node) EndMPSProcess(ctx context.Context, sig syscall.Signal) error {
	return n.stop(ctx, procMPS, sig)
}

// AgentProcesses returns the agents of the node that run as processes of the host, oldest first.
func (n Node) AgentProcesses() []Process {
	var out []Process
	for _, p := range n.c.snapshot().Processes {
		if p.Node == n.name && (p.Name == agentPrefix || strings.HasPrefix(p.Name, agentPrefix+"-")) && p.Alive() {
			out = append(out, p)
		}
	}
	return out
}

// EndAgentProcess sends sig to an agent that runs as a process of the host, and waits until it has ended.
func (n Node) EndAgentProcess(ctx context.Context, agent Process, sig syscall.Signal) error {
	return n.stop(ctx, agent.Name, sig)
}

// EndAgentProcesses is EndAgentProcess for all of them.
func (n Node) EndAgentProcesses(ctx context.Context, sig syscall.Signal) error {
	for _, p := range n.AgentProcesses() {
		if err := n.EndAgentProcess(ctx, p, sig); err != nil {
			return err
		}
	}
	return nil
}
