package agent

import (
	"context"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/bound"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/node/openers"
)

// newFinder wires what finds the programs that keep a GPU from being reset.
func (a *Agent) newFinder(actions *nvidia.Actions) *openers.Finder {
	return openers.New(openers.Deps{
		Current: a.inventory.Current,
		Processes: func(ctx context.Context, device *gpu.GPU) ([]openers.Process, error) {
			found, err := bound.Call(ctx, "find who has GPU "+string(device.UUID)+" open", func() ([]nvidia.Opener, error) { return actions.Openers(device) })
			var processes []openers.Process
			for _, p := range found {
				processes = append(processes, openers.Process{PID: p.PID, Program: p.Program, Parent: p.Parent})
			}
			return processes, err
		},
		Daemon: func(id gpu.UUID) int {
			daemon, _ := a.mps.Status(id) // Without one the PID is 0.
			return daemon.PID
		},
		PodName: a.podName, ProcRoot: "/proc",
	})
}

// podName is NAMESPACE/NAME of the pod with a UID, as the containers and the ledger name it; empty when neither does.
func (a *Agent) podName(uid string) string {
	for _, c := range a.sync.Containers() {
		if c.PodUID == uid && c.Pod != "" {
			return c.Namespace + "/" + c.Pod
		}
	}
	for _, h := range a.ledger.Holdings() {
		if h.Holder.PodUID == uid && h.Holder.Name != "" {
			return h.Holder.Namespace + "/" + h.Holder.Name
		}
	}
	return ""
}
