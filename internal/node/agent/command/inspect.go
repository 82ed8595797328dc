package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia/gpulabels"
	"github.com/berth-gpu/berth/internal/node/agent/apichoice"
	"github.com/berth-gpu/berth/internal/node/agent/hardware"
	"github.com/berth-gpu/berth/internal/node/cdi"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/labels"
	"github.com/berth-gpu/berth/internal/node/metrics"
)

// views returns the names of what inspect can print.
func views() []string {
	var names []string
	for _, view := range inspectViews() {
		names = append(names, string(view))
	}
	return names
}

func newInspectCommand(o *sharedFlags, open opener) *cobra.Command {
	format := "table"
	cmd := &cobra.Command{
		Use:   "inspect " + strings.Join(views(), "|"),
		Short: "Print what the agent would publish, without publishing it",
		Long: `Scan the hardware of this machine once, or of a simulator's (--sim), and print what
the agent would publish from it with the given configuration. Nothing is written,
advertised or changed.

  gpus     the GPUs with model, PCI bus ID, NUMA node, memory and health
  devices  the devices that would be advertised to the kubelet: resource, device ID,
           NUMA node, health
  cdi      the CDI spec (always JSON)
  labels   the node labels about the GPUs, one KEY=VALUE per line
  metrics  the metrics of the GPUs, as /metrics serves them`,
		Example: `  # The GPUs of this node
  berth-agent inspect gpus

  # The devices that a configuration leads to, before it is applied
  berth-agent inspect devices --config agent.yaml

  # The same on simulated hardware, as JSON
  berth-agent inspect devices --sim /tmp/gpus --config agent.yaml -o json

  # The CDI spec of a driver in a container, seen from another container
  berth-agent inspect cdi --host-root /host --driver-root /run/nvidia/driver

  # The labels and the metrics of this node
  berth-agent inspect labels
  berth-agent inspect metrics --dcgm-names`,
		ValidArgs: views(),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || !slices.Contains(views(), args[0]) {
				return fmt.Errorf("inspect %q: want one of %s, for example: berth-agent inspect gpus", strings.Join(args, " "), strings.Join(views(), ", "))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if format != "table" && format != "json" {
				return fmt.Errorf("output format %q does not exist: use -o table or -o json", format)
			}
			config, err := o.Load(cmd)
			if err != nil {
				return err
			}
			deps, err := inspectDeps(o, open, config, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			result, err := look(cmd.Context(), deps)
			if err != nil {
				return err
			}
			return result.Print(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), inspectView(args[0]), format == "json")
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", format, "print as `FORMAT`: table or json")
	return cmd
}

// inspectDeps returns the dependencies of inspect: the same parts that the agent uses, none of which writes anything.
func inspectDeps(o *sharedFlags, open opener, settings *v1alpha1.AgentConfig, errOut io.Writer) (lookDeps, error) {
	machine, err := open(o.Sim, settings)
	if err != nil {
		return lookDeps{}, err
	}
	machine.MakeNodes = nil // inspect creates no device nodes
	rules, err := config.HealthRules(settings, os.Getenv)
	if err != nil {
		return lookDeps{}, err
	}
	counters := metrics.ReadCounterList(settings)
	for _, problem := range counters.Problems {
		fmt.Fprintf(errOut, "%s: %s\n", problem.Code, problem.Message)
	}
	return lookDeps{
		DCGMFields: counters.Fields,
		Config:     settings, Rules: rules, Offers: config.OfferSettings(settings, apichoice.Kept(settings.PersistentDir)), Sys: machine.Roots.Sys, LabelVendors: []labels.Vendor{gpulabels.Vendor{}}, Vendors: machine.Traits(),
		Scan: func(ctx context.Context) (gpu.Snapshot, gpu.Sample, error) {
			vendor := machine.Vendors(hardware.VendorDeps{OptionalMeasures: counters.Optional, Log: o.Logger(io.Discard)})[0]
			snapshot, err := vendor.Scan(ctx)
			var first gpu.Sample
			once, stop := context.WithCancel(ctx)
			defer stop()
			_ = vendor.Sample(once, func(sample gpu.Sample) { first = sample; stop() }) // it ends because of stop
			return snapshot, first, err
		},
		Spec: func(ctx context.Context, snapshot *gpu.Snapshot) ([]byte, error) {
			edits := machine.CDIEdits(installedHook(settings, errOut), nil)
			deps := cdi.Deps{Dir: settings.CDIDir, Roots: machine.CDI, Vendor: edits}
			return cdi.New(deps).Render(ctx, snapshot, cdi.Extras{
				GDS: settings.GDS, GDRCopy: settings.GDRCopy, MOFED: settings.MOFED, IMEXChannels: settings.IMEX.ChannelIDs, IMEXRequired: settings.IMEX.Required,
			})
		},
	}, nil
}

// installedHook returns the path of the hook program that an agent has installed, or nothing with a warning: inspect does not
// install it.
func installedHook(config *v1alpha1.AgentConfig, errOut io.Writer) string {
	source, err := hookSource()
	hook := ""
	if err == nil {
		hook, err = cdi.InstalledHook(source, config.HookDir)
	}
	if err != nil {
		fmt.Fprintf(errOut, "warning: the CDI spec is printed without its hooks: %v; the agent installs their program when it starts\n", err)
	}
	return hook
}
