package agent

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/migapply"
)

// openers are the programs that have a GPU open and keep it from being reset, without Berth's own: this agent closes
// the driver for a reset, and an MPS daemon ends with Quiesce.
func (a *Agent) openers(ctx context.Context, actions *nvidia.Actions, id gpu.UUID) ([]migapply.Opener, error) {
	card := a.inventory.Current().GPU(id)
	if card == nil {
		return nil, fmt.Errorf("find who has GPU %s open: the last scan did not find it", id)
	}
	found, err := bounded(ctx, "find who has GPU "+string(id)+" open", func() ([]nvidia.Opener, error) { return actions.Openers(card) })
	if err != nil {
		return nil, err
	}
	daemon := (*a.sharing.statuses.Load())[id].PID
	var openers []migapply.Opener
	for _, o := range found {
		if isDaemon(daemon, found, o) {
			continue
		}
		pod := a.podOf(o.PID)
		openers = append(openers, migapply.Opener{PID: o.PID, Program: o.Program, Pod: pod, Stop: howToStop(o, pod)})
	}
	return openers, nil
}

// isDaemon tells whether a process is the MPS control daemon of the GPU, or a server that it has started.
func isDaemon(daemon int, all []nvidia.Opener, o nvidia.Opener) bool {
	if daemon == 0 {
		return false
	}
	for range all { // as often as there can be parents among them
		if o.PID == daemon || o.Parent == daemon {
			return true
		}
		i := slices.IndexFunc(all, func(p nvidia.Opener) bool { return p.PID == o.Parent })
		if i < 0 {
			return false
		}
		o = all[i]
	}
	return false
}

// podOf is the pod of a process as NAMESPACE/NAME, or its UID where the name is not known; empty for a process of
// the host.
func (a *Agent) podOf(pid int) string {
	process, err := kubelet.ProcessOf("/proc", pid)
	if err != nil {
		return ""
	}
	for _, c := range a.sync.Containers() {
		if c.PodUID == process.PodUID && c.Pod != "" {
			return c.Namespace + "/" + c.Pod
		}
	}
	for _, h := range a.holdings() {
		if h.PodUID == process.PodUID && h.Pod != "" {
			return h.Namespace + "/" + h.Pod
		}
	}
	return "with UID " + process.PodUID
}

// howToStop says how to stop a program that has a GPU open.
func howToStop(o nvidia.Opener, pod string) string {
	inPod := pod != ""
	switch o.Program {
	case "dcgm-exporter", "nv-hostengine":
		if inPod {
			return "take DCGM off the node (label nvidia.com/gpu.deploy.dcgm-exporter=false and nvidia.com/gpu.deploy.dcgm=false, or delete pod " + pod + ")"
		}
		return "stop DCGM (systemctl stop nvidia-dcgm)"
	case "nvidia-persiste", "nvidia-persistenced": // the kernel cuts names after 15 bytes
		return "stop the persistence daemon (systemctl stop nvidia-persistenced)"
	case "Xorg", "X", "gnome-shell", "Xwayland":
		return "stop the display (systemctl isolate multi-user.target)"
	}
	if inPod {
		return "delete pod " + pod
	}
	return "end process " + strconv.Itoa(o.PID)
}
