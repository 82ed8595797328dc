package nodeop_test

import (
	"math/rand"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/nodeop"
)

func op(name string, second int64) nodeop.Operation {
	return nodeop.Operation{Name: name, Created: time.Unix(second, 0)}
}

func TestActive(t *testing.T) {
	tests := map[string]struct {
		all  []nodeop.Operation
		want string
	}{
		"none":                   {nil, ""},
		"one":                    {[]nodeop.Operation{op("a", 1)}, "a"},
		"the oldest":             {[]nodeop.Operation{op("a", 2), op("b", 1), op("c", 3)}, "b"},
		"of one second, by name": {[]nodeop.Operation{op("c", 1), op("b", 1), op("a", 2)}, "b"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got, ok := nodeop.Active(tc.all); got.Name != tc.want || ok != (tc.want != "") {
				t.Errorf("Active = %q, %v; want %q", got.Name, ok, tc.want)
			}
			for _, o := range tc.all {
				got, waits := nodeop.WaitsFor(o.Name, tc.all)
				if want := map[bool]string{true: tc.want}[o.Name != tc.want]; got != want || waits != (want != "") {
					t.Errorf("WaitsFor(%s) = %q, %v; want %q", o.Name, got, waits, want)
				}
			}
		})
	}
	// One that the list does not have yet waits for the one that it has.
	if got, waits := nodeop.WaitsFor("new", []nodeop.Operation{op("a", 1)}); got != "a" || !waits {
		t.Errorf("a new operation waits for %q, %v; want a", got, waits)
	}
}

func TestPause(t *testing.T) {
	for attempt, want := range map[int]time.Duration{-1: 10 * time.Second, 0: 10 * time.Second, 1: 10 * time.Second, 2: 20 * time.Second, 3: 40 * time.Second,
		4: 80 * time.Second, 5: 160 * time.Second, 6: 5 * time.Minute, 7: 5 * time.Minute, 1 << 40: 5 * time.Minute} {
		if got := nodeop.Pause(attempt); got != want {
			t.Errorf("Pause(%d) = %v, want %v", attempt, got, want)
		}
	}
}

// TestActiveProperties: one operation is active, whatever the order of the list; it stays while younger ones come; when it goes, the one
// that follows is the active one of the rest. A simple twin compares each with each.
func TestActiveProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching("[a-c]{1,3}"), 1, 8, rapid.ID[string]).Draw(t, "names")
		var all []nodeop.Operation
		for _, name := range names {
			all = append(all, op(name, rapid.Int64Range(0, 3).Draw(t, "second")))
		}
		active, _ := nodeop.Active(all)
		for _, o := range all {
			if o.Created.Before(active.Created) || o.Created.Equal(active.Created) && o.Name < active.Name {
				t.Fatalf("%v is active, and %v is before it", active, o)
			}
		}
		shuffled := append([]nodeop.Operation(nil), all...)
		rand.New(rand.NewSource(rapid.Int64().Draw(t, "seed"))).Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if again, _ := nodeop.Active(shuffled); again != active {
			t.Fatalf("in another order %v is active, not %v", again, active)
		}
		if later, _ := nodeop.Active(append(shuffled, op("0", 4))); later != active {
			t.Fatalf("with a younger operation %v is active, not %v", later, active)
		}
		acting := 0
		for _, o := range all {
			if _, waits := nodeop.WaitsFor(o.Name, all); !waits {
				acting++
			}
		}
		if acting != 1 {
			t.Fatalf("%d operations of %v act", acting, all)
		}
	})
}

// TestPauseProperties: a pause is never shorter than the one before, and in its bounds.
func TestPauseProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		attempt := rapid.IntRange(-5, 200).Draw(t, "attempt")
		a, b := nodeop.Pause(attempt), nodeop.Pause(attempt+1)
		if a > b || a < nodeop.FirstPause || b > nodeop.LastPause {
			t.Fatalf("attempts %d and %d: %v, %v", attempt, attempt+1, a, b)
		}
	})
}
