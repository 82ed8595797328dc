package deviceplugin

import (
	"slices"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/node/deviceplugin/fakekubelet"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// TestStoppingResourceDelaysNoHealth: the server of a resource that is no longer offered waits for its last call before it ends. The health
// of the other resources does not wait for that, and the resource can be offered again.
func TestStoppingResourceDelaysNoHealth(t *testing.T) {
	h := machine(4)
	dir := kubeletDir(t)
	k := startKubelet(t, dir, fakekubelet.Options{})
	ledger := &slowLedger{entered: make(chan struct{}, 1), release: make(chan struct{})}
	other := offer.Settings{GPUs: []offer.GPURule{{Select: offer.GPUSelect{Index: []int{3}}, ResourceName: "nvidia.com/other"}}}
	h.settings = []offer.Settings{other}
	startAgent(t, dir, h, func(m *Manager) {
		m.deps.Ledger = ledger
		m.timing.drain = testTimeout
	})
	await(t, k, healthy(3))
	awaitResource(t, k, "nvidia.com/other", healthy(1))
	go k.Allocate(t.Context(), "nvidia.com/other", uuids(3))
	<-ledger.entered
	h.change(func(h *hardware) { h.settings = []offer.Settings{{}} }) // GPU 3 is an nvidia.com/gpu now
	await(t, k, healthy(4))
	time.Sleep(3 * fastTiming().linger) // nvidia.com/other has no devices, and waits for its call

	began := time.Now()
	h.setHealthy(1, false)
	await(t, k, func(s fakekubelet.State) bool { return !slices.Contains(s.Healthy, uuids(1)[0]) })
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("the health of a GPU reached the kubelet after %s, while another resource was stopping", took)
	}
	h.change(func(h *hardware) { h.settings = []offer.Settings{other} })
	close(ledger.release)
	awaitResource(t, k, "nvidia.com/other", healthy(1))
}
