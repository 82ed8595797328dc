package mig

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// starts lists the starts of each profile, in their order.
func startsOf(placements []Placed) map[string]string {
	starts := map[string]string{}
	for _, p := range placements {
		starts[p.Profile] = strings.TrimSpace(fmt.Sprintf("%s %d", starts[p.Profile], p.Start))
	}
	return starts
}

func TestPlacements(t *testing.T) {
	for name, want := range map[string]map[string]string{
		"h100": {
			"7g.80gb": "0", "4g.40gb": "0", "3g.40gb": "4 0", "2g.20gb": "4 2 0", "1g.20gb": "6 4 2 0",
			"1g.10gb": "6 5 4 3 2 1 0", "1g.10gb+me": "6 5 4 3 2 1 0",
		},
		"a30": {"4g.24gb": "0", "2g.12gb": "2 0", "2g.12gb+me": "2 0", "1g.6gb": "3 2 1 0", "1g.6gb+me": "3 2 1 0"},
	} {
		t.Run(name, func(t *testing.T) {
			geometry := kindOf(t, name).geometry
			if diff := cmp.Diff(want, startsOf(Placements(&geometry))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestPlacementsAreComplete compares the list with the geometry: every placement once, the largest profile first.
func TestPlacementsAreComplete(t *testing.T) {
	check := func(t interface{ Fatalf(string, ...any) }, geometry gpu.MIGGeometry) {
		got := Placements(&geometry)
		var want []Placed
		for _, p := range geometry.Profiles {
			for _, start := range p.Starts {
				want = append(want, Placed{Profile: p.Name, Start: start, Size: p.Size})
			}
		}
		for _, one := range want {
			if n := len(slices.DeleteFunc(slices.Clone(got), func(p Placed) bool { return p != one })); n != 1 {
				t.Fatalf("%+v is listed %d times, want once", one, n)
			}
		}
		if len(got) != len(want) {
			t.Fatalf("%d placements, want %d", len(got), len(want))
		}
		if !slices.IsSortedFunc(got, func(a, b Placed) int { return b.Size - a.Size }) {
			t.Fatalf("not the largest first: %v", got)
		}
	}
	for _, kind := range gpuKinds() {
		check(t, kind.geometry)
	}
	rapid.Check(t, func(t *rapid.T) {
		check(t, oddGeometry(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "choice") }))
	})
}

// TestPlacementsLeaveTheMost compares each step of the order with the twin: of the places that are free beside those before it,
// none leaves more capacity.
func TestPlacementsLeaveTheMost(t *testing.T) {
	for _, kind := range gpuKinds() {
		t.Run(kind.name, func(t *testing.T) {
			w := newTwin(kind.geometry)
			for _, p := range kind.geometry.Profiles {
				var set []Placed
				for _, one := range Placements(&kind.geometry) {
					if one.Profile != p.Name || !w.canAdd(set, one) {
						continue
					}
					chosen := w.remaining(append(slices.Clone(set), one))
					for _, start := range p.Starts {
						other := Placed{Profile: p.Name, Start: start, Size: p.Size}
						if !w.canAdd(set, other) {
							continue
						}
						if slices.Compare(w.remaining(append(slices.Clone(set), other)), chosen) < 0 {
							t.Errorf("%s beside %v: %d leaves more than %d", p.Name, set, start, one.Start)
						}
					}
					set = append(set, one)
				}
				if len(set) != p.Max {
					t.Errorf("first fit places %d of %s, want %d", len(set), p.Name, p.Max)
				}
			}
		})
	}
}
