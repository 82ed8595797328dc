package agent

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/berth-gpu/berth/internal/node/agent/configsync"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// actor is one row of the agent's table: a function to run, and the condition for its start.
type actor struct {
	name string
	// after must be true before it runs; nil for no condition.
	after *signal.Ready
	run   func(context.Context) error
}

// actors returns everything that the agent runs. What advertises or changes devices, and what shows holders, runs after
// the comparison of the ledger with the node; the CDI spec too, since it names MPS daemons, whose state is unknown
// before.
func (a *Agent) actors() []actor {
	all := []actor{
		{name: "inventory", run: a.node.inventory.Run},
		{name: "configwatch", run: func(ctx context.Context) error {
			return a.deps.Config.Run(ctx, configsync.Judge(a.node.inventory, a.deps.Hardware.Configured(), a.changes.mig.Repartitioned))
		}},
		{name: "library", run: a.node.library.Run},
		{name: "podwatch", run: a.node.pods.Run},
		{name: "kubeletsync", run: a.follow},
		{name: "grants", run: a.node.grants.Run},
		{name: "allocatable", run: a.devices.allocatable.Run},
		{name: "configsync", run: configsync.New(configsync.Deps{Config: a.deps.Config, Conditions: a.reports.conditions, Report: a.reports.list.Set}).Run},
		{name: "cdisync", after: a.compared, run: a.devices.cdi.Run},
		{name: "deviceplugin", after: a.compared, run: a.devices.plugin.Run},
		{name: "migsync", after: a.compared, run: a.changes.mig.Run},
		{name: "reset", after: a.compared, run: a.changes.resetter.Run},
		{name: "timeslice", after: a.compared, run: a.changes.timeslices.Run},
		{name: "mpssync", after: a.compared, run: a.changes.mps.Run},
		{name: "healthsync", after: a.compared, run: a.reports.health.Run},
		{name: "labelsync", run: a.reports.labels.Run},
		{name: "metricsync", run: a.reports.metrics.Run},
		{name: "events", run: a.reports.events.Run},
		{name: "publishers", run: a.reports.publishers.Run},
		{name: "serve", run: a.reports.server.Run},
		// Before the comparison the device plugin's loop does not run.
		{name: "liveness", after: a.compared, run: func(ctx context.Context) error { return a.reports.liveness.Run(ctx, a.checks()) }},
	}
	if a.deps.API == nil {
		return all // Nothing is published, so nothing is computed for it.
	}
	all = append(all, actor{name: "gpunodesync", run: a.reports.gpuNode.Run})
	if a.devices.dra != nil {
		all = append(all, actor{name: "dra", after: a.compared, run: a.devices.dra.Run})
	}
	return all
}

// Run works until ctx ends. It returns an error only for a fault that cannot be repaired while it runs; it waits for a
// missing driver, kubelet or API server.
func (a *Agent) Run(ctx context.Context) error {
	defer a.node.ledger.Close()
	group, ctx := errgroup.WithContext(ctx)
	for _, actor := range a.actors() {
		group.Go(func() error {
			if actor.after != nil && actor.after.Wait(ctx) != nil {
				return nil
			}
			return actor.run(ctx)
		})
	}
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	a.deps.Log.Info("Stopped the agent; nothing was removed, and containers keep their devices", "component", "agent")
	return nil
}

// follow makes the first look at the node when the agent starts: actors that wait for compared run after it. Then it
// keeps the ledger in line with the node until ctx ends.
func (a *Agent) follow(ctx context.Context) error {
	// Without the hardware no device node can be distinguished from another.
	select {
	case <-ctx.Done():
		return nil
	case <-a.node.inventory.Ready():
	}
	if a.devices.dra != nil {
		a.devices.dra.AwaitAdopted(ctx)
	}
	a.node.sync.Look(ctx)
	// Nothing is settled before the layout is known, or GPUs that are to be partitioned would be advertised whole.
	if len(a.devices.allocatable.Units()) == 0 {
		a.changes.mig.AwaitLayout(ctx)
	}
	a.devices.allocatable.Begin()
	a.changes.mps.Prepare(ctx)
	a.compared.Set()
	a.devices.allocatable.InjectionChanged()
	return a.node.sync.Run(ctx)
}

// checks are the checks of the liveness probe: none waits for anything outside the process.
func (a *Agent) checks() map[string]func(context.Context) {
	return map[string]func(context.Context){
		"the ledger":                 func(context.Context) { a.node.ledger.Holdings() },
		"the list of devices":        func(context.Context) { a.advertised() },
		"the list of problems":       func(context.Context) { a.reports.problems.All() },
		"the device plugin's loop":   func(ctx context.Context) { a.devices.plugin.Ping(ctx) },
		"the conditions of the node": func(context.Context) { a.reports.conditions.All() },
	}
}
