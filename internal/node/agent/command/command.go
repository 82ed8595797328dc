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
	"github.com/berth-gpu/berth/internal/node/agent"
	"github.com/berth-gpu/berth/internal/node/agent/hardware"
	"github.com/berth-gpu/berth/internal/node/agent/logqueue"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/pages"
)

// New returns the command line of berth-agent.
func New(out, errOut io.Writer) *cobra.Command {
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
	root.AddCommand(newInspectCommand(o), newUninstallCommand(o), newProbeCommand(o), newMPSCommand(o, errOut))
	root.AddCommand(newHiddenCommands()...)
	return root
}

// logPatience bounds how long the end waits for the last log lines to be written.
const logPatience = time.Second

func run(ctx context.Context, o *options, cmd *cobra.Command, log *slog.Logger) error {
	watcher, err := configwatch.Open(configwatch.Deps{
		File: o.file, Override: o.override(cmd), ConfigMap: o.configMap, DefaultKey: o.defaultKey,
		Connect: func(base *v1alpha1.AgentConfig) (dynamic.Interface, error) { return connect(base, o.kubeconfig) },
		Log:     log.With("component", "configwatch"),
	})
	if err != nil {
		return err
	}
	machine, err := hardware.Open(o.sim, watcher.Base())
	if err != nil {
		return err
	}
	hook, err := hookSource()
	if err != nil {
		return err
	}
	a, err := agent.New(agent.Deps{
		Config: watcher, Hardware: machine, API: watcher.API(), HookSource: hook,
		Instance: cmp.Or(o.instance, pages.DefaultInstance()), Log: log,
	})
	if err != nil {
		return err
	}
	return a.Run(ctx)
}
