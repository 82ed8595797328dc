package mig

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// within reports whether the placements do not overlap and are within each limit.
func within(geometry *gpu.MIGGeometry, set []Placed) bool {
	for i, one := range set {
		for _, other := range set[:i] {
			if one.Start < other.Start+other.Size && other.Start < one.Start+one.Size {
				return false
			}
		}
	}
	for _, limit := range Limits(geometry) {
		taken := 0
		for _, one := range set {
			taken += limit.Take[one.Profile]
		}
		if taken > limit.Capacity {
			return false
		}
	}
	return true
}

// agree adds placements in an order of their own and compares the limits with the driver's answer to each.
func agree(t interface{ Fatalf(string, ...any) }, geometry gpu.MIGGeometry, every []Placed) (accepted, refused int) {
	var set []Placed
	c := checker{geometry: geometry, enabled: true}
	for _, one := range every {
		next := append(slices.Clone(set), one)
		err := c.create(one.Profile, one.Start)
		if got := within(&geometry, next); got != (err == nil) {
			t.Fatalf("%+v beside %+v: the limits permit it: %v; the driver: %v\n%+v", one, set, got, err, Limits(&geometry))
		}
		if err == nil {
			set = next
			accepted++
		} else {
			refused++
		}
	}
	return accepted, refused
}

// TestLimitsAreTheDriversRules compares them on every kind of GPU, and on GPUs that do not exist.
func TestLimitsAreTheDriversRules(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, kind := range gpuKinds() {
		t.Run(kind.name, func(t *testing.T) {
			accepted, refused := 0, 0
			every := Placements(&kind.geometry)
			for range 300 {
				random.Shuffle(len(every), func(i, j int) { every[i], every[j] = every[j], every[i] })
				a, r := agree(t, kind.geometry, every)
				accepted, refused = accepted+a, refused+r
			}
			if accepted < 300 || refused < 300 {
				t.Errorf("%d accepted and %d refused: the comparison proves little", accepted, refused)
			}
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		geometry := oddGeometry(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "choice") })
		agree(t, geometry, rapid.Permutation(Placements(&geometry)).Draw(t, "order"))
	})
}

// TestLimitsAreFew lists them by kind: each counter of a GPU costs the scheduler time.
func TestLimitsAreFew(t *testing.T) {
	for name, want := range map[string][]string{
		"h100":         {limitCompute, limitFullMedia},
		"a30":          {limitCompute, limitFullMedia},
		"rtx-pro-6000": {limitCompute, limitFullMedia, limitMedia},
	} {
		geometry := kindOf(t, name).geometry
		var got []string
		for _, limit := range Limits(&geometry) {
			got = append(got, limit.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	odd := gpu.MIGGeometry{MemorySlices: 4, ComputeSlices: 4, Profiles: []gpu.MIGProfile{{Name: "1g.1gb-me", Size: 1, ComputeSlices: 1, Starts: upTo(4), Max: 2}}}
	if got := Limits(&odd); len(got) != 2 || got[1].Name != limitInstances || got[1].Profile != "1g.1gb-me" || got[1].Capacity != 2 {
		t.Errorf("a profile with fewer instances than places: %+v", got)
	}
}
