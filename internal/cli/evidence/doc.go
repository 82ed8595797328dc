// Package evidence collects, for internal/core/trace, what the places on a node and the
// API say about pods and GPUs.
//
// It guarantees that a place which cannot be read becomes an Unread with the reason,
// never an error that hides the other places; that nothing is changed; that inputs
// are bounded; and that of a container's environment only variables about GPUs leave
// it. It wires: internal/node/kubelet, internal/node/cdi, internal/hardware/nvidia, the simulator
// and the API are read here and nowhere above.
package evidence

import (
	"context"
	"path/filepath"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/node/pages"
)

// Places are where a node's facts are read. Empty texts are places that are not there.
type Places struct {
	// KubeletDir is the kubelet's root directory, usually /var/lib/kubelet.
	KubeletDir string
	// CDIDirs are the directories of CDI specs, usually /etc/cdi and /var/run/cdi.
	CDIDirs []string
	// ContainerdState is containerd's state directory, usually /run/containerd.
	ContainerdState string
	// PodLogs has a directory per pod, usually /var/log/pods.
	PodLogs string
	// Proc is the host's /proc.
	Proc string
	// CgroupRoot is the kubelet's cgroupRoot; empty accepts any.
	CgroupRoot string
	// Agent is the socket of the agent.
	Agent string
	// Node is the node's name in the API, where it is known.
	Node string
	// Pod is the pod that is asked about, where it is known by name: the kubelet is asked for it by that.
	Pod trace.Ref
	// Hardware scans the GPUs; nil when there is nothing to scan with.
	Hardware Scanner
	// HardwareName is what to call it, such as "NVML" or the simulator's directory.
	HardwareName string
	// Simulated is the simulator's directory, where Hardware is one; absolute.
	Simulated string
}

// Scanner is what Places needs of a hardware adapter.
type Scanner interface {
	Scan(ctx context.Context) (gpu.Snapshot, error)
}

// The usual places of a node.
const (
	DefaultKubeletDir      = "/var/lib/kubelet"
	DefaultContainerdState = "/run/containerd"
	DefaultPodLogs         = "/var/log/pods"
	DefaultProc            = "/proc"
	DefaultAgent           = pages.DefaultSocket
)

// DefaultCDIDirs are the directories that runtimes read, the later one wins.
func DefaultCDIDirs() []string { return []string{"/etc/cdi", "/var/run/cdi"} }

// Local is what one node's own places say.
type Local struct {
	trace.Evidence
	// Snapshot is the hardware with the verdicts on it: the agent's, or a scan of its own where
	// no agent answers; nil when none was read.
	Snapshot *gpu.Snapshot
	// OfAgent tells that the hardware is the agent's, whose pods therefore hold it.
	OfAgent bool
}

// Collect reads all places of a node. What cannot be read is in Unread.
func (p Places) Collect(ctx context.Context) *Local {
	c := &collector{places: p, local: &Local{}}
	c.local.Host = p.Node
	c.agent(ctx)
	c.hardware(ctx)
	c.checkpoint()
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

// under is dir/name, or empty for no dir.
func under(dir, name string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, name)
}
