package agent

import (
	"fmt"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/agent/injection"
	"github.com/berth-gpu/berth/internal/node/allocatable"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// wireAllocatable makes the owner of what can be allocated.
func (a *Agent) wireAllocatable(bootID string) {
	a.injection = injection.New(injection.Deps{
		UsesCDI: a.config.UsesCDI(), MPSRoot: a.config.MPSRoot,
		Config: func() *v1alpha1.AgentConfig { return a.watch.Current().Config },
		Names: func() (map[string]bool, bool) {
			if current := a.cdi.Current(); current != nil {
				return current.Names, true
			}
			return nil, false
		},
		MPSUnits: func() []offer.Unit { return a.mps.Units() }, WithoutDaemon: func(id gpu.UUID) string { return a.mps.Unready(id) },
	})
	var read statefile.Result
	a.allocatable, read = allocatable.Open(allocatable.Deps{
		StateDir: a.config.StateDir, BootID: bootID,
		Inventory: a.inventory, Settings: settingsSource{a.watch}, Ledger: a.ledger, Injector: a.injection,
		Changing: func(snapshot *gpu.Snapshot) map[gpu.UUID]string { return a.mig.Changing(snapshot) },
		Report:   a.problemList.Set, Fault: func(step allocatable.Step) error { return a.fault(Step(step)) },
	})
	if read.Lost() {
		a.stateLost("units-file", read, "a GPU that is in use keeps its resource and is not allocated to others until it is free")
	}
}

// settingsSource is the configuration as allocatable reads it.
type settingsSource struct{ watch *configwatch.Watcher }

// Current implements allocatable.Settings.
func (s settingsSource) Current() (settings offer.Settings, version int, known bool) {
	now := s.watch.Current()
	return config.OfferSettings(now.Config), now.Version, !now.Waiting
}

// Subscribe implements allocatable.Settings.
func (s settingsSource) Subscribe() *signal.Subscription { return s.watch.Subscribe() }

// stateLost reports a state file that could not be used, and what the agent does without it. The problem
// stands until the source is set again.
func (a *Agent) stateLost(source string, result statefile.Result, without string) {
	err := fmt.Errorf("%w; %s", result.Err, without)
	a.problemList.SetError(source, result.Code(), err)
	a.events.Publish(nodeapi.StateLost(err.Error()))
}

// holdersOf returns the names of a device's holders.
func (a *Agent) holdersOf(key gpu.DeviceKey) []string { return gpu.HolderNames(a.holdings(), key) }

// holdings are those of the ledger.
func (a *Agent) holdings() []gpu.Holding {
	var all []gpu.Holding
	for _, h := range a.ledger.Holdings() {
		all = append(all, h.Holding)
	}
	return all
}
