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

// follow keeps the ledger in line with the kubelet and the running containers until ctx ends. Its first look is the start of
// the agent: what waits for compared runs after it.
func (a *Agent) follow(ctx context.Context) error {
	// Without the hardware no device node can be distinguished from another.
	select {
	case <-ctx.Done():
		return nil
	case <-a.inventory.Ready():
	}
	a.sync.Look(ctx)
	// Nothing is settled before the layout is known, or GPUs that are to be partitioned would be advertised whole.
	if len(a.allocatable.Units()) == 0 {
		a.mig.AwaitLayout(ctx)
	}
	a.allocatable.Begin()
	a.mps.Prepare(ctx)
	a.compared.Set()
	a.allocatable.InjectionChanged()
	return a.sync.Run(ctx)
}

// resourceNames returns the names under which devices are allocated now, and those under which held devices were
// allocated, sorted.
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

// kubeletRestarted blocks the devices that running containers use until it is known what the new kubelet remembers. The
// change of the ledger leads to the next look.
func (a *Agent) kubeletRestarted() {
	a.log.Info("Kubelet restarted; devices in use are withheld until its checkpoint is read")
	a.ledger.Distrust()
}

// holders adapts the ledger to the device plugin.
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
