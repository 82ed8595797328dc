package agent

import (
	"context"
	"slices"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/agent/kubeletsync"
	"github.com/berth-gpu/berth/internal/node/deviceplugin"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// askTimeout bounds one question to the API server or another program.
const askTimeout = 2 * time.Second

// shadow keeps the ledger equal to what the kubelet remembers and what lives,
// until ctx ends. It opens the agent's other parts once the ledger was compared with the node.
func (a *Agent) shadow(ctx context.Context) error {
	// Without the hardware no device node could be told from another.
	select {
	case <-ctx.Done():
		return nil
	case <-a.inventory.Ready():
	}
	a.sync.Look(ctx)
	// No other goroutine may settle before the layout is known, or GPUs that are to be partitioned are advertised whole.
	if len(a.allocatable.Units()) == 0 {
		a.mig.AwaitLayout(ctx)
	}
	a.allocatable.Begin()
	a.mps.Prepare(ctx)
	close(a.compared)
	a.allocatable.InjectionChanged()
	return a.sync.Run(ctx)
}

// resourceNames are the names under which devices are allocated, or were to those that
// hold them, sorted.
func (a *Agent) resourceNames() []string {
	var names []string
	for _, unit := range a.allocatable.Units() {
		names = append(names, unit.Use.Resource)
	}
	for _, h := range a.ledger.Holdings() {
		if h.Holder.Resource != "" {
			names = append(names, h.Holder.Resource)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// kubeletRestarted bars what lives until it is known what the new kubelet remembers; the change that
// this makes to the ledger leads to the next look.
func (a *Agent) kubeletRestarted() {
	a.log.Info("Kubelet restarted; devices in use are withheld until its checkpoint is read")
	a.ledger.Distrust()
}

// holders shows the ledger to the device plugin in the device plugin's words.
type holders struct {
	ledger *ledger.Ledger
	grants *kubeletsync.Grants
}

// Barred implements deviceplugin.Ledger.
func (h holders) Barred(resource string, key gpu.DeviceKey) (deviceplugin.Bar, bool) {
	bar, barred := h.ledger.BarredBy(resource, key)
	return deviceplugin.Bar{Unhealthy: bar.Unseen}, barred
}

// Offered implements deviceplugin.FreeLedger.
func (h holders) Offered(resource string, keys []gpu.DeviceKey) []gpu.DeviceKey {
	return h.ledger.Offered(resource, keys)
}

// Hold implements deviceplugin.Ledger.
func (h holders) Hold(resource string, keys []gpu.DeviceKey) (deviceplugin.Mount, error) {
	id := h.grants.Take()
	if err := h.ledger.Allocate(resource, id, keys); err != nil {
		h.grants.Return(id)
		return deviceplugin.Mount{}, err
	}
	host, container := h.grants.Paths(id)
	return deviceplugin.Mount{HostPath: host, ContainerPath: container}, nil
}
