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

// bind makes a flag for what is usually set per start; the rest is the file's.
func (o *options) bind(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&o.file, "config", "", "read the settings from this file (kind AgentConfig); a flag of the same meaning wins")
	flags.StringVar(&o.configMap, "config-map", "", "NAMESPACE/NAME of a ConfigMap of which each key is a configuration; the node's label berth.dev/config (or nvidia.com/device-plugin.config) names the key, and a change takes effect at once")
	flags.StringVar(&o.defaultKey, "default-config", "", "the key of --config-map for a node without a label (default: the key called default, or the only one)")
	flags.StringVar(&o.sim, "sim", "", "use the simulated hardware in this directory (berth sim create)")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "reach the API server with this file (default: the pod's service account)")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "log every step")
	flags.StringVar(&o.flags.KubeletDir, "kubelet-dir", "", "the kubelet's root directory; sockets are under device-plugins and pod-resources (default /var/lib/kubelet)")
	flags.StringVar(&o.flags.CDIDir, "cdi-dir", "", "where the CDI spec is written (default /var/run/cdi)")
	flags.StringVar(&o.flags.HookDir, "hook-dir", "", "where the CDI hook program is installed (default /opt/berth/bin)")
	flags.StringVar(&o.flags.StateDir, "state-dir", "", "where the ledger, the agent's sockets and what else a reboot makes void are kept (default /run/berth)")
	flags.StringVar(&o.flags.PersistentDir, "persistent-dir", "", "where journals and the last good configuration are kept, over a reboot (default /var/lib/berth)")
	flags.StringVar(&o.flags.MPSRoot, "mps-root", "", "where MPS daemons have their pipes and shared memory, and berth-agent mps its socket (default /run/berth/mps)")
	flags.StringVar(&o.flags.HostRoot, "host-root", "", "where the host's / is mounted, for an agent in a container (default /)")
	flags.StringVar(&o.flags.DriverRoot, "driver-root", "", "the host's root of the driver's files (default /)")
	flags.StringVar(&o.flags.ContainerdStateDir, "containerd-state-dir", "", "containerd's state directory (default /run/containerd)")
	flags.StringVar(&o.flags.CgroupRoot, "cgroup-root", "", "the kubelet's cgroupRoot, where several kubelets share a machine")
	flags.StringVar(&o.flags.NodeName, "node-name", "", "the node's name in the API (default: $NODE_NAME, then the host name)")
	flags.StringVar(&o.instance, "instance", "", "what tells this agent from another one of the node, in the name of its socket STATE-DIR/agent-INSTANCE.sock (default: $POD_NAME, then the host's name)")
	flags.StringVar(&o.flags.MetricsListen, "metrics-listen", "", "an address that serves /metrics only, for Prometheus (default: none)")
	flags.BoolVar(&o.flags.DCGMNames, "dcgm-names", false, "add dcgm-exporter's names and labels to /metrics")
	flags.BoolVar(&o.flags.Standalone, "standalone", false, "work without an API server: publish no GPUNode")
}

// load reads the file and lays the flags over it.
func (o *options) load(cmd *cobra.Command) (*v1alpha1.AgentConfig, error) {
	return config.Load(o.file, o.override(cmd))
}

// override lays the flags over a configuration.
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
