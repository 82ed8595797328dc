package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/health"
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/node/cdi"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/labels"
	"github.com/berth-gpu/berth/internal/node/metrics"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// inspected is one look at the hardware with what would be made of it.
type inspected struct {
	config   *v1alpha1.AgentConfig
	hardware Hardware
	snapshot gpu.Snapshot
	sample   gpu.Sample
}

// inspectable is what inspect can print.
func inspectable() []string { return []string{"gpus", "devices", "cdi", "labels", "metrics"} }

func newInspectCommand(o *options) *cobra.Command {
	format := "table"
	cmd := &cobra.Command{
		Use:   "inspect gpus|devices|cdi|labels|metrics",
		Short: "Print what the agent would publish, and exit",
		Long: `Print what the agent would publish from this machine's hardware (or from a
simulator's) with the given configuration. Nothing is written anywhere.

  gpus     the cards as the inventory sees them
  devices  what the kubelet would be told: resource, device ID, NUMA node, health
  cdi      the CDI spec (always JSON)
  labels   the labels about the GPUs, one KEY=VALUE per line
  metrics  the GPUs' metrics, as /metrics has them after one measurement`,
		Example: `  berth-agent inspect gpus
  berth-agent inspect devices --sim /tmp/gpus --config agent.yaml -o json
  berth-agent inspect cdi --sim /tmp/gpus
  berth-agent inspect labels --sim /tmp/gpus`,
		ValidArgs: inspectable(),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || !slices.Contains(inspectable(), args[0]) {
				return fmt.Errorf("inspect %s: name one of %s, as in berth-agent inspect gpus", strings.Join(args, " "), strings.Join(inspectable(), ", "))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if format != "table" && format != "json" {
				return fmt.Errorf("unknown output format %q: use table or json", format)
			}
			config, err := o.load(cmd)
			if err != nil {
				return err
			}
			seen, err := inspect(cmd.Context(), o, config)
			if err != nil {
				return err
			}
			return seen.print(cmd, args[0], format == "json")
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", format, "table or json")
	return cmd
}

func inspect(ctx context.Context, o *options, config *v1alpha1.AgentConfig) (*inspected, error) {
	hardware, err := OpenHardware(o.sim, config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, config.ScanDeadline.Duration)
	defer cancel()
	type answer struct {
		snapshot gpu.Snapshot
		sample   gpu.Sample
		err      error
	}
	// In a goroutine: nothing can interrupt a call into a driver that hangs.
	done := make(chan answer, 1)
	go func() {
		hardware.MakeNodes = nil // who looks changes nothing
		adapter := hardware.adapter(o.logger(io.Discard), nil)
		snapshot, err := adapter.Scan(ctx)
		done <- answer{snapshot, adapter.Sampler(nvidia.SamplerDeps{}).Sample(ctx), err}
	}()
	select {
	case got := <-done:
		if got.err != nil {
			return nil, fmt.Errorf("scan hardware: %w", got.err)
		}
		rules, err := healthRules(config)
		if err != nil {
			return nil, err
		}
		health.Once(&got.snapshot, rules, time.Now())
		return &inspected{config: config, hardware: hardware, snapshot: got.snapshot, sample: got.sample}, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("scan hardware: no answer from the driver within %s: it hangs (see dmesg for NVRM lines)", config.ScanDeadline.Duration)
	}
}

func (s *inspected) print(cmd *cobra.Command, what string, asJSON bool) error {
	out := cmd.OutOrStdout()
	switch what {
	case "gpus":
		if asJSON {
			return printJSON(out, "Inventory", "inventory", s.snapshot)
		}
		return s.printGPUs(out)
	case "labels":
		units, _ := offer.Resolve(&s.snapshot, config.OfferSettings(s.config))
		labels := labels.Build(labels.Input{
			Snapshot: &s.snapshot, Units: units, ResourceName: s.config.ResourceName, MIGStrategy: string(s.config.MIGStrategy),
			Host: labels.ReadHost(s.hardware.Roots.Sys, &s.snapshot),
		})
		if asJSON {
			return printJSON(out, "Labels", "labels", labels)
		}
		_, err := out.Write(labels.Text())
		return err
	case "metrics":
		in := metrics.Input{Node: s.config.NodeName, Snapshot: &s.snapshot, Sample: s.sample, DCGMHostnameLabel: s.config.DCGMHostnameLabel}
		if asJSON {
			return printJSON(out, "Samples", "samples", metrics.Samples(in))
		}
		text := metrics.Berth(in)
		if s.config.DCGMNames {
			text = append(text, metrics.DCGM(in)...)
		}
		_, err := out.Write(text)
		return err
	case "devices":
		units, problems := offer.Resolve(&s.snapshot, config.OfferSettings(s.config))
		for _, problem := range problems {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", problem.Code, problem.Message)
		}
		offers := offer.Build(&s.snapshot, units)
		if asJSON {
			return printJSON(out, "Offers", "offers", offers)
		}
		return printOffers(out, offers)
	}
	return s.printSpec(cmd)
}

// printSpec prints the spec as it would be written. The hooks need their program, which
// inspect does not install.
func (s *inspected) printSpec(cmd *cobra.Command) error {
	source, err := hookSource()
	hook := ""
	if err == nil {
		hook, err = cdi.InstalledHook(source, s.config.HookDir)
	}
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "the hooks are left out: %v; the agent installs their program when it starts\n", err)
	}
	deps := cdi.Deps{Dir: s.config.CDIDir, Roots: s.hardware.CDI, Library: s.hardware.Library, HookPath: hook}
	text, err := cdi.New(deps).Render(cmd.Context(), &s.snapshot, cdi.Extras{
		GDS: s.config.GDS, GDRCopy: s.config.GDRCopy, MOFED: s.config.MOFED, IMEXChannels: s.config.IMEX.ChannelIDs, IMEXRequired: s.config.IMEX.Required,
	})
	if err != nil {
		return err
	}
	_, err = cmd.OutOrStdout().Write(text)
	return err
}

func (s *inspected) printGPUs(out io.Writer) error {
	for _, fault := range s.snapshot.Faults {
		fmt.Fprintf(out, "%s: %s\n", fault.Code, fault.Message)
	}
	if s.snapshot.Driver.Present() {
		fmt.Fprintf(out, "driver %s, CUDA %s\n", s.snapshot.Driver.Version, s.snapshot.Driver.CUDA)
	}
	var rows [][]string
	for i := range s.snapshot.GPUs {
		card := &s.snapshot.GPUs[i]
		rows = append(rows, []string{
			itoa(card.Index), string(card.UUID), card.Product, card.PCI.String(), numa(card.NUMANode),
			memory(card.MemoryBytes), trace.HealthText(card.Health),
		})
	}
	return printTable(out, []string{"INDEX", "UUID", "MODEL", "PCI BUS ID", "NUMA", "MEMORY", "HEALTH"}, rows)
}

func printOffers(out io.Writer, offers []offer.Offer) error {
	var rows [][]string
	for _, o := range offers {
		for _, device := range o.Devices {
			state := string(device.Health)
			if device.Reason != "" {
				state += ": " + device.Reason
			}
			rows = append(rows, []string{o.Resource, device.ID, device.Index, numa(device.NUMANode), state})
		}
	}
	return printTable(out, []string{"RESOURCE", "DEVICE ID", "INDEX", "NUMA", "HEALTH"}, rows)
}

func printTable(out io.Writer, head []string, rows [][]string) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	for _, row := range append([][]string{head}, rows...) {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// memory is "-" for a card that does not say.
func memory(bytes uint64) string {
	if bytes == 0 {
		return "-"
	}
	return strconv.FormatUint(bytes>>20, 10) + " MiB"
}

func numa(node int) string {
	if node == gpu.NoNUMANode {
		return "-"
	}
	return itoa(node)
}

// printJSON wraps a value in a versioned object, so that scripts can tell the day it changes.
func printJSON(out io.Writer, kind, field string, value any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(map[string]any{"apiVersion": v1alpha1.GroupVersion().String(), "kind": kind, field: value})
}
