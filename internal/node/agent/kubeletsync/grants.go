package kubeletsync

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/signal"
)

const (
	// grantsInContainer is where a container sees the folder of its grant. No program reads it there.
	grantsInContainer = "/run/berth/grants"
	// keepGrantFor is the minimum age of a grant that is removed.
	keepGrantFor = 10 * time.Minute
	// inAdvance is how many grants Run creates in advance; it creates more when fewer than lowest are left. A burst of
	// Allocates on a node with 8 GPUs therefore wakes it at most once.
	inAdvance       = 16
	lowestInAdvance = inAdvance / 2
	// fillAfter is how long after an Allocate the folders are created: the kubelet waits for the response, and calls
	// Allocate for a pod's containers and for several pods one after the other.
	fillAfter = 10 * time.Millisecond
)

// GrantsFolder is the name of the folder of grants in the agent's state directory.
const GrantsFolder = "grants"

// GrantsDeps are the dependencies of Grants.
type GrantsDeps struct {
	// StateDir is the agent's state directory, which has the same path on the host.
	StateDir string
	Clock    clock.Clock
	Log      *slog.Logger
}

// Grants are the folders of grants. Create it with NewGrants, start it with Run.
type Grants struct {
	deps GrantsDeps
	dir  string
	wake *signal.Signal

	mu sync.Mutex
	// ready are grants with their folders that no response has yet; taken has the time at which each of the others was
	// taken.
	ready []string
	taken map[string]time.Time
	// owed are grants that were taken without a folder.
	owed []string
}

// NewGrants returns the grants of a state directory; it touches nothing.
func NewGrants(deps GrantsDeps) *Grants {
	return &Grants{deps: deps, dir: filepath.Join(deps.StateDir, GrantsFolder), wake: signal.New(), taken: map[string]time.Time{}}
}

// Dir returns the folder of the grants, the same on the host and in this process.
func (g *Grants) Dir() string { return g.dir }

// take returns the ID of a grant. It accesses no file: when no grant with a folder is left, Run creates the folder of
// this one some milliseconds later.
func (g *Grants) Take() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var id string
	if last := len(g.ready) - 1; last >= 0 {
		id, g.ready = g.ready[last], g.ready[:last]
	} else {
		id = newID()
		g.owed = append(g.owed, id)
	}
	g.taken[id] = g.deps.Clock.Now()
	if len(g.ready) < lowestInAdvance {
		g.wake.Set()
	}
	return id
}

// putBack makes a grant available again that was not used in a response.
func (g *Grants) Return(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ready = append(g.ready, id)
	delete(g.taken, id)
}

// paths returns where the folder of a grant is on the host, and where it is mounted in the container.
func (g *Grants) Paths(id string) (host, container string) {
	return g.dir + "/" + id, grantsInContainer + "/" + id
}

// Run creates folders in advance until ctx ends.
func (g *Grants) Run(ctx context.Context) error {
	for g.fill(); ; g.fill() {
		select {
		case <-ctx.Done():
			return nil
		case <-g.wake.C():
		}
		select {
		case <-ctx.Done():
			return nil
		case <-g.deps.Clock.After(fillAfter):
		}
	}
}

// fill creates the folders of grants that were taken without one, and then grants until inAdvance are ready.
func (g *Grants) fill() {
	g.mu.Lock()
	owed := g.owed
	g.owed = nil
	missing := inAdvance - len(g.ready)
	g.mu.Unlock()
	for _, id := range owed {
		g.make(id)
	}
	for range missing {
		id := newID()
		g.make(id)
		g.Return(id)
	}
}

// newID returns a random ID.
func newID() string {
	var random [16]byte
	_, _ = rand.Read(random[:]) // It never fails (crypto/rand).
	return hex.EncodeToString(random[:])
}

// make creates the folder of a grant.
func (g *Grants) make(id string) {
	if err := os.MkdirAll(filepath.Join(g.Dir(), id), 0o755); err != nil {
		g.deps.Log.Debug("Could not make the folder of a grant; the container runtime will", "error", err)
	}
}

// kept returns the grants that must not be removed even if the ledger does not have them: those that no response has
// yet, and those taken a short time ago, which may not be in the ledger yet.
func (g *Grants) kept(now time.Time) map[string]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	kept := map[string]bool{}
	for _, id := range g.ready {
		kept[id] = true
	}
	for id, at := range g.taken {
		if now.Sub(at) >= keepGrantFor {
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
		if err != nil || known[entry.Name()] || now.Sub(info.ModTime()) < keepGrantFor {
			continue
		}
		if err := os.Remove(filepath.Join(g.Dir(), entry.Name())); err != nil {
			g.deps.Log.Debug("Could not remove the folder of a grant", "error", err)
		}
	}
}
