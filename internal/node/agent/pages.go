package agent

import (
	"context"
	"net/http"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/node/agent/metricsync"
	"github.com/berth-gpu/berth/internal/node/agent/serve"
	"github.com/berth-gpu/berth/internal/node/allocatable"
	"github.com/berth-gpu/berth/internal/node/inventory"
	"github.com/berth-gpu/berth/internal/node/metrics"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// counted is the adapter with its events counted on their way.
type counted struct {
	*nvidia.Adapter
	xids *metricsync.XIDs
}

var _ inventory.Source = counted{}

// Watch implements inventory.Source.
func (c counted) Watch(ctx context.Context, emit func(gpu.Event)) error {
	return c.Adapter.Watch(ctx, func(event gpu.Event) {
		c.xids.Add(event)
		emit(event)
	})
}

// wirePages makes the pages, and what they show.
func (a *Agent) wirePages(sampler *nvidia.Sampler, xids *metricsync.XIDs) {
	page := metrics.NewPage(metrics.PageDeps{
		Own: metricsync.NewRegistry(metricsync.OwnDeps{Plugin: a.plugin.Stats, Holdings: a.holdings, Problems: a.problems}), DCGMNames: a.config.DCGMNames,
	})
	a.metrics = metricsync.New(metricsync.Deps{
		NodeName: a.config.NodeName, DCGMHostnameLabel: a.config.DCGMHostnameLabel, ProcRoot: "/proc",
		Sample: sampler.Run, Hardware: a.inventory.Current, Units: a.allocatable.Units, Holdings: a.holdings, XIDs: xids.All, ContainerName: a.containerName,
		Changed: []func() *signal.Subscription{a.inventory.Subscribe, a.ledger.Subscribe, a.allocatable.SubscribeUse, a.problemList.Subscribe},
		Page:    page,
	})
	a.liveness = serve.NewLiveness(a.clock)
	a.server = serve.New(serve.Deps{
		NodeName: a.config.NodeName, Simulated: a.simulated, StateDir: a.config.StateDir, Instance: a.instance, MetricsListen: a.config.MetricsListen,
		Compared: a.compared,
		State: serve.State{
			Inventory: a.inventory.Current, Holdings: a.ledger.Holdings, Units: a.allocatable.Units, Offers: a.offers, MIG: a.partition.Statuses,
			Daemon: a.mps.Status, Config: a.watch.Current, Plugin: a.plugin.Stats, Problems: a.problemList.All, InjectionKnown: a.injection.Known,
		},
		Metrics: page, Samples: http.HandlerFunc(page.ServeSamples), Reset: a.resetter, Liveness: a.liveness,
		Report: a.problemList.Set, Clock: a.clock, Log: a.log.With("component", "pages"),
	})
}

// checks are what the liveness probe covers: each waits for nothing outside the process.
func (a *Agent) checks() map[string]func(context.Context) {
	return map[string]func(context.Context){
		"the ledger":                 func(context.Context) { a.ledger.Holdings() },
		"the list of devices":        func(context.Context) { a.advertised() },
		"the list of problems":       func(context.Context) { a.problems() },
		"the device plugin's loop":   func(ctx context.Context) { a.plugin.Ping(ctx) },
		"the conditions of the node": func(context.Context) { a.conditions.All() },
	}
}

// offers are the devices that the kubelet gets.
func (a *Agent) offers() []offer.Offer { return allocatable.Offers(a.allocatable.Current()) }

// containerName is the name of a container that was running at the last look at the node; empty for another one.
func (a *Agent) containerName(id string) string {
	for _, c := range a.sync.Containers() {
		if c.ID == id {
			return c.Name
		}
	}
	return ""
}

// nodeProblems are the problems of the node that belong to no GPU.
type nodeProblems struct{ *Agent }

// All implements gpunodesync.Problems.
func (p nodeProblems) All() []gpu.Cause { return p.problems() }

// Subscribe implements gpunodesync.Problems.
func (p nodeProblems) Subscribe() *signal.Subscription { return p.problemList.Subscribe() }

// problems returns the problems of the node that belong to no GPU.
func (a *Agent) problems() []gpu.Cause {
	causes := append([]gpu.Cause(nil), a.inventory.Current().Faults...)
	causes = append(causes, a.ledger.Faults()...)
	return append(causes, a.problemList.All()...)
}
