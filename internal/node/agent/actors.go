package agent

import (
	"context"

	"github.com/berth-gpu/berth/internal/node/configwatch"
)

// actors returns everything that the agent runs. What advertises or changes devices, and what shows holders, runs after
// the comparison of the ledger with the node; the CDI spec too, since it names MPS daemons, whose state is unknown
// before.
func (a *Agent) actors() []actor {
	all := []actor{
		{Name: "inventory", Run: a.node.inventory.Run},
		{
			Name: "configwatch",
			Run: func(ctx context.Context) error {
				return a.deps.Config.Run(ctx, configwatch.JudgeByHardware(a.node.inventory, a.deps.Hardware.Configured(), a.changes.mig.Layouts))
			},
		},
		{Name: "gpuhistory", Run: a.node.history.Run},
		{Name: "library", Run: a.node.library.Run},
		{Name: "hostruntime", Run: a.node.host.Run},
		{Name: "podwatch", Run: a.node.pods.Run},
		{Name: "kubeletsync", Run: a.follow},
		{Name: "grants", Run: a.node.grants.Run},
		{Name: "allocatable", Run: a.devices.allocatable.Run},
		{
			Name: "configsync",
			Run:  configwatch.NewReporter(configwatch.ReporterDeps{Config: a.deps.Config, Conditions: a.reports.conditions, Report: a.reports.list.Set}).Run,
		},
		{Name: "cdisync", After: a.compared, Run: a.devices.cdi.Run},
		{Name: "deviceplugin", After: a.compared, Run: a.devices.plugin.Run},
		{Name: "migsync", After: a.compared, Run: a.changes.mig.Run},
		{Name: "reset", After: a.compared, Run: a.changes.resetter.Run},
		{Name: "timeslice", After: a.compared, Run: a.changes.timeslices.Run},
		{Name: "mpssync", After: a.compared, Run: a.changes.mps.Run},
		{Name: "healthsync", After: a.compared, Run: a.reports.health.Run},
		{Name: "gatesync", After: a.compared, Run: a.reports.gate.Run},
		{Name: "labelsync", Run: a.reports.labels.Run},
		{Name: "metricsync", Run: a.reports.metrics.Run},
		{Name: "events", Run: a.reports.events.Run},
		{Name: "apichoice", After: a.compared, Run: a.devices.choice.Run},
		{Name: "publishers", Run: a.reports.publishers.Run},
		{Name: "serve", Run: a.reports.server.Run},
		// Before the comparison the device plugin's loop does not run.
		{Name: "liveness", After: a.compared, Run: func(ctx context.Context) error { return a.reports.liveness.Run(ctx, a.checks()) }},
	}
	if a.deps.API == nil {
		return all // Nothing is published, so nothing is computed for it.
	}
	all = append(all,
		actor{Name: "kubeletconfig", Run: a.node.kubelet.Run},
		actor{Name: "gpunodesync", Run: a.reports.gpuNode.Run},
	)
	if a.devices.dra != nil {
		all = append(all,
			actor{Name: "dra", After: a.settled, Run: a.devices.dra.Run},
			actor{Name: "handover", After: a.compared, Run: a.devices.handover.Run},
		)
	}
	return all
}

// Run works until ctx ends. It returns an error only for a fault that cannot be repaired while it runs; it waits for a
// missing driver, kubelet or API server.
func (a *Agent) Run(ctx context.Context) error {
	defer a.node.ledger.Close()
	if err := runActors(ctx, a.actors()); err != nil {
		return err
	}
	a.deps.Log.Info("Stopped the agent; nothing was removed, and containers keep their devices", "component", "agent")
	return nil
}

// follow makes the first look at the node when the agent starts: actors that wait for compared run after it. Then it
// keeps the ledger in line with the node until ctx ends.
func (a *Agent) follow(ctx context.Context) error {
	deps := startDeps{
		Scanned: a.node.inventory.Ready(),
		Ledger:  a.node.ledger,
		Look:    a.node.sync.Look,
		AwaitConfig: func(ctx context.Context) {
			a.deps.Config.AwaitDecision(ctx)
			if len(a.devices.allocatable.Units()) == 0 {
				a.changes.mig.AwaitLayout(ctx)
			}
		},
		Begin:    a.reports.gate.Before(a.devices.allocatable.Begin),
		Daemons:  a.changes.mps.Prepare,
		Settled:  a.settled,
		Compared: a.compared,
		Report:   a.reports.list.Set,
		Clock:    a.deps.Clock,
		Log:      a.log("startup"),
	}
	if a.devices.dra != nil {
		deps.Claims = a.devices.dra
	}
	if startUp(ctx, deps); ctx.Err() != nil {
		return nil
	}
	a.devices.allocatable.InjectionChanged()
	return a.node.sync.Run(ctx)
}

// checks are the checks of the liveness probe: none waits for anything outside the process.
func (a *Agent) checks() map[string]func(context.Context) {
	return map[string]func(context.Context){
		"the ledger":                 func(context.Context) { a.node.ledger.Holdings() },
		"the list of devices":        func(context.Context) { a.offers() },
		"the list of problems":       func(context.Context) { a.reports.problems.All() },
		"the device plugin's loop":   func(ctx context.Context) { a.devices.plugin.Ping(ctx) },
		"the conditions of the node": func(context.Context) { a.reports.conditions.All() },
	}
}
