package command

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
	vendor "github.com/berth-gpu/berth/internal/hardware"
	"github.com/berth-gpu/berth/internal/node/agent"
	"github.com/berth-gpu/berth/internal/node/agent/hardware"
	"github.com/berth-gpu/berth/internal/node/agent/logqueue"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/pages"
)

// Deps are what the command line is made with.
type Deps struct {
	Out io.Writer
	Err io.Writer
	// Vendors are added to the vendors that Berth supports.
	Vendors []vendor.Vendor
}

// opener opens the hardware of this node, as [hardware.Open] does.
type opener func(simDir string, config *v1alpha1.AgentConfig) (hardware.Machine, error)

// with returns an opener that adds vendors to those that Berth knows.
func (open opener) with(extra []vendor.Vendor) opener {
	return func(simDir string, config *v1alpha1.AgentConfig) (hardware.Machine, error) {
		machine, err := open(simDir, config)
		machine.Extra = extra
		return machine, err
	}
}

// New returns the command line of berth-agent.
func New(deps Deps) *cobra.Command { return newRoot(deps, hardware.Open) }

func newRoot(deps Deps, open opener) *cobra.Command {
	out, errOut, o := deps.Out, deps.Err, &sharedFlags{Find: hardware.FindDriver}
	open = open.with(deps.Vendors)
	root := &cobra.Command{
		Use:   "berth-agent",
		Short: "Advertise this node's GPUs to the kubelet, allocate them, and publish who holds them",
		Long: `berth-agent runs on each GPU node. It finds the GPUs, advertises them to the
kubelet, allocates the GPUs of a pod so that they have the best links, writes the
CDI spec with which the container runtime injects them, and publishes a GPUNode
object that lists the holder of each GPU.

The settings come from a file (--config) or a ConfigMap (--config-map). Changes of
either take effect without a restart. An invalid configuration is reported with its
line and the fix, and the last valid one stays in force. A flag overrides the
setting of the same name.

The agent removes nothing when it stops, so that an upgrade has no gap. To remove
what it created, use berth-agent uninstall.`,
		Example: `  # On a node with a driver and a kubelet in their default locations
  berth-agent

  # With a configuration file of kind AgentConfig, or in the format of NVIDIA's device plugin (version: v1)
  berth-agent --config /etc/berth/agent.yaml

  # With the key of a ConfigMap that the node label berth.dev/config names
  berth-agent --config-map berth-system/agent-configs

  # On simulated hardware, without an API server
  berth sim create /tmp/gpus --profile a100x8-40g
  berth-agent --sim /tmp/gpus --standalone --kubelet-dir /tmp/kubelet --cdi-dir /tmp/cdi \
    --hook-dir /tmp/hooks --state-dir /tmp/state --persistent-dir /tmp/persistent

  # Print what would be published, without publishing it
  berth-agent inspect gpus`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			// A standard error that no process reads must not block the actors that log.
			log := logqueue.New(errOut)
			defer log.Close(logPatience)
			return run(ctx, o, cmd, open, o.Logger(log))
		},
	}
	root.SetOut(out)
	root.SetErr(errOut)
	o.Bind(root)
	root.AddCommand(newInspectCommand(o, open), newUninstallCommand(o), newProbeCommand(o), newMPSCommand(o, open, errOut), newValidateCommand(func() string { return o.Sim }))
	root.AddCommand(newHiddenCommands()...)
	return root
}

// logPatience is how long a stopping agent waits until the last log lines are written.
const logPatience = time.Second

func run(ctx context.Context, o *sharedFlags, cmd *cobra.Command, open opener, log *slog.Logger) error {
	agent.LowerOOMScore(log)
	watcher, err := configwatch.Open(configwatch.Deps{
		File: o.File, Override: o.Override(cmd), ConfigMap: o.ConfigMap, DefaultKey: o.DefaultKey,
		Connect: func(base *v1alpha1.AgentConfig) (dynamic.Interface, error) { return o.Connect(base) },
		Log:     log.With("component", "configwatch"),
	})
	if err != nil {
		return err
	}
	machine, err := open(o.Sim, watcher.Base())
	if err != nil {
		return err
	}
	hook, err := hookSource()
	if err != nil {
		return err
	}
	kube, metrics, err := o.Clientsets(watcher.Base())
	if err != nil {
		return err
	}
	a, err := agent.New(agent.Deps{
		Config: watcher, Hardware: machine, API: watcher.API(), Kube: kube, MetricsAPI: metrics, Namespace: os.Getenv("POD_NAMESPACE"), Stack: o.Stack, ValidationFiles: o.ValidationFiles, HookSource: hook,
		Instance: cmp.Or(o.Instance, pages.DefaultInstance()), Log: log,
	})
	if err != nil {
		return err
	}
	return a.Run(ctx)
}
