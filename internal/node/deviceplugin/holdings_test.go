package deviceplugin

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/berth-gpu/berth/internal/node/deviceplugin/fakekubelet"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// TestHoldingsChangeTheList: a device that the ledger begins or ceases to block changes its health for the kubelet, although
// nothing else has changed, and without a further look at the hardware.
func TestHoldingsChangeTheList(t *testing.T) {
	dir := kubeletDir(t)
	k := startKubelet(t, dir, fakekubelet.Options{})
	h, book := machine(4), &blocks{}
	var holdings signal.Broadcast
	var looks atomic.Int32
	startAgent(t, dir, h, func(m *Manager) {
		m.deps.Ledger = book
		m.deps.Holdings = holdings.Subscribe
		m.deps.State = func() State { looks.Add(1); return h.State() }
	})
	await(t, k, healthy(4))
	before := looks.Load()
	book.set(2, &ledger.Block{Unseen: true})
	holdings.Set()
	await(t, k, healthy(3))
	book.set(2, nil)
	holdings.Set()
	await(t, k, healthy(4))
	if after := looks.Load(); after != before {
		t.Errorf("the state was read %d times for changes of the holdings, want 0", after-before)
	}
}

// numberedGrants have the IDs g1, g2 and so on.
type numberedGrants struct {
	taken    int
	returned []string
}

func (g *numberedGrants) Take() string { g.taken++; return fmt.Sprintf("g%d", g.taken) }

func (g *numberedGrants) Return(id string) { g.returned = append(g.returned, id) }

func (g *numberedGrants) Paths(id string) (host, container string) { return "/host/" + id, "/in/" + id }

// TestGrant: an Allocate mounts a grant, read-only, and one that the ledger refuses returns it.
func TestGrant(t *testing.T) {
	dir := kubeletDir(t)
	k := startKubelet(t, dir, fakekubelet.Options{})
	book, grants := &blocks{}, &numberedGrants{}
	startAgent(t, dir, machine(4), func(m *Manager) { m.deps.Ledger, m.deps.Grants = book, grants })
	await(t, k, healthy(4))
	response, err := k.Allocate(t.Context(), resource, uuids(1))
	if err != nil {
		t.Fatal(err)
	}
	mount := response.Mounts[0]
	if mount.HostPath != "/host/g1" || mount.ContainerPath != "/in/g1" || !mount.ReadOnly || len(grants.returned) != 0 {
		t.Errorf("mount %v, returned %v", mount, grants.returned)
	}
	book.set(2, &ledger.Block{})
	if _, err := k.Allocate(t.Context(), resource, uuids(2)); err == nil || !slices.Equal(grants.returned, []string{"g2"}) {
		t.Errorf("a refused Allocate: %v, returned %v, want g2", err, grants.returned)
	}
}
