package kubeletsync

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/internal/node/ledger"
)

// TestGrantsAreMadeInAdvance: a grant that is taken has a folder and is never taken twice, and Clean removes neither those that
// nobody has yet nor one that was just taken, however old its folder is.
func TestGrantsAreMadeInAdvance(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	grants := &Grants{Dir: filepath.Join(t.TempDir(), "grants"), Clock: clock, Log: slog.New(slog.DiscardHandler)}
	folders := func() map[string]bool {
		entries, err := os.ReadDir(grants.Dir)
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for _, entry := range entries {
			names[entry.Name()] = true
		}
		return names
	}
	grants.Fill()
	grants.Fill()
	if n := len(folders()); n != readyGrants {
		t.Fatalf("%d folders were made in advance, want %d", n, readyGrants)
	}
	taken := map[string]bool{}
	for range readyGrants + 1 {
		id := grants.Take()
		if host, _ := grants.Paths(id); taken[id] || !folders()[id] {
			t.Fatalf("grant %s was taken before or has no folder at %s", id, host)
		}
		taken[id] = true
	}
	for id := range taken {
		grants.Return(id)
		break
	}
	if again := grants.Take(); !taken[again] {
		t.Errorf("a grant that was given back was not taken again")
	}

	clock.SetTime(clock.Now().Add(2 * keepGrants)) // the folders are old
	grants.Fill()
	last := grants.Take()
	grants.Clean(nil, nil, clock.Now())
	if left := folders(); len(left) != readyGrants || !left[last] {
		t.Errorf("%d folders are left, that of the grant just taken: %v; want %d and true", len(left), left[last], readyGrants)
	}
	clock.SetTime(clock.Now().Add(2 * keepGrants))
	grants.Clean([]ledger.Holding{{Grants: []string{last}}}, nil, clock.Now())
	if left := folders(); !left[last] {
		t.Error("the folder of a grant of the ledger was removed")
	}
	grants.Clean(nil, nil, clock.Now())
	if left := folders(); left[last] || len(left) != readyGrants-1 {
		t.Errorf("%d folders are left, want those %d that nobody has", len(left), readyGrants-1)
	}
}
