package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// DefaultDir is the default directory of a sandbox.
const DefaultDir = "/var/lib/berth-sandbox"

// Images that every node of a sandbox has. Nothing is ever pulled.
const (
	PauseImage    = "berth.dev/pause:sandbox"
	WorkloadImage = "berth.dev/workload:sandbox"
)

// Options are the arguments of [Up].
type Options struct {
	// Dir contains everything of the sandbox. Default: DefaultDir.
	Dir string
	// Bin contains hyperkube, containerd, containerd-shim-runc-v2 and workload; with Profile also berth and
	// berth-agent; with Hollow also berth-sandbox. Default: the directory of the running executable.
	Bin string
	// Nodes is the number of nodes that run containers. Default: 1.
	Nodes int
	// Hollow is the number of further nodes whose kubelet is real but whose container runtime only records the
	// requests. They have the label and the taint HollowLabel=true:NoSchedule.
	Hollow int
	// Profile is the simulated hardware of every node, "" for none.
	Profile string
	// NoAgent leaves berth-agent out although the nodes have hardware.
	NoAgent bool
	// Agent is how the nodes' agents differ from deploy/agent.yaml.
	Agent AgentOptions
	// Manifests are files or folders of Kubernetes objects to create before the agents start.
	Manifests []string
	// KubeletConfig is merged into the KubeletConfiguration of every node.
	KubeletConfig map[string]any
	// Progress receives a line per step. Default: none.
	Progress io.Writer
}

func (o *Options) complete() error {
	if o.Dir == "" {
		o.Dir = DefaultDir
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return fmt.Errorf("resolve --dir: %w", err)
	}
	o.Dir = dir
	// A node's own mounts hide these directories.
	for _, taken := range []string{"/run", "/var/run", "/var/log", "/var/lib/kubelet", "/var/lib/cni",
		"/var/lib/berth", "/etc", "/proc", "/sys", "/dev"} {
		if dir == taken || strings.HasPrefix(dir, taken+"/") {
			return fmt.Errorf("--dir %s: a sandbox cannot be below %s, because its nodes have their own %s; choose "+
				"another directory, for example %s", dir, taken, taken, DefaultDir)
		}
	}
	if o.Bin == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find own executable: %w", err)
		}
		o.Bin = filepath.Dir(self)
	}
	if o.Bin, err = filepath.Abs(o.Bin); err != nil {
		return fmt.Errorf("resolve --bin: %w", err)
	}
	if o.Nodes < 0 || o.Hollow < 0 || o.Nodes+o.Hollow > maxNodes {
		return fmt.Errorf("--nodes %d --hollow %d: want 0 to %d nodes in all", o.Nodes, o.Hollow, maxNodes)
	}
	if o.Nodes == 0 && o.Hollow == 0 {
		o.Nodes = 1
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return nil
}

func (o *Options) wantsAgent() bool { return o.Profile != "" && !o.NoAgent }

// progress prints steps with the seconds since its creation.
type progress struct {
	w     io.Writer
	start time.Time
}

func newProgress(w io.Writer) *progress { return &progress{w: w, start: time.Now()} }

func (p *progress) step(format string, args ...any) {
	fmt.Fprintf(p.w, "%6.1fs  %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, args...))
}

// ErrNotRunning reports that there is no sandbox in a directory.
var ErrNotRunning = errors.New("no sandbox")
