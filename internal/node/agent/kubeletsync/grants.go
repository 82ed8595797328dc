package kubeletsync

import (
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/node/ledger"
)

const (
	// grantsInContainer is where a container sees the folder of its grant. Nothing reads it there.
	grantsInContainer = "/run/berth/grants"
	// cleanInterval is the time between two looks for grants that nobody has any more, and keepGrants the least age of one that
	// is removed.
	cleanInterval = time.Minute
	keepGrants    = 10 * time.Minute
	// readyGrants is how many grants are made in advance, so that an Allocate waits for no file system.
	readyGrants = 16
)

// Grants is the folder of grants: an empty folder per answer to Allocate, which goes into the container as a read-only mount.
// What counts is the name of the mount's source in the OCI spec. A container runtime makes a source that is missing, so
// that a folder which is lost, as at a reboot, keeps no container from starting.
type Grants struct {
	// Dir is the folder, on the host and here.
	Dir   string
	Clock clock.PassiveClock
	Log   *slog.Logger

	mu sync.Mutex
	// ready are grants that nobody has, with their folders; taken says when those that somebody has were taken.
	ready []string
	taken map[string]time.Time
}

// Take returns the ID of a grant whose folder exists, from those that Fill has made if there is one.
func (g *Grants) Take() string {
	g.mu.Lock()
	last := len(g.ready) - 1
	if last < 0 {
		g.mu.Unlock()
		return g.make()
	}
	defer g.mu.Unlock()
	id := g.ready[last]
	g.ready = g.ready[:last]
	if g.taken == nil {
		g.taken = map[string]time.Time{}
	}
	g.taken[id] = g.Clock.Now()
	return id
}

// Return gives back a grant that nobody got.
func (g *Grants) Return(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ready = append(g.ready, id)
	delete(g.taken, id)
}

// Paths are where the folder of a grant is on the host, and where it goes in the container.
func (g *Grants) Paths(id string) (host, container string) {
	return filepath.Join(g.Dir, id), grantsInContainer + "/" + id
}

// Fill makes grants until there are some that Take can return at once.
func (g *Grants) Fill() {
	g.mu.Lock()
	missing := readyGrants - len(g.ready)
	g.mu.Unlock()
	for range missing {
		g.Return(g.make())
	}
}

// make makes a random ID with its folder.
func (g *Grants) make() string {
	var random [16]byte
	_, _ = rand.Read(random[:]) // It never fails (crypto/rand).
	id := hex.EncodeToString(random[:])
	if err := os.MkdirAll(filepath.Join(g.Dir, id), 0o755); err != nil {
		g.Log.Debug("Could not make the folder of a grant; the container runtime will", "error", err)
	}
	return id
}

// kept are the grants that are not to be removed whoever has them: those that nobody has yet, and those taken a
// short time ago, which need not be in the ledger yet.
func (g *Grants) kept(now time.Time) map[string]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	kept := map[string]bool{}
	for _, id := range g.ready {
		kept[id] = true
	}
	for id, at := range g.taken {
		if now.Sub(at) >= keepGrants {
			delete(g.taken, id)
			continue
		}
		kept[id] = true
	}
	return kept
}

// Clean removes the folders of grants that neither the ledger nor the checkpoint has. A container that still runs
// keeps its mount.
func (g *Grants) Clean(holdings []ledger.Holding, assignments []ledger.Assignment, now time.Time) {
	known := g.kept(now)
	for _, h := range holdings {
		for _, id := range h.Grants {
			known[id] = true
		}
	}
	for _, a := range assignments {
		known[a.Grant] = true
	}
	entries, err := os.ReadDir(g.Dir)
	if err != nil {
		return // There is none before the first grant.
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || known[entry.Name()] || now.Sub(info.ModTime()) < keepGrants {
			continue
		}
		if err := os.Remove(filepath.Join(g.Dir, entry.Name())); err != nil {
			g.Log.Debug("Could not remove the folder of a grant", "error", err)
		}
	}
}
