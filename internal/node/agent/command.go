package agent

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/agent/logqueue"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/pages"
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

// NewCommand makes the command line of berth-agent.
func NewCommand(out, errOut io.Writer) *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use:   "berth-agent",
		Short: "Find this node's GPUs, advertise them, give out the right ones, and say who holds them",
		Long: `berth-agent runs on each GPU node. It finds the GPUs, advertises them to the
kubelet, gives out those that are linked best, writes the CDI spec by which the
container runtime injects them, and publishes a GPUNode object that says who
holds which.

A shutdown removes nothing, so that an upgrade leaves no gap; "berth-agent
uninstall" does.`,
		Example: `  # On a node with a driver and a kubelet in their usual places
  berth-agent

  # With a file, Berth's own or NVIDIA's (version: v1); edits take effect at once, and a wrong key is
  # named with its line and the fix while the last good one stays in force
  berth-agent --config /etc/berth/agent.yaml

  # With a ConfigMap whose key the node's label berth.dev/config names
  berth-agent --config-map berth-system/agent-configs

  # Simulated hardware, no API server
  berth sim create /tmp/gpus --profile a100x8-40g
  berth-agent --sim /tmp/gpus --standalone --kubelet-dir /tmp/kubelet --cdi-dir /tmp/cdi

  # What would be published, without publishing it
  berth-agent inspect gpus --sim /tmp/gpus`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			// A standard error that nobody reads must not stop whoever logs.
			log := logqueue.New(errOut)
			defer log.Close(logPatience)
			return run(ctx, o, cmd, o.logger(log))
		},
	}
	root.SetOut(out)
	root.SetErr(errOut)
	o.bind(root)
	root.AddCommand(newInspectCommand(o), newUninstallCommand(o, out), newProbeCommand(o), newMPSCommand(o, errOut))
	root.AddCommand(newMPSDaemonCommand(), newRootedCommand(), newSimulatedCommand())
	return root
}

// logPatience bounds how long the end waits for the last log lines to be written.
const logPatience = time.Second

func run(ctx context.Context, o *options, cmd *cobra.Command, log *slog.Logger) error {
	watcher, err := configwatch.Open(configwatch.Deps{
		File: o.file, Override: o.override(cmd), ConfigMap: o.configMap, DefaultKey: o.defaultKey,
		Connect: func(base *v1alpha1.AgentConfig) (dynamic.Interface, error) { return connect(base, o.kubeconfig) },
		Log:     log.With("room", "configwatch"),
	})
	if err != nil {
		return err
	}
	hardware, err := OpenHardware(o.sim, watcher.Base())
	if err != nil {
		return err
	}
	agent, err := New(Deps{Config: watcher, Hardware: hardware, API: watcher.API(), Instance: o.instance, Log: log})
	if err != nil {
		return err
	}
	return agent.Run(ctx)
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

func newProbeCommand(o *options) *cobra.Command {
	page := map[string]string{"healthy": "healthz", "ready": "readyz"}
	return &cobra.Command{
		Use:   "probe healthy|ready",
		Short: "Ask the running agent of this container how it is; for the probes of an image without a shell",
		Long: `Ask the running agent of this container, over the socket of its own, how it is. During an
upgrade another agent serves the name agent.sock, which is of no use to a probe. The agent is
found by --instance and --state-dir, which are those that it was started with.`,
		Example:   "  berth-agent probe ready",
		ValidArgs: []string{"healthy", "ready"},
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := cmp.Or(o.flags.StateDir, config.DefaultStateDir)
			return Probe(cmd.Context(), pages.Own(dir, cmp.Or(o.instance, defaultInstance())), page[args[0]])
		},
	}
}

func newUninstallCommand(o *options, out io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:   "uninstall",
		Short: "Remove what agents left on this node and in the API: sockets, CDI spec, hook, state, labels, GPUNode",
		Long: `Remove what agents left on this node and in the API. Stop the agent first.
What MPS supervisors left stays, until the next boot.
Running containers keep their devices. Until another agent is installed no GPU is
advertised, and a pod that was given one before cannot start again.`,
		Example: "  berth-agent uninstall\n  berth-agent uninstall --standalone   # leave the API alone",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := o.load(cmd)
			if err != nil {
				return err
			}
			api, err := connect(config, o.kubeconfig)
			if err != nil {
				return fmt.Errorf("%w; with --standalone the API is left alone", err)
			}
			return uninstall(cmd.Context(), config, api, out)
		},
	}
}
