package mig

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// drawPlaced draws exact placements: often with existing instances, mostly a set that fits, sometimes an arbitrary one.
func drawPlaced(g *GPU, choose chooser) Wanted {
	wanted := Wanted{Enabled: choose(10) != 0}
	c := &checker{geometry: g.Geometry, enabled: true}
	arbitrary := choose(5) == 0
	add := func(profile string, start, size int) {
		if arbitrary || c.create(profile, start) == nil {
			wanted.Placed = append(wanted.Placed, Placed{Profile: profile, Start: start, Size: size})
		}
	}
	if choose(2) == 0 {
		for _, one := range g.Instances {
			if p := g.Geometry.Profile(one.Profile); p != nil && choose(4) != 0 {
				add(one.Profile, one.Start, p.Size)
			}
		}
	}
	for range choose(6) {
		p := g.Geometry.Profiles[choose(len(g.Geometry.Profiles))]
		switch {
		case len(p.Starts) == 0:
		case arbitrary && choose(3) == 0:
			add(p.Name, choose(9), p.Size)
		default:
			add(p.Name, p.Starts[choose(len(p.Starts))], p.Size)
		}
	}
	if !wanted.Enabled && choose(3) != 0 {
		wanted.Placed = nil
	}
	return wanted
}

// exactTwin plans exact placements in the simplest way: it removes from the instances those that are not wanted, and tries to
// create the others one by one. It shares no code with the package beyond the types.
type exactTwin struct {
	keep    []Instance
	destroy []Instance
	create  []Placed
	fits    bool
}

func newExactTwin(g GPU, wanted Wanted) exactTwin {
	var w exactTwin
	empty := checker{geometry: g.Geometry, enabled: true}
	w.fits = wanted.Enabled || len(wanted.Placed) == 0
	for _, one := range wanted.Placed {
		p := g.Geometry.Profile(one.Profile)
		w.fits = w.fits && p != nil && p.Size == one.Size && empty.create(one.Profile, one.Start) == nil
	}
	w.create = slices.Clone(wanted.Placed)
	if !g.Enabled {
		return w
	}
	for _, one := range g.Instances {
		same := slices.Index(w.create, Placed{Profile: one.Profile, Start: one.Start, Size: one.Size})
		if same < 0 || one.UUID == "" || len(one.Siblings) > 0 {
			w.destroy = append(w.destroy, one)
			continue
		}
		w.keep = append(w.keep, one)
		w.create = slices.Delete(w.create, same, same+1)
	}
	return w
}

// checkExact compares a plan for exact placements with the twin, and carries it out.
func checkExact(g GPU, wanted Wanted) (outcome string, err error) {
	plan, want := PlanGPU(g, wanted), newExactTwin(g, wanted)
	if want.fits == (plan.Refused != "") {
		return "", fmt.Errorf("refused %q, fits %v", plan.Refused, want.fits)
	}
	if !want.fits {
		return checkChange(g, wanted)
	}
	instances := cmpopts.SortSlices(func(a, b Instance) bool { return a.GI < b.GI })
	creations := cmpopts.SortSlices(func(a, b Placed) bool { return a.Start < b.Start })
	if diff := cmp.Diff(want.keep, plan.Keep, instances, cmpopts.EquateEmpty()); diff != "" {
		return "", fmt.Errorf("kept (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want.destroy, plan.Destroy, instances, cmpopts.EquateEmpty()); diff != "" {
		return "", fmt.Errorf("destroyed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want.create, plan.Create, creations, cmpopts.EquateEmpty()); diff != "" {
		return "", fmt.Errorf("created (-want +got):\n%s", diff)
	}
	return checkChange(g, wanted)
}

// TestExactPlacements takes every kind of GPU, and GPUs that do not exist, to exact placements, 1,000 times each.
func TestExactPlacements(t *testing.T) {
	check := func(t *testing.T, random *rand.Rand, draw func() GPU) {
		outcomes := map[string]int{}
		for round := range 1000 * soak() {
			g := draw()
			furnish(&g, random.IntN)
			wanted := drawPlaced(&g, random.IntN)
			outcome, err := checkExact(g, wanted)
			if err != nil {
				t.Fatalf("round %d: %v\nwanted %v\n%s", round, err, wanted, Describe([]GPUPlan{PlanGPU(g, wanted)}, []GPU{g}))
			}
			outcomes[outcome]++
		}
		checkOutcomes(t, outcomes)
	}
	for i, k := range gpuKinds() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			check(t, rand.New(rand.NewPCG(uint64(i), 21)), func() GPU { return k.gpu(0) })
		})
	}
	t.Run("odd", func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 21))
		check(t, random, func() GPU { return GPU{UUID: "GPU-odd", Capable: true, Geometry: oddGeometry(random.IntN)} })
	})
}

// TestExactRefused checks the sentences.
func TestExactRefused(t *testing.T) {
	at := func(profile string, start, size int) Placed {
		return Placed{Profile: profile, Start: start, Size: size}
	}
	tests := map[string]struct {
		wanted Wanted
		want   string
	}{
		"MIG off": {
			Wanted{Placed: []Placed{at("1g.5gb", 0, 1)}},
			"1g.5gb at 0 with MIG off: leave the devices out, or turn MIG on",
		},
		"both forms": {
			Wanted{Enabled: true, Devices: map[string]int{"1g.5gb": 1}, Placed: []Placed{at("1g.5gb", 0, 1)}},
			"devices are wanted both by number and by placement; use one of the two",
		},
		"not a placement": {
			Wanted{Enabled: true, Placed: []Placed{at("3g.20gb", 2, 4)}},
			"3g.20gb at 2, of 4 memory slices: 3g.20gb takes 4 slices from 0, 4; use one of these placements",
		},
		"another size": {
			Wanted{Enabled: true, Placed: []Placed{at("3g.20gb", 4, 3)}},
			"3g.20gb at 4, of 3 memory slices: 3g.20gb takes 4 slices from 0, 4; use one of these placements",
		},
		"overlap": {
			Wanted{Enabled: true, Placed: []Placed{at("3g.20gb", 4, 4), at("1g.5gb", 0, 1), at("2g.10gb", 4, 2)}},
			"2g.10gb at 4 shares memory slices with another wanted device (3g.20gb at 4 and 1g.5gb at 0); leave one of them out",
		},
		"the same twice": {
			Wanted{Enabled: true, Placed: []Placed{at("1g.5gb", 1, 1), at("1g.5gb", 1, 1)}},
			"1g.5gb at 1 shares memory slices with another wanted device (1g.5gb at 1); leave one of them out",
		},
		"too many compute slices": {
			Wanted{Enabled: true, Placed: []Placed{at("4g.20gb", 0, 4), at("4g.20gb", 4, 4)}},
			"4g.20gb at 4, of 4 memory slices: 4g.20gb takes 4 slices from 0; use one of these placements",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			k := kindOf(t, "a100-40")
			g := k.gpu(0)
			if got := PlanGPU(g, test.wanted); got.Refused != test.want || got.Changes() {
				t.Errorf("got %q, want %q", got.Refused, test.want)
			}
		})
	}
}

// TestExactBeforeTheProfilesAreKnown plans the mode alone where the driver lists profiles only while MIG is on.
func TestExactBeforeTheProfilesAreKnown(t *testing.T) {
	wanted := Wanted{Enabled: true, Placed: []Placed{{Profile: "1g.5gb", Start: 0, Size: 1}}}
	plan := PlanGPU(GPU{UUID: "GPU-0", Capable: true}, wanted)
	if !plan.Unplanned || plan.SetMode == nil || !*plan.SetMode || len(plan.Create) > 0 || plan.Refused != "" {
		t.Errorf("got %+v", plan)
	}
}
