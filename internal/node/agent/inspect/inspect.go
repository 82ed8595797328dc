// Package inspect prints what the agent would publish from a machine's hardware with a configuration: GPUs, devices of
// the kubelet, CDI spec, labels, metrics.
//
// It guarantees that it scans once, waits for the driver no longer than the configuration's scanDeadline, and writes
// only its output. It is not an actor: berth-agent inspect calls it. It must not import the agent or another package
// below it; their decisions are passed in [Deps].
package inspect

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/dcgm"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/health"
	"github.com/berth-gpu/berth/internal/hardware/bound"
	"github.com/berth-gpu/berth/internal/node/labels"
	"github.com/berth-gpu/berth/internal/node/metrics"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// Deps are the dependencies of Look.
type Deps struct {
	Config *v1alpha1.AgentConfig
	// Scan reads the hardware once. It may hang.
	Scan func(context.Context) (gpu.Snapshot, gpu.Sample, error)
	// Rules judge the health of the GPUs.
	Rules health.Rules
	// Offers are the configuration's rules for advertised devices.
	Offers offer.Settings
	// LabelVendors compute the labels about their GPUs.
	LabelVendors []labels.Vendor
	// DCGMFields are the fields under dcgm-exporter's names.
	DCGMFields []dcgm.Export
	// Vendors are the names of the vendors.
	Vendors []gpu.Traits
	// Sys is the root of sysfs.
	Sys string
	// Spec renders the CDI spec.
	Spec func(context.Context, *gpu.Snapshot) ([]byte, error)
}

// View is something that can be printed.
type View string

// The views.
const (
	GPUs    View = "gpus"
	Devices View = "devices"
	CDI     View = "cdi"
	Labels  View = "labels"
	Metrics View = "metrics"
)

// Views returns all views in the order of the help text.
func Views() []View { return []View{GPUs, Devices, CDI, Labels, Metrics} }

// Result is one look at the hardware with what would be made of it.
type Result struct {
	deps     Deps
	snapshot gpu.Snapshot
	sample   gpu.Sample
}

// Look scans the hardware once and judges the health of the GPUs.
func Look(ctx context.Context, deps Deps) (*Result, error) {
	type found struct {
		snapshot gpu.Snapshot
		sample   gpu.Sample
	}
	deadline := deps.Config.ScanDeadline.Duration
	bounded, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	got, err := bound.Call(bounded, "scan", func() (found, error) {
		snapshot, sample, err := deps.Scan(bounded)
		return found{snapshot, sample}, err
	})
	switch {
	case err != nil && bounded.Err() != nil && ctx.Err() == nil:
		return nil, fmt.Errorf("scan hardware: no answer from the driver within %s: it hangs (see dmesg for NVRM lines)", deadline)
	case err != nil:
		return nil, fmt.Errorf("scan hardware: %w", err)
	}
	health.Once(&got.snapshot, deps.Rules, time.Now())
	return &Result{deps: deps, snapshot: got.snapshot, sample: got.sample}, nil
}

// Print prints a view to out, as a table or text or as JSON, and problems of the view to errOut.
func (r *Result) Print(ctx context.Context, out, errOut io.Writer, view View, asJSON bool) error {
	switch view {
	case GPUs:
		if asJSON {
			return printJSON(out, "Inventory", "inventory", r.snapshot)
		}
		return printGPUs(out, &r.snapshot)
	case Devices:
		return r.printDevices(out, errOut, asJSON)
	case CDI:
		text, err := r.deps.Spec(ctx, &r.snapshot)
		if err != nil {
			return err
		}
		_, err = out.Write(text)
		return err
	case Labels:
		return r.printLabels(out, asJSON)
	case Metrics:
		return r.printMetrics(out, asJSON)
	}
	return fmt.Errorf("print %q: there is no such view", view)
}

func (r *Result) printDevices(out, errOut io.Writer, asJSON bool) error {
	units, problems := offer.Resolve(&r.snapshot, r.deps.Offers)
	for _, problem := range problems {
		fmt.Fprintf(errOut, "%s: %s\n", problem.Code, problem.Message)
	}
	offers := offer.Build(&r.snapshot, units)
	if asJSON {
		return printJSON(out, "Offers", "offers", offers)
	}
	return printOffers(out, offers)
}

func (r *Result) printLabels(out io.Writer, asJSON bool) error {
	config := r.deps.Config
	units, _ := offer.Resolve(&r.snapshot, r.deps.Offers)
	built := labels.Build(labels.Input{
		Snapshot: &r.snapshot, Vendors: r.deps.LabelVendors, Units: units, ResourceName: config.ResourceName, MIGStrategy: string(config.MIGStrategy),
		Host: labels.ReadHost(r.deps.Sys, &r.snapshot, r.deps.LabelVendors...),
	})
	if asJSON {
		return printJSON(out, "Labels", "labels", built)
	}
	_, err := out.Write(built.Text())
	return err
}

func (r *Result) printMetrics(out io.Writer, asJSON bool) error {
	config := r.deps.Config
	in := metrics.Input{Node: config.NodeName, Snapshot: &r.snapshot, Sample: r.sample, Vendors: r.deps.Vendors,
		DCGMFields: r.deps.DCGMFields, DCGMHostnameLabel: config.DCGMHostnameLabel}
	if asJSON {
		return printJSON(out, "Samples", "samples", metrics.Samples(in))
	}
	_, err := out.Write(append(metrics.Berth(in), metrics.DCGM(in)...))
	return err
}
