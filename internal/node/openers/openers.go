// Package openers finds the programs that have a GPU open and therefore prevent its reset. It returns the pod of each
// one and the way to stop it.
//
// It leaves out Berth's own programs on the GPU: the MPS control daemon with the servers that it started, which Berth
// ends before a reset. Most of the programs that it returns hold no device in the ledger: monitoring programs,
// persistence daemons, displays.
//
// A Finder has no state and no goroutine. It must not import a vendor's adapter or Kubernetes: [Deps].Processes lists
// the processes.
package openers

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/kubelet"
)

// Opener is a program that has a GPU open.
type Opener struct {
	PID     int
	Program string
	// Pod is NAMESPACE/NAME of the pod that the program runs in, or its UID; empty for a program of the host.
	Pod string
	// Stop describes how to stop the program.
	Stop string
}

// Deps are the dependencies of a Finder.
type Deps struct {
	// Current is the inventory's snapshot.
	Current func() *gpu.Snapshot
	// Processes lists the processes that have a GPU open, except this one. It returns when ctx has ended.
	Processes func(ctx context.Context, device *gpu.GPU) ([]gpu.Process, error)
	// Daemon is the PID of the GPU's MPS control daemon; 0 when it has none.
	Daemon func(id gpu.UUID) int
	// PodName is NAMESPACE/NAME of the pod with a UID; empty when it is not known.
	PodName func(uid string) string
	// ProcRoot is /proc.
	ProcRoot string
}

// Finder finds openers. Create it with New.
type Finder struct{ deps Deps }

// New returns a Finder.
func New(deps Deps) *Finder { return &Finder{deps} }

// Find returns the programs that have a GPU open, without Berth's own.
func (f *Finder) Find(ctx context.Context, id gpu.UUID) ([]Opener, error) {
	device := f.deps.Current().GPU(id)
	if device == nil {
		return nil, fmt.Errorf("find who has GPU %s open: the last scan did not find the GPU", id)
	}
	processes, err := f.deps.Processes(ctx, device)
	if err != nil {
		return nil, err
	}
	daemon := f.deps.Daemon(id)
	var found []Opener
	for _, p := range processes {
		if isDaemon(daemon, processes, p) {
			continue
		}
		pod := f.podOf(p.PID)
		found = append(found, Opener{PID: p.PID, Program: p.Program, Pod: pod, Stop: howToStop(p, pod)})
	}
	return found, nil
}

// isDaemon reports whether a process is the MPS control daemon of the GPU, or a server that the daemon started.
func isDaemon(daemon int, all []gpu.Process, p gpu.Process) bool {
	if daemon == 0 {
		return false
	}
	for range all { // A chain of parents is not longer than the list.
		if p.PID == daemon || p.Parent == daemon {
			return true
		}
		i := slices.IndexFunc(all, func(other gpu.Process) bool { return other.PID == p.Parent })
		if i < 0 {
			return false
		}
		p = all[i]
	}
	return false
}

// podOf returns the pod of a process as NAMESPACE/NAME, or its UID where the name is not known; empty for a process of
// the host.
func (f *Finder) podOf(pid int) string {
	process, err := kubelet.ProcessOf(f.deps.ProcRoot, pid)
	if err != nil {
		return ""
	}
	if name := f.deps.PodName(process.PodUID); name != "" {
		return name
	}
	return "with UID " + process.PodUID
}

// howToStop describes how to stop a program that has a GPU open.
func howToStop(p gpu.Process, pod string) string {
	switch p.Program {
	case "dcgm-exporter", "nv-hostengine":
		if pod != "" {
			return "remove DCGM from the node (label nvidia.com/gpu.deploy.dcgm-exporter=false and nvidia.com/gpu.deploy.dcgm=false, or delete pod " + pod + ")"
		}
		return "stop DCGM (systemctl stop nvidia-dcgm)"
	case "nvidia-persiste", "nvidia-persistenced": // The kernel truncates names after 15 bytes.
		return "stop the persistence daemon (systemctl stop nvidia-persistenced)"
	case "Xorg", "X", "gnome-shell", "Xwayland":
		return "stop the display (systemctl isolate multi-user.target)"
	}
	if pod != "" {
		return "delete pod " + pod
	}
	return "end process " + strconv.Itoa(p.PID)
}
