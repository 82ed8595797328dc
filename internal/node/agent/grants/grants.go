package grants

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
	// keepFor is the minimum age of a grant that is removed.
	keepFor = 10 * time.Minute
	// inAdvance is how many grants are made in advance, so that an Allocate waits for no file system.
	inAdvance = 16
)

// Folder is the name of the folder of grants in the agent's state directory.
const Folder = "grants"

// Deps are what Grants are made of.
type Deps struct {
	// StateDir is the agent's state directory, which has the same path on the host.
	StateDir string
	Clock    clock.PassiveClock
	Log      *slog.Logger
}

// Grants are the folders of grants. A container runtime creates the source of a mount that is missing, so a lost folder, as
// after a reboot, keeps no container from starting.
type Grants struct {
	deps Deps

	mu sync.Mutex
	// ready are grants with their folders that no answer has yet; taken has when each of the others was taken.
	ready []string
	taken map[string]time.Time
}

// New returns the grants of a state directory; it touches nothing.
func New(deps Deps) *Grants { return &Grants{deps: deps, taken: map[string]time.Time{}} }

// Dir is the folder of the grants, on the host and here.
func (g *Grants) Dir() string { return filepath.Join(g.deps.StateDir, Folder) }

// Take returns the ID of a grant whose folder exists: one that Fill has made, if there is one.
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
	g.taken[id] = g.deps.Clock.Now()
	return id
}

// Return makes a grant available again that went into no answer.
func (g *Grants) Return(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ready = append(g.ready, id)
	delete(g.taken, id)
}

// Paths are where the folder of a grant is on the host, and where it goes in the container.
func (g *Grants) Paths(id string) (host, container string) {
	return filepath.Join(g.Dir(), id), grantsInContainer + "/" + id
}

// Fill makes grants until there are some that Take can return at once.
func (g *Grants) Fill() {
	g.mu.Lock()
	missing := inAdvance - len(g.ready)
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
	if err := os.MkdirAll(filepath.Join(g.Dir(), id), 0o755); err != nil {
		g.deps.Log.Debug("Could not make the folder of a grant; the container runtime will", "error", err)
	}
	return id
}

// kept returns the grants that must not be removed whatever the ledger has: those that no answer has yet, and those taken a
// short time ago, which may not be in the ledger yet.
func (g *Grants) kept(now time.Time) map[string]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	kept := map[string]bool{}
	for _, id := range g.ready {
		kept[id] = true
	}
	for id, at := range g.taken {
		if now.Sub(at) >= keepFor {
			delete(g.taken, id)
			continue
		}
		kept[id] = true
	}
	return kept
}

// Clean removes the folders of grants that neither the ledger nor the kubelet's checkpoint has. A container that still runs
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
	entries, err := os.ReadDir(g.Dir())
	if err != nil {
		return // There is none before the first grant.
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || known[entry.Name()] || now.Sub(info.ModTime()) < keepFor {
			continue
		}
		if err := os.Remove(filepath.Join(g.Dir(), entry.Name())); err != nil {
			g.deps.Log.Debug("Could not remove the folder of a grant", "error", err)
		}
	}
}
