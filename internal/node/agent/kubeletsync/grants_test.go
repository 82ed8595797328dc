package kubeletsync

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/internal/node/ledger"
)

// TestGrantsAreMadeInAdvance checks that a grant is never taken twice and has a folder, and that Clean removes neither
// those that no container has yet nor one that was just taken, however old its folder is.
func TestGrantsAreMadeInAdvance(t *testing.T) {
	now := clocktesting.NewFakeClock(time.Now())
	grants := NewGrants(GrantsDeps{StateDir: t.TempDir(), Clock: now, Log: slog.New(slog.DiscardHandler)})
	folders := func() map[string]bool { return foldersOf(t, grants) }
	grants.fill()
	grants.fill()
	if n := len(folders()); n != inAdvance {
		t.Fatalf("%d folders were made in advance, want %d", n, inAdvance)
	}
	taken := map[string]bool{}
	for range inAdvance {
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

	now.Step(2 * keepGrantFor) // the folders are old
	grants.fill()
	last := grants.Take()
	grants.Clean(nil, nil, now.Now())
	if left := folders(); len(left) != inAdvance || !left[last] {
		t.Errorf("%d folders are left, that of the grant just taken: %v; want %d and true", len(left), left[last], inAdvance)
	}
	now.Step(2 * keepGrantFor)
	grants.Clean([]ledger.Holding{{Grants: []string{last}}}, nil, now.Now())
	if left := folders(); !left[last] {
		t.Error("the folder of a grant of the ledger was removed")
	}
	grants.Clean(nil, nil, now.Now())
	if left := folders(); left[last] || len(left) != inAdvance-1 {
		t.Errorf("%d folders are left, want the %d that no container has", len(left), inAdvance-1)
	}
}

// TestTakeTouchesNoFile takes 64 grants in a row, which are more than are created in advance, without a file call;
// their folders follow, and as many as must be ready. Until fewer than half are ready, no folder is created.
func TestTakeTouchesNoFile(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		grants := NewGrants(GrantsDeps{StateDir: dir, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- grants.Run(ctx) }()
		settle := func() {
			synctest.Wait()
			time.Sleep(fillAfter)
			synctest.Wait()
		}
		settle()
		for _, tc := range []struct{ taken, folders int }{
			{inAdvance - lowestInAdvance, inAdvance},
			{1, inAdvance + lowestInAdvance + 1},
			{64, inAdvance + lowestInAdvance + 1 + 64},
		} {
			before := len(foldersOf(t, grants))
			for range tc.taken {
				grants.Take() // No time passes, so Run does nothing in the meantime.
			}
			if after := len(foldersOf(t, grants)); after != before {
				t.Errorf("%d grants were taken and %d folders were made before the last", tc.taken, after-before)
			}
			settle()
			if got := len(foldersOf(t, grants)); got != tc.folders {
				t.Errorf("after %d grants were taken there are %d folders, want %d", tc.taken, got, tc.folders)
			}
		}
		grants.mu.Lock()
		for id := range grants.taken {
			if !foldersOf(t, grants)[id] {
				t.Errorf("grant %s has no folder", id)
			}
		}
		grants.mu.Unlock()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// foldersOf returns the names of the folders that exist.
func foldersOf(t *testing.T, grants *Grants) map[string]bool {
	t.Helper()
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

// TestCleanGrants checks that the folder of a grant is removed when neither the ledger nor the checkpoint has it, and
// not before its minimum age.
func TestCleanGrants(t *testing.T) {
	grants := NewGrants(GrantsDeps{StateDir: t.TempDir(), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)})
	held, listed, free, young := newID(), newID(), newID(), newID()
	now := time.Now()
	for _, id := range []string{held, listed, free, young} {
		grants.make(id)
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

// TestGrantsGone: of 10,000 grants nothing is kept once they are in the ledger, or are not used.
func TestGrantsGone(t *testing.T) {
	grants := NewGrants(GrantsDeps{StateDir: t.TempDir(), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)})
	for i := range 10_000 {
		if id := grants.Take(); i%2 == 0 {
			grants.Return(id)
			grants.Take()
		}
	}
	grants.Clean(nil, nil, time.Now().Add(keepGrantFor))
	if len(grants.taken) > 0 || len(grants.ready) > 0 {
		t.Errorf("%d taken and %d ready ones are kept", len(grants.taken), len(grants.ready))
	}
}
