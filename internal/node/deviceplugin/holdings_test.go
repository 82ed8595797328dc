package deviceplugin

import (
	"sync/atomic"
	"testing"

	"github.com/berth-gpu/berth/internal/node/deviceplugin/fakekubelet"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// TestHoldingsChangeTheList: a device that the ledger begins or ceases to block changes its health for the kubelet, although
// nothing else has changed, and without a further look at the hardware.
func TestHoldingsChangeTheList(t *testing.T) {
	dir := kubeletDir(t)
	k := startKubelet(t, dir, fakekubelet.Options{})
	h, ledger := machine(4), &blocks{}
	var holdings signal.Broadcast
	var looks atomic.Int32
	startAgent(t, dir, h, func(m *Manager) {
		m.deps.Ledger = ledger
		m.deps.Holdings = func() Subscription { return holdings.Subscribe() }
		m.deps.State = func() State { looks.Add(1); return h.State() }
	})
	await(t, k, healthy(4))
	before := looks.Load()
	ledger.set(2, &Block{Unhealthy: true})
	holdings.Set()
	await(t, k, healthy(3))
	ledger.set(2, nil)
	holdings.Set()
	await(t, k, healthy(4))
	if after := looks.Load(); after != before {
		t.Errorf("the state was read %d times for changes of the holdings, want 0", after-before)
	}
}
