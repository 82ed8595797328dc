package grants

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/internal/node/ledger"
)

// TestGrantsAreMadeInAdvance: a grant that is taken has a folder and is never taken twice, and Clean removes neither those that
// no container has yet nor one that was just taken, however old its folder is.
func TestGrantsAreMadeInAdvance(t *testing.T) {
	now := clocktesting.NewFakePassiveClock(time.Now())
	grants := New(Deps{StateDir: t.TempDir(), Clock: now, Log: slog.New(slog.DiscardHandler)})
	folders := func() map[string]bool {
		entries, err := os.ReadDir(grants.Dir())
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
	if n := len(folders()); n != inAdvance {
		t.Fatalf("%d folders were made in advance, want %d", n, inAdvance)
	}
	taken := map[string]bool{}
	for range inAdvance + 1 {
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

	now.SetTime(now.Now().Add(2 * keepFor)) // the folders are old
	grants.Fill()
	last := grants.Take()
	grants.Clean(nil, nil, now.Now())
	if left := folders(); len(left) != inAdvance || !left[last] {
		t.Errorf("%d folders are left, that of the grant just taken: %v; want %d and true", len(left), left[last], inAdvance)
	}
	now.SetTime(now.Now().Add(2 * keepFor))
	grants.Clean([]ledger.Holding{{Grants: []string{last}}}, nil, now.Now())
	if left := folders(); !left[last] {
		t.Error("the folder of a grant of the ledger was removed")
	}
	grants.Clean(nil, nil, now.Now())
	if left := folders(); left[last] || len(left) != inAdvance-1 {
		t.Errorf("%d folders are left, want the %d that no container has", len(left), inAdvance-1)
	}
}

// TestCleanGrants: the folder of a grant goes when neither the ledger nor the checkpoint has it, and not while it is young.
func TestCleanGrants(t *testing.T) {
	grants := New(Deps{StateDir: t.TempDir(), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)})
	held, listed, free, young := grants.make(), grants.make(), grants.make(), grants.make()
	now := time.Now()
	for _, id := range []string{held, listed, free, young} {
		host, container := grants.Paths(id)
		if host != filepath.Join(grants.Dir(), id) || container != "/run/berth/grants/"+id {
			t.Errorf("grant %s is at %s and %s", id, host, container)
		}
		if id != young {
			if err := os.Chtimes(host, now, now.Add(-time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
	}
	grants.Clean([]ledger.Holding{{Grants: []string{held}}}, []ledger.Assignment{{Grant: listed}}, now)
	entries, err := os.ReadDir(grants.Dir())
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	want := []string{held, listed, young}
	slices.Sort(want)
	if !slices.Equal(left, want) {
		t.Errorf("left are %v, want %v", left, want)
	}
}
