package sandbox

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// DefaultDir is the default directory of a sandbox.
const DefaultDir = "/var/lib/berth-sandbox"

// Images that every node of a sandbox has. Nothing is ever pulled.
const (
	PauseImage    = "berth.dev/pause:sandbox"
	WorkloadImage = "berth.dev/workload:sandbox"
	// AgentImage is the agent's image in the chart.
	AgentImage = "berth.dev/berth-agent:dev"
	// OperatorImage is the operator's.
	OperatorImage = "berth.dev/berth-operator:dev"
	// SchedulerImage is the scheduler's.
	SchedulerImage = "berth.dev/berth-scheduler:dev"
	// WebImage is the one of the page, that of the command line.
	WebImage = "berth.dev/berth:dev"
)

// Options are the arguments of [Up].
type Options struct {
	// Dir contains everything of the sandbox. Default: DefaultDir.
	Dir string
	// Bin contains hyperkube, containerd, containerd-shim-runc-v2 and workload; with Profile also berth and
	// berth-agent; with Hollow also berth-sandbox; with APINodes also kwok. Default: the directory of the running executable.
	Bin string
	// Nodes is the number of nodes that run containers. Default: 1.
	Nodes int
	// Hollow is the number of further nodes whose kubelet is real but whose container runtime only records the
	// requests. They have the label and the taint HollowLabel=true:NoSchedule.
	Hollow int
	// APINodes is the number of further nodes that are objects of the API only: a Node, and a GPUNode with 8 GPUs whose gate waits for its
	// validation. kwok keeps the Nodes Ready and reports that their pods start and end. See [Cluster.WriteAPIGPUNodes].
	APINodes int
	// APINodeProfiles are the simulated machines that the GPUNodes of API nodes describe. A key is the name of a node, or a pattern of
	// names with * and ?, which a name precedes: "api-node-0*": "h100x8".
	APINodeProfiles map[string]string
	// Scheduler is a program to run in place of kube-scheduler; it has the flags of kube-scheduler. A name without a directory is first
	// one of Bin. Default: that of hyperkube.
	Scheduler string
	// SchedulerConfig is a file with a KubeSchedulerConfiguration for the scheduler. The sandbox sets its kubeconfig, and
	// switches leader election off.
	SchedulerConfig string
	// Profile is the simulated hardware of every node, "" for none.
	Profile string
	// NodeProfiles is the simulated hardware of single nodes by name (node-1, hollow-0), in place of Profile.
	NodeProfiles map[string]string
	// NodeCliques are the NVLink fabrics of several nodes that the simulated GPUs of single nodes have joined, CLUSTER-UUID.CLIQUE-ID by
	// the name of the node.
	NodeCliques map[string]string
	// FeatureGates are switched on or off in every component of Kubernetes.
	FeatureGates map[string]bool
	// RuntimeConfig are the API versions that the API server serves or not, as its flag has them:
	// "scheduling.k8s.io/v1beta1": "true".
	RuntimeConfig map[string]string
	// NoAgent installs nothing of Berth although the nodes have hardware; they have its images, if these were made.
	NoAgent bool
	// Agent is how the nodes' agents differ from the chart's.
	Agent AgentOptions
	// Helm installs the chart, as users do: one DaemonSet for all nodes that run containers, and the operator. Otherwise each node has an
	// agent of its own, which can be stopped, replaced and given options by itself.
	Helm bool
	// HelmValues are further values files of the chart.
	HelmValues []string
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
	if err := o.completeNodes(); err != nil {
		return err
	}
	if err := o.completeScheduler(); err != nil {
		return err
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return nil
}

// completeNodes checks the nodes.
func (o *Options) completeNodes() error {
	if o.Nodes < 0 || o.Hollow < 0 || o.Nodes+o.Hollow > maxNodes {
		return fmt.Errorf("--nodes %d --hollow %d: want 0 to %d nodes in all", o.Nodes, o.Hollow, maxNodes)
	}
	if o.APINodes < 0 || o.APINodes > maxAPINodes {
		return fmt.Errorf("--api-nodes %d: want 0 to %d", o.APINodes, maxAPINodes)
	}
	if _, err := o.checkAPIProfiles(); err != nil {
		return err
	}
	if o.Nodes == 0 && o.Hollow == 0 {
		o.Nodes = 1
	}
	if err := o.checkHelm(); err != nil {
		return err
	}
	for name := range o.NodeProfiles {
		if !slices.Contains(o.nodeNames(), name) {
			return fmt.Errorf("--node-profile %s: the sandbox has no such node: its nodes are %s", name, strings.Join(o.nodeNames(), ", "))
		}
	}
	for name := range o.NodeCliques {
		if !slices.Contains(o.nodeNames(), name) || o.profileOf(name) == "" {
			return fmt.Errorf("--node-clique %s: the sandbox has no such node with simulated hardware: its nodes are %s",
				name, strings.Join(o.nodeNames(), ", "))
		}
	}
	return nil
}

// checkHelm checks what cannot go together with Helm.
func (o *Options) checkHelm() error {
	switch {
	case !o.Helm && len(o.HelmValues) > 0:
		return errors.New("--helm-values is for --helm: add it")
	case !o.Helm:
		return nil
	case o.NoAgent:
		return errors.New("--helm installs the agent, and --no-agent leaves it out: choose one")
	case len(o.Agent.Args)+len(o.Agent.Env)+len(o.Agent.Dirs) > 0 || o.Agent.Image != "":
		return errors.New("--helm: the agent's options are values of the chart there: use --helm-values FILE in place of --agent-arg and --agent-dir")
	}
	for i := range o.Nodes {
		if name := o.nodeNames()[i]; o.profileOf(name) == "" {
			return fmt.Errorf("--helm: one DaemonSet runs on all nodes, and %s has no simulated hardware: add --profile", name)
		}
	}
	return nil
}

// nodeNames returns the names of the nodes: those that run containers, then the hollow ones.
func (o *Options) nodeNames() []string {
	var names []string
	for i := range o.Nodes {
		names = append(names, "node-"+strconv.Itoa(i))
	}
	for i := range o.Hollow {
		names = append(names, "hollow-"+strconv.Itoa(i))
	}
	return names
}

// profileOf returns the simulated hardware of a node, "" for none.
func (o *Options) profileOf(node string) string {
	if profile, ok := o.NodeProfiles[node]; ok {
		return profile
	}
	return o.Profile
}

// hasHardware reports whether any node has simulated hardware.
func (o *Options) hasHardware() bool { return o.Profile != "" || len(o.NodeProfiles) > 0 }

func (o *Options) wantsAgent() bool { return o.hasHardware() && !o.NoAgent }

// ParseGates reads feature gates in the form of Kubernetes' flag: A=true,B=false.
func ParseGates(text string) (map[string]bool, error) {
	gates := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		on, err := strconv.ParseBool(value)
		if name == "" || err != nil {
			return nil, fmt.Errorf("--feature-gates: %q is not of the form NAME=true or NAME=false", part)
		}
		gates[name] = on
	}
	return gates, nil
}

// gateFlags returns the flag of a component for the feature gates; none without any.
func (o *Options) gateFlags() []string {
	var gates []string
	for _, name := range slices.Sorted(maps.Keys(o.FeatureGates)) {
		gates = append(gates, name+"="+strconv.FormatBool(o.FeatureGates[name]))
	}
	if len(gates) == 0 {
		return nil
	}
	return []string{"--feature-gates=" + strings.Join(gates, ",")}
}

// runtimeFlags returns the flag of the API server for the API versions; none without any.
func (o *Options) runtimeFlags() []string {
	var versions []string
	for _, name := range slices.Sorted(maps.Keys(o.RuntimeConfig)) {
		versions = append(versions, name+"="+o.RuntimeConfig[name])
	}
	if len(versions) == 0 {
		return nil
	}
	return []string{"--runtime-config=" + strings.Join(versions, ",")}
}

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
