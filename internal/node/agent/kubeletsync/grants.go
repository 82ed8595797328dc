package kubeletsync

import (
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-gpu/berth/internal/node/ledger"
)

const (
	// grantsInContainer is where a container sees the folder of its grant. Nothing reads it there.
	grantsInContainer = "/run/berth/grants"
	// cleanInterval is the time between two looks for grants that nobody has any more, and keepGrants the least age of one that
	// is removed.
	cleanInterval = time.Minute
	keepGrants    = 10 * time.Minute
)

// Grants is the folder of grants: an empty folder per answer to Allocate, which goes into the container as a read-only mount.
// What counts is the name of the mount's source in the OCI spec. A container runtime makes a source that is missing, so
// that a folder which is lost, as at a reboot, keeps no container from starting.
type Grants struct {
	// Dir is the folder, on the host and here.
	Dir string
	Log *slog.Logger
}

// NewGrant makes a random ID.
func NewGrant() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // It never fails (crypto/rand).
	return hex.EncodeToString(id[:])
}

// Make makes the folder of a grant and says where it is on the host and where it goes in the container.
func (g *Grants) Make(id string) (host, container string) {
	host = filepath.Join(g.Dir, id)
	if err := os.MkdirAll(host, 0o755); err != nil {
		g.Log.Debug("Could not make the folder of a grant; the container runtime will", "error", err)
	}
	return host, grantsInContainer + "/" + id
}

// Clean removes the folders of grants that neither the ledger nor the checkpoint has. A container that still runs
// keeps its mount.
func (g *Grants) Clean(holdings []ledger.Holding, assignments []ledger.Assignment, now time.Time) {
	known := map[string]bool{}
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
