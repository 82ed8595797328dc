package mig

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// devicesKey formats devices in a unique way; profiles with a count of 0 are left out.
func devicesKey(devices map[string]int) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(devices)) {
		if devices[name] != 0 {
			fmt.Fprintf(&text, "%s:%d ", name, devices[name])
		}
	}
	return text.String()
}

// chooser draws numbers below n.
type chooser func(n int) int

// furnish fills a GPU with a random layout and random holders, and sometimes with instances that are in no layout.
func furnish(g *GPU, choose chooser) {
	g.Enabled = choose(8) != 0
	if choose(6) == 0 {
		g.Holders = []string{fmt.Sprintf("whole-%d", choose(2))}
	}
	if !g.Enabled {
		return
	}
	c := checkerOf(*g)
	for range choose(10) {
		p := g.Geometry.Profiles[choose(len(g.Geometry.Profiles))]
		if len(p.Starts) > 0 {
			_ = c.create(p.Name, p.Starts[choose(len(p.Starts))]) // what does not fit is left out
		}
	}
	density := choose(4)
	for i := range c.instances {
		one := &c.instances[i]
		one.GI = 20 + i // not the order of starts
		switch choose(12) {
		case 0:
			one.UUID = ""
			continue
		case 1:
			one.Siblings = []gpu.UUID{one.UUID + ".1"}
		case 2:
			one.Profile = "1c." + one.Profile
		}
		for range choose(3) {
			if holder := fmt.Sprintf("ns/pod-%d", choose(6)); choose(3) < density && !slices.Contains(one.Holders, holder) {
				one.Holders = append(one.Holders, holder)
			}
		}
	}
	g.Instances = c.instances
}

// drawWanted draws a layout: often one that contains many of the existing instances, mostly one that fits, sometimes an
// arbitrary one.
func drawWanted(g *GPU, choose chooser) Wanted {
	wanted := Wanted{Enabled: choose(10) != 0, Devices: map[string]int{}}
	if !wanted.Enabled {
		return wanted
	}
	anything := func() string { return g.Geometry.Profiles[choose(len(g.Geometry.Profiles))].Name }
	if choose(5) == 0 {
		for range choose(4) {
			wanted.Devices[anything()] = choose(5)
		}
		return wanted
	}
	c := &checker{geometry: g.Geometry, enabled: true}
	add := func(name string) {
		if p := g.Geometry.Profile(name); p != nil && len(p.Starts) > 0 {
			_ = c.create(name, p.Starts[choose(len(p.Starts))]) // what does not fit is left out
		}
	}
	for range choose(3) {
		add(anything())
	}
	if choose(2) == 0 {
		for _, one := range g.Instances {
			add(one.Profile)
		}
	}
	for range choose(16) {
		add(anything())
	}
	wanted.Devices = c.devices()
	return wanted
}

// checkAgainstTwin compares a plan with an exhaustive search over all layouts.
func checkAgainstTwin(g GPU, wanted Wanted, w *twin) error {
	plan := PlanGPU(g, wanted)
	seen := g
	if !g.Enabled {
		seen.Instances = nil
	}
	want, fits := w.best(&seen, wanted.Devices)
	if fits == (plan.Refused != "") {
		return fmt.Errorf("refused %q, fits %v", plan.Refused, fits)
	}
	if !fits {
		return nil
	}
	if got := w.judge(&seen, planned(plan)); got.compare(want) != 0 {
		return fmt.Errorf("plan has %+v, the best is %+v", got, want)
	}
	inTheWay := map[string]bool{}
	for _, b := range plan.Blockers {
		if b.Instance.Profile == "" {
			continue // the holders of the whole GPU
		}
		for _, name := range b.Holders {
			inTheWay[name] = true
		}
	}
	if len(inTheWay) != want.holders {
		return fmt.Errorf("%d holders of devices are in the way, the fewest are %d", len(inTheWay), want.holders)
	}
	return nil
}

// soak is the factor by which the random tests are extended.
func soak() int {
	if os.Getenv("BERTH_SOAK") != "" {
		return 10
	}
	return 1
}

// TestOddGPUsAgainstTwin compares plans for GPUs that do not exist with an exhaustive search.
func TestOddGPUsAgainstTwin(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 20))
	outcomes := map[string]int{}
	for round := range 10000 * soak() {
		g := GPU{UUID: "GPU-odd", Capable: true, Geometry: oddGeometry(random.IntN)}
		furnish(&g, random.IntN)
		wanted := drawWanted(&g, random.IntN)
		outcome, err := checkAll(g, wanted, newTwin(g.Geometry))
		if err != nil {
			t.Fatalf("round %d: %v\n%s", round, err, Describe([]GPUPlan{PlanGPU(g, wanted)}, []GPU{g}))
		}
		outcomes[outcome]++
	}
	t.Logf("[walks] %d changes", 10000*soak())
	checkOutcomes(t, outcomes)
}

// checkOutcomes fails when the random GPUs and layouts no longer lead to all outcomes.
func checkOutcomes(t *testing.T, outcomes map[string]int) {
	t.Helper()
	for _, outcome := range []string{"refused", "waits", "changed", "nothing to do"} {
		if outcomes[outcome] < 10 {
			t.Errorf("only %d were %s: the test has grown blind", outcomes[outcome], outcome)
		}
	}
}

// checkAll applies all checks to a plan.
func checkAll(g GPU, wanted Wanted, w *twin) (outcome string, err error) {
	if err := checkAgainstTwin(g, wanted, w); err != nil {
		return "", err
	}
	return checkChange(g, wanted)
}

// TestRandomLayouts takes every kind of GPU from random layouts to random layouts with random holders, 1,000 times
// each, and compares the plans with an exhaustive search; BERTH_SOAK=1 makes it ten times as many.
func TestRandomLayouts(t *testing.T) {
	for i, k := range gpuKinds() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(uint64(i), 20))
			outcomes := map[string]int{}
			w := newTwin(k.geometry)
			for round := range 1000 * soak() {
				g := k.gpu(0)
				furnish(&g, random.IntN)
				wanted := drawWanted(&g, random.IntN)
				outcome, err := checkAll(g, wanted, w)
				if err != nil {
					t.Fatalf("round %d: %v\n%s", round, err, Describe([]GPUPlan{PlanGPU(g, wanted)}, []GPU{g}))
				}
				outcomes[outcome]++
			}
			t.Logf("[walks] %d changes", 1000*soak())
			checkOutcomes(t, outcomes)
		})
	}
}

// checkChange plans a change, executes it once no holder blocks it, and plans it again.
func checkChange(g GPU, wanted Wanted) (outcome string, err error) {
	plan := PlanGPU(g, wanted)
	if plan.Refused != "" {
		if plan.Changes() || len(plan.Keep)+len(plan.Blockers) > 0 {
			return "", fmt.Errorf("refused, and yet it does something: %+v", plan)
		}
		return "refused", nil
	}
	if err := checkBooks(g, plan); err != nil {
		return "", err
	}
	outcome = "changed"
	if !plan.Changes() {
		outcome = "nothing to do"
	}
	if len(plan.Blockers) > 0 {
		outcome = "waits"
		foretold := plan
		g = withoutBlockers(g, plan)
		plan = PlanGPU(g, wanted)
		if len(plan.Blockers) > 0 || len(plan.Destroy) != len(foretold.Destroy) {
			return "", fmt.Errorf("after those in the way had ended: %d more are, and %d instead of %d instances are destroyed",
				len(plan.Blockers), len(plan.Destroy), len(foretold.Destroy))
		}
	}
	c := checkerOf(g)
	if err := c.carryOut(plan); err != nil {
		return "", err
	}
	want := devicesKey(wanted.Devices)
	if len(wanted.Placed) > 0 {
		want = devicesKey(countPlaced(wanted.Placed))
	}
	if c.enabled != wanted.Enabled || devicesKey(c.devices()) != want || len(c.instances) != len(planned(plan)) {
		return "", fmt.Errorf("it became MIG %v with %v", c.enabled, c.devices())
	}
	after := g
	after.Enabled, after.Instances = c.enabled, c.instances
	if again := PlanGPU(after, wanted); again.Changes() || again.Refused != "" || len(again.Blockers) > 0 || !Matches(after, wanted) {
		return "", fmt.Errorf("planned again from the result: %+v", again)
	}
	return outcome, nil
}

// checkBooks checks which holders lose a device.
func checkBooks(g GPU, plan GPUPlan) error {
	if g.Enabled && len(plan.Keep)+len(plan.Destroy) != len(g.Instances) {
		return fmt.Errorf("%d kept and %d destroyed of %d", len(plan.Keep), len(plan.Destroy), len(g.Instances))
	}
	for _, one := range plan.Destroy {
		named := slices.ContainsFunc(plan.Blockers, func(b Blocker) bool {
			return b.Instance.GI == one.GI && slices.Equal(b.Holders, one.Holders)
		})
		if len(one.Holders) > 0 && !named {
			return fmt.Errorf("%s is held and destroyed, and no holder blocks the plan", one.Profile)
		}
		if one.UUID != "" && len(g.Holders) > 0 && len(plan.Blockers) == 0 {
			return fmt.Errorf("%s is destroyed although the GPU is held", one.Profile)
		}
	}
	if plan.SetMode != nil && len(g.Holders) > 0 && len(plan.Blockers) == 0 {
		return fmt.Errorf("the mode changes although the GPU is held")
	}
	order := func(a, b int) int { return a - b }
	starts := make([][]int, 3)
	for _, one := range plan.Keep {
		starts[0] = append(starts[0], one.Start)
	}
	for _, one := range plan.Destroy {
		starts[1] = append(starts[1], one.Start)
	}
	for _, one := range plan.Create {
		starts[2] = append(starts[2], one.Start)
	}
	for _, list := range starts {
		if !slices.IsSortedFunc(list, order) {
			return fmt.Errorf("not in the order of starts: %v", list)
		}
	}
	return nil
}

func withoutBlockers(g GPU, plan GPUPlan) GPU {
	endHolders(&g, func(name string) bool {
		return slices.ContainsFunc(plan.Blockers, func(b Blocker) bool { return slices.Contains(b.Holders, name) })
	})
	return g
}

// TestSameInputSamePlan gives the instances and their holders in another order.
func TestSameInputSamePlan(t *testing.T) {
	k := kindOf(t, "a100-40")
	rapid.Check(t, func(t *rapid.T) {
		choose := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "choice") }
		g := k.gpu(0)
		furnish(&g, choose)
		wanted := drawWanted(&g, choose)
		other := g
		other.Instances = rapid.Permutation(g.Instances).Draw(t, "order")
		other.Geometry.Profiles = rapid.Permutation(g.Geometry.Profiles).Draw(t, "profiles")
		got, want := Describe([]GPUPlan{PlanGPU(other, wanted)}, []GPU{other}), Describe([]GPUPlan{PlanGPU(g, wanted)}, []GPU{g})
		if got != want {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
	})
}
