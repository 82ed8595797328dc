package command

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

// lookDeps are the dependencies of look.
type lookDeps struct {
	Config *v1alpha1.AgentConfig
	// Scan reads the hardware once. It may hang.
	Scan func(context.Context) (gpu.Snapshot, gpu.Sample, error)
	// Rules judge the health of the viewGPUs.
	Rules health.Rules
	// Offers are the configuration's rules for advertised devices.
	Offers offer.Settings
	// LabelVendors compute the labels about their viewGPUs.
	LabelVendors []labels.Vendor
	// DCGMFields are the fields under dcgm-exporter's names.
	DCGMFields []dcgm.Export
	// Vendors are the names of the vendors.
	Vendors []gpu.Traits
	// Sys is the root of sysfs.
	Sys string
	// Spec renders the viewCDI spec.
	Spec func(context.Context, *gpu.Snapshot) ([]byte, error)
}

// inspectView is something that can be printed.
type inspectView string

// The views.
const (
	viewGPUs    inspectView = "gpus"
	viewDevices inspectView = "devices"
	viewCDI     inspectView = "cdi"
	viewLabels  inspectView = "labels"
	viewMetrics inspectView = "metrics"
)

// inspectViews returns all views in the order of the help text.
func inspectViews() []inspectView {
	return []inspectView{viewGPUs, viewDevices, viewCDI, viewLabels, viewMetrics}
}

// lookResult is one look at the hardware with what would be made of it.
type lookResult struct {
	deps     lookDeps
	snapshot gpu.Snapshot
	sample   gpu.Sample
}

// look scans the hardware once and judges the health of the viewGPUs.
func look(ctx context.Context, deps lookDeps) (*lookResult, error) {
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
	return &lookResult{deps: deps, snapshot: got.snapshot, sample: got.sample}, nil
}

// Print prints a view to out, as a table or text or as JSON, and problems of the view to errOut.
func (r *lookResult) Print(ctx context.Context, out, errOut io.Writer, view inspectView, asJSON bool) error {
	switch view {
	case viewGPUs:
		if asJSON {
			return printJSON(out, "Inventory", "inventory", r.snapshot)
		}
		return printGPUs(out, &r.snapshot)
	case viewDevices:
		return r.printDevices(out, errOut, asJSON)
	case viewCDI:
		text, err := r.deps.Spec(ctx, &r.snapshot)
		if err != nil {
			return err
		}
		_, err = out.Write(text)
		return err
	case viewLabels:
		return r.printLabels(out, asJSON)
	case viewMetrics:
		return r.printMetrics(out, asJSON)
	}
	return fmt.Errorf("print %q: there is no such view", view)
}

func (r *lookResult) printDevices(out, errOut io.Writer, asJSON bool) error {
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

func (r *lookResult) printLabels(out io.Writer, asJSON bool) error {
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

func (r *lookResult) printMetrics(out io.Writer, asJSON bool) error {
	config := r.deps.Config
	in := metrics.Input{Node: config.NodeName, Snapshot: &r.snapshot, Sample: r.sample, Vendors: r.deps.Vendors,
		DCGMFields: r.deps.DCGMFields, DCGMHostnameLabel: config.DCGMHostnameLabel}
	if asJSON {
		return printJSON(out, "Samples", "samples", metrics.Samples(in))
	}
	_, err := out.Write(append(metrics.Berth(in), metrics.DCGM(in)...))
	return err
}
