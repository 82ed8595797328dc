package command

import (
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/config"
)

// sharedFlags are the flags that all commands of berth-agent share.
type sharedFlags struct {
	File       string
	Sim        string
	Kubeconfig string
	ConfigMap  string
	DefaultKey string
	Instance   string
	Stack      string
	// ValidationFiles is a directory.
	ValidationFiles string
	MetricsAuth     string
	Verbose         bool
	Config          v1alpha1.AgentConfig
	// Find sets what neither the file nor a flag has and this machine shows; nil for nothing.
	Find func(*v1alpha1.AgentConfig)
}

// The values of --metrics-auth.
const (
	AuthNone       = "none"
	AuthKubernetes = "kubernetes"
)

// Bind adds a flag for each setting that usually depends on the machine; the others are in the file only.
func (f *sharedFlags) Bind(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.File, "config", "", "read the settings from `FILE`, of kind AgentConfig or in the format of NVIDIA's device plugin")
	flags.StringVar(&f.ConfigMap, "config-map", "", "read the settings from the ConfigMap `NAMESPACE/NAME`; each key is a configuration, and the node label berth.dev/config (or nvidia.com/device-plugin.config) selects the key")
	flags.StringVar(&f.DefaultKey, "default-config", "", "use `KEY` of --config-map for a node without a label (default: the key named default, or the only key)")
	flags.StringVar(&f.Sim, "sim", "", "use the driver, the device nodes, /proc, /sys and the kernel log of the simulated machine in `DIR` (berth sim create) instead of this host's")
	flags.StringVar(&f.Kubeconfig, "kubeconfig", "", "connect to the API server with the kubeconfig `FILE` (default: the pod's service account)")
	flags.BoolVarP(&f.Verbose, "verbose", "v", false, "log at level debug")
	flags.StringVar(&f.Config.KubeletDir, "kubelet-dir", "", "use the kubelet whose root directory is `DIR` (default /var/lib/kubelet)")
	flags.StringVar(&f.Config.CDIDir, "cdi-dir", "", "write the CDI spec to `DIR` (default /var/run/cdi)")
	flags.StringVar(&f.Config.HookDir, "hook-dir", "", "install the CDI hook program in `DIR` (default /opt/berth/bin)")
	flags.StringVar(&f.Config.StateDir, "state-dir", "", "keep the ledger, the agent's sockets and other state that a reboot invalidates in `DIR` (default /run/berth)")
	flags.StringVar(&f.Config.PersistentDir, "persistent-dir", "", "keep journals and the last valid configuration, which have to survive a reboot, in `DIR` (default /var/lib/berth)")
	flags.StringVar(&f.Config.MPSRoot, "mps-root", "", "keep the pipes and the shared memory of MPS daemons and the socket of berth-agent mps in `DIR` (default /run/berth/mps)")
	flags.StringVar(&f.Config.HostRoot, "host-root", "", "find the host's root file system at `DIR`, for an agent in a container (default /)")
	flags.StringVar(&f.Config.DriverRoot, "driver-root", "", "find the driver's files below `DIR` of the host (default: where its library is at the start, else /)")
	flags.StringVar(&f.Config.ContainerdStateDir, "containerd-state-dir", "", "read containerd's state from `DIR` of the host (default: that of the running container runtime)")
	flags.StringVar(&f.Config.CgroupRoot, "cgroup-root", "", "find containers below `CGROUP`, the kubelet's cgroupRoot; needed only with several kubelets on one machine")
	flags.StringVar(&f.Config.NodeName, "node-name", "", "use the Node object `NAME` (default: $NODE_NAME, then the host name)")
	flags.StringVar(&f.Instance, "instance", "", "distinguish this agent by `NAME` from another one on the node, as during an upgrade; its socket is agent-NAME.sock in --state-dir (default: $POD_NAME, then the host name)")
	flags.StringVar(&f.Stack, "stack", "", "read the settings of the validation gate from `FILE`, the spec of a GPUStack; without it, and outside a pod ($POD_NAMESPACE), there is no gate")
	flags.StringVar(&f.ValidationFiles, "validation-files", "", "write driver-ready, toolkit-ready, plugin-ready and cuda-ready to `DIR` for programs that wait for those of NVIDIA's GPU operator, which are in /run/nvidia/validations")
	flags.StringVar(&f.Config.MetricsListen, "metrics-listen", "", "serve /metrics, and nothing else, on `ADDRESS` (default: no address)")
	flags.StringVar(&f.MetricsAuth, "metrics-auth", AuthNone, "who may read /metrics of --metrics-listen: none asks for nothing; kubernetes serves it with TLS to clients whose token may get the nonResourceURL /metrics")
	flags.BoolVar(&f.Config.DCGMNames, "dcgm-names", false, "also serve the metrics under dcgm-exporter's names and labels")
	flags.StringVar(&f.Config.DCGMCountersFile, "dcgm-counters-file", "", "also serve the fields that `FILE` lists in the form of dcgm-exporter (FIELD, type, help)")
	flags.BoolVar(&f.Config.Standalone, "standalone", false, "run without an API server: publish no GPUNode, labels, events or conditions")
}

// Load returns the configuration of the file, overridden by the flags.
func (f *sharedFlags) Load(cmd *cobra.Command) (*v1alpha1.AgentConfig, error) {
	return config.Load(f.File, f.Override(cmd))
}

// Override returns a function that overrides a configuration with the flags that were given.
func (f *sharedFlags) Override(cmd *cobra.Command) func(*v1alpha1.AgentConfig) {
	return func(c *v1alpha1.AgentConfig) {
		for _, flag := range []struct {
			from string
			to   *string
		}{
			{f.Config.KubeletDir, &c.KubeletDir}, {f.Config.CDIDir, &c.CDIDir}, {f.Config.HookDir, &c.HookDir},
			{f.Config.StateDir, &c.StateDir}, {f.Config.PersistentDir, &c.PersistentDir}, {f.Config.HostRoot, &c.HostRoot}, {f.Config.DriverRoot, &c.DriverRoot},
			{f.Config.ContainerdStateDir, &c.ContainerdStateDir}, {f.Config.CgroupRoot, &c.CgroupRoot},
			{f.Config.NodeName, &c.NodeName}, {f.Config.MPSRoot, &c.MPSRoot},
			{f.Config.MetricsListen, &c.MetricsListen}, {f.Config.DCGMCountersFile, &c.DCGMCountersFile},
		} {
			if flag.from != "" {
				*flag.to = flag.from
			}
		}
		if cmd.Flags().Changed("dcgm-names") {
			c.DCGMNames = f.Config.DCGMNames
		}
		if cmd.Flags().Changed("standalone") {
			c.Standalone = f.Config.Standalone
		}
		if f.Find != nil && f.Sim == "" {
			f.Find(c)
		}
	}
}

// Logger returns a log in text form; with --verbose at level debug.
func (f *sharedFlags) Logger(w io.Writer) *slog.Logger {
	level := slog.LevelInfo
	if f.Verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}
