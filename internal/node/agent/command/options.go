package command

import (
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/config"
)

// options are the flags that all commands of berth-agent share.
type options struct {
	file       string
	sim        string
	kubeconfig string
	configMap  string
	defaultKey string
	instance   string
	verbose    bool
	flags      v1alpha1.AgentConfig
}

// bind adds a flag for each setting that usually depends on the machine; the others are in the file only.
func (o *options) bind(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&o.file, "config", "", "read the settings from `FILE`, of kind AgentConfig or in the format of NVIDIA's device plugin")
	flags.StringVar(&o.configMap, "config-map", "", "read the settings from the ConfigMap `NAMESPACE/NAME`; each key is a configuration, and the node label berth.dev/config (or nvidia.com/device-plugin.config) selects the key")
	flags.StringVar(&o.defaultKey, "default-config", "", "use `KEY` of --config-map for a node without a label (default: the key named default, or the only key)")
	flags.StringVar(&o.sim, "sim", "", "use the simulated hardware in `DIR` (berth sim create) instead of the NVIDIA driver")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "connect to the API server with the kubeconfig `FILE` (default: the pod's service account)")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "log at level debug")
	flags.StringVar(&o.flags.KubeletDir, "kubelet-dir", "", "use the kubelet whose root directory is `DIR` (default /var/lib/kubelet)")
	flags.StringVar(&o.flags.CDIDir, "cdi-dir", "", "write the CDI spec to `DIR` (default /var/run/cdi)")
	flags.StringVar(&o.flags.HookDir, "hook-dir", "", "install the CDI hook program in `DIR` (default /opt/berth/bin)")
	flags.StringVar(&o.flags.StateDir, "state-dir", "", "keep the ledger, the agent's sockets and other state that a reboot invalidates in `DIR` (default /run/berth)")
	flags.StringVar(&o.flags.PersistentDir, "persistent-dir", "", "keep journals and the last valid configuration, which have to survive a reboot, in `DIR` (default /var/lib/berth)")
	flags.StringVar(&o.flags.MPSRoot, "mps-root", "", "keep the pipes and the shared memory of MPS daemons and the socket of berth-agent mps in `DIR` (default /run/berth/mps)")
	flags.StringVar(&o.flags.HostRoot, "host-root", "", "find the host's root file system at `DIR`, for an agent in a container (default /)")
	flags.StringVar(&o.flags.DriverRoot, "driver-root", "", "find the driver's files below `DIR` of the host (default /)")
	flags.StringVar(&o.flags.ContainerdStateDir, "containerd-state-dir", "", "read containerd's state from `DIR` (default /run/containerd)")
	flags.StringVar(&o.flags.CgroupRoot, "cgroup-root", "", "find containers below `CGROUP`, the kubelet's cgroupRoot; needed only with several kubelets on one machine")
	flags.StringVar(&o.flags.NodeName, "node-name", "", "use the Node object `NAME` (default: $NODE_NAME, then the host name)")
	flags.StringVar(&o.instance, "instance", "", "distinguish this agent by `NAME` from another one on the node, as during an upgrade; its socket is agent-NAME.sock in --state-dir (default: $POD_NAME, then the host name)")
	flags.StringVar(&o.flags.MetricsListen, "metrics-listen", "", "serve /metrics, and nothing else, on `ADDRESS` (default: no address)")
	flags.BoolVar(&o.flags.DCGMNames, "dcgm-names", false, "also serve the metrics under dcgm-exporter's names and labels")
	flags.BoolVar(&o.flags.Standalone, "standalone", false, "run without an API server: publish no GPUNode, labels, events or conditions")
}

// load returns the configuration of the file, overridden by the flags.
func (o *options) load(cmd *cobra.Command) (*v1alpha1.AgentConfig, error) {
	return config.Load(o.file, o.override(cmd))
}

// override returns a function that overrides a configuration with the flags that were given.
func (o *options) override(cmd *cobra.Command) func(*v1alpha1.AgentConfig) {
	return func(c *v1alpha1.AgentConfig) {
		for _, flag := range []struct {
			from string
			to   *string
		}{
			{o.flags.KubeletDir, &c.KubeletDir}, {o.flags.CDIDir, &c.CDIDir}, {o.flags.HookDir, &c.HookDir},
			{o.flags.StateDir, &c.StateDir}, {o.flags.PersistentDir, &c.PersistentDir}, {o.flags.HostRoot, &c.HostRoot}, {o.flags.DriverRoot, &c.DriverRoot},
			{o.flags.ContainerdStateDir, &c.ContainerdStateDir}, {o.flags.CgroupRoot, &c.CgroupRoot},
			{o.flags.NodeName, &c.NodeName}, {o.flags.MPSRoot, &c.MPSRoot},
			{o.flags.MetricsListen, &c.MetricsListen},
		} {
			if flag.from != "" {
				*flag.to = flag.from
			}
		}
		if cmd.Flags().Changed("dcgm-names") {
			c.DCGMNames = o.flags.DCGMNames
		}
		if cmd.Flags().Changed("standalone") {
			c.Standalone = o.flags.Standalone
		}
	}
}

func (o *options) logger(w io.Writer) *slog.Logger {
	level := slog.LevelInfo
	if o.verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}
