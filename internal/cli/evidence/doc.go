// Package evidence collects, for internal/core/trace, what the sources on a node and the API contain about pods and
// GPUs.
//
// It guarantees that a source that cannot be read becomes an Unread with the reason, never an error that hides the
// other sources; that nothing is changed; that inputs are bounded; and that of a container's environment it returns
// only variables about GPUs. It wires internal/node/kubelet, internal/node/cdi, internal/hardware/nvidia, the simulator
// and the API, so that no package above imports them.
package evidence

import (
	"context"
	"path/filepath"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/pages"
)

// Places are the locations of a node's sources. An empty string is a source that does not exist.
type Places struct {
	// KubeletDir is the kubelet's root directory, usually /var/lib/kubelet.
	KubeletDir string
	// CDIDirs are the directories of CDI specs, usually /etc/cdi and /var/run/cdi.
	CDIDirs []string
	// PluginRoot has the folder device-plugins with the kubelet's checkpoint of devices, usually /var/lib/kubelet; empty means KubeletDir.
	PluginRoot string
	// Bundles are where the OCI specs of containers are.
	Bundles []kubelet.Bundle
	// PodLogs has a directory per pod, usually /var/log/pods.
	PodLogs string
	// HostRoot is the node's root directory, beneath which its agent names paths; empty if it is this program's.
	HostRoot string
	// Proc is the host's /proc.
	Proc string
	// CgroupRoot is the kubelet's cgroupRoot; empty accepts any.
	CgroupRoot string
	// Agent is the socket of the agent.
	Agent string
	// Node is the node's name in the API, if it is known.
	Node string
	// Pod is the subject of the trace, if it is a pod whose name is known; the kubelet is queried by name.
	Pod trace.Ref
	// Vendors are the vendors whose names are looked for, besides those of the agent.
	Vendors trace.Vendors
	// Hardware scans the GPUs; nil if there is no hardware to scan.
	Hardware Scanner
	// HardwareName is the name of the source, such as the driver's library or the simulator's directory.
	HardwareName string
	// Simulated is the absolute path of the simulator's directory, if Hardware is a simulator.
	Simulated string
}

// Scanner is the part of a hardware adapter that Places needs.
type Scanner interface {
	Traits() gpu.Traits
	Scan(ctx context.Context) (gpu.Snapshot, error)
}

// The default locations on a node.
const (
	DefaultPodLogs = "/var/log/pods"
	DefaultProc    = "/proc"
	DefaultAgent   = pages.DefaultSocket
)

// Local is the result of reading one node's own sources.
type Local struct {
	trace.Evidence
	// Snapshot is the hardware with its health: the agent's or, if no agent answers, that of a new scan; nil when none
	// was read.
	Snapshot *gpu.Snapshot
	// Vendors are the vendors whose names the sources can have: the given ones, and those that only the agent knows.
	Vendors trace.Vendors
	// OfAgent is true if the hardware is the agent's, so that pods of the agent's node hold it.
	OfAgent bool
}

// Collect reads all sources of a node. Unread lists those that could not be read.
func (p Places) Collect(ctx context.Context) *Local {
	c := &collector{places: p, local: &Local{Vendors: p.Vendors}}
	c.local.Host = p.Node
	c.agent(ctx)
	c.hardware(ctx)
	c.checkpoint()
	c.claimRecord()
	c.podDirectories()
	c.cdiSpecs()
	c.containers()
	c.podResources(ctx)
	return c.local
}

type collector struct {
	places Places
	local  *Local
	// simulated is the directory of the agent's simulated hardware.
	simulated string
}

func (c *collector) read(source trace.Source) { c.local.Read = append(c.local.Read, source) }

func (c *collector) unread(kind trace.Kind, path, why string) {
	c.local.Unread = append(c.local.Unread, trace.Unread{Source: trace.Source{Kind: kind, Path: path}, Why: why})
}

// under returns dir/name, or "" if dir is empty.
func under(dir, name string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, name)
}
