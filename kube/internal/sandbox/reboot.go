package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
)

// kernelBootID is where programs read the ID of the present boot.
const kernelBootID = "/proc/sys/kernel/random/boot_id"

// RebootOptions choose what starts with the node.
type RebootOptions struct {
	// AgentProcess starts the agent as a process of the host, before the kubelet, as an init system could. The node's DaemonSet has to be
	// stopped.
	AgentProcess bool
}

// Reboot does to the node what a reboot of its machine does, and waits until it is Ready: all processes of the node end without
// notice, /run is empty, the boot ID is another one, and the simulated GPUs have lost what GPUs lose. Its files stay.
func (n Node) Reboot(ctx context.Context, o RebootOptions) error {
	if n.Hollow() {
		return fmt.Errorf("reboot %s: a hollow node has no machine to reboot", n.name)
	}
	// The next mount namespace needs the mount points; without a mount, another sandbox could remove them.
	release, err := borrowDirs(borrowed())
	if err != nil {
		return fmt.Errorf("reboot %s: %w", n.name, err)
	}
	defer release()
	if err := n.powerOff(ctx); err != nil {
		return fmt.Errorf("reboot %s: %w", n.name, err)
	}
	if err := n.resetMachine(ctx); err != nil {
		return fmt.Errorf("reboot %s: %w", n.name, err)
	}
	if err := n.makeNode(); err != nil {
		return err
	}
	if err := n.startContainerd(ctx); err != nil {
		return err
	}
	var agent Process
	if o.AgentProcess {
		if agent, err = n.launchAgent(); err != nil {
			return err
		}
	}
	if err := n.StartKubelet(ctx); err != nil {
		return err
	}
	if err := n.WaitReady(ctx); err != nil || !o.AgentProcess {
		return err
	}
	return n.waitAgentProcess(ctx, agent)
}

// powerOff ends every process of the node, and with the last one its mount namespace. The kubelet ends first, so that it sees no
// container end.
func (n Node) powerOff(ctx context.Context) error {
	for _, name := range []string{procKubelet, procMPS} {
		if err := n.stop(ctx, name, syscall.SIGKILL); err != nil {
			return err
		}
	}
	if err := n.EndAgentProcesses(ctx, syscall.SIGKILL); err != nil {
		return err
	}
	if err := n.stop(ctx, procContainerd, syscall.SIGKILL); err != nil {
		return err
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		// Containers, and what is in no cgroup of the node, such as the shims of the runtime and the process that holds the namespace.
		left := append(n.c.cgroups.kill(n.Cgroup(), time.Until(deadline)), nodeMembers("/proc", n.c.dir, n.name)...)
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("processes %v do not end", left)
		}
		for _, pid := range left {
			// The start time protects against the reuse of a PID.
			if t, err := startTime(pid); err == nil {
				_ = Process{PID: pid, StartTime: t}.Signal(syscall.SIGKILL)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.Join(n.stop(ctx, procHolder, syscall.SIGKILL), n.c.cgroups.remove(n.Cgroup()))
}

// resetMachine makes of the node's files and hardware what they are after a boot.
func (n Node) resetMachine(ctx context.Context) error {
	run := filepath.Join(n.dir(), "run")
	if err := os.RemoveAll(run); err != nil {
		return fmt.Errorf("empty /run: %w", err)
	}
	if err := os.Mkdir(run, 0o755); err != nil {
		return fmt.Errorf("empty /run: %w", err)
	}
	// The kernel makes a random UUID at each boot, too.
	if err := os.WriteFile(n.config("boot_id"), []byte(uuid.NewUUID()+"\n"), 0o444); err != nil {
		return fmt.Errorf("write boot ID: %w", err)
	}
	if n.state().Profile == "" {
		return nil
	}
	cmd := exec.CommandContext(ctx, filepath.Join(n.c.state.Bin, "berth"), "sim", "reboot", n.SimDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("reboot simulated hardware: %w: %s", err, out)
	}
	return nil
}
