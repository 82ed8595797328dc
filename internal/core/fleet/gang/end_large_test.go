package gang

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// largeCase returns a question with more holders than all sets of which can be tried.
func largeCase(t *testing.T, random *rand.Rand) (*Planner, *Topology, *Gang, *Holders) {
	list := nodes(6 + random.IntN(8))
	count := 20 + random.IntN(60)
	h := randomHolders(random, list, count)
	f, err := fleet.New(list, 0)
	if err != nil {
		t.Fatal(err)
	}
	// Nodes are the same but for the order: what holders have is on the node with the same index.
	for i := range list {
		list[i].Name = f.Node(i).Name
	}
	planner, topology := newPlanner(t, list, 1+random.IntN(4))
	g := alike(1+random.IntN(len(list)), 1+random.Int32N(8))
	if random.IntN(3) == 0 {
		g.Classes = append(g.Classes, Class{Requests: []fleet.Shape{ofGPUs(1 + random.Int32N(4))}})
		for i := range g.Members {
			g.Members[i].Class = random.IntN(2)
		}
	}
	g.Required = []int{Anywhere, Anywhere, 0, 1}[random.IntN(4)]
	g.Min = 1 + random.IntN(len(g.Members))
	switch random.IntN(6) {
	case 0:
		g.Segment = Segment{1 + random.IntN(2), 1}
	case 1:
		// Each member is a class of its own, which makes too many combinations.
		g.Members = g.Members[:0]
		for i := range 14 {
			g.Classes = append(g.Classes, Class{Requests: []fleet.Shape{{CPU: int64(i), Resource: gpu, GPUs: 1 + random.Int32N(2)}}})
			g.Members = append(g.Members, Member{Class: len(g.Classes) - 1, Node: Unbound})
		}
		g.Min = len(g.Members)
	}
	return planner, topology, g, h
}

// TestEndLarge: no holder of an answer can be left out, and the plan is one on the fleet without them, also where the answer is not exact.
func TestEndLarge(t *testing.T) {
	seed := uint64(3)
	random := rand.New(rand.NewPCG(seed, 0))
	counts := map[string]int{}
	for number := range 300 {
		planner, topology, g, h := largeCase(t, random)
		if number%4 == 0 {
			// As gangs: each holder has something on all nodes of its own.
			for i := range h.List {
				h.List[i].Priority = 0
			}
		}
		before := contents(planner.fleet)
		got, err := planner.End(topology, g, h)
		if err != nil {
			t.Fatal(err)
		}
		if contents(planner.fleet) != before {
			t.Fatalf("case %d of seed %d: the fleet has changed", number, seed)
		}
		all := slices.Repeat([]bool{true}, len(h.List))
		check, err := newCheck(planner, topology, g, h)
		if err != nil {
			t.Fatal(err)
		}
		if got == nil {
			counts["none"]++
			if !check.fits(check.noHolders) && check.fits(all) {
				t.Fatalf("case %d of seed %d: no answer, and there is one", number, seed)
			}
			continue
		}
		counts[fmt.Sprintf("exact %v, slow %v", got.Exact, check.ending.slow)]++
		set := make([]bool, len(h.List))
		for _, i := range got.Holders {
			set[i] = true
		}
		w := check.ending.worth(set)
		if !check.fits(set) || check.fits(check.noHolders) || got.Plan.Placed < g.Min || w.violations != got.Violations || w.priority != got.Priority || w.pods != got.Pods {
			t.Fatalf("case %d of seed %d: %+v, %+v", number, seed, got, w)
		}
		for _, i := range got.Holders {
			fewer := slices.Clone(set)
			fewer[i] = false
			if slices.Equal(check.ending.set(positions(fewer)), fewer) && check.fits(fewer) {
				t.Fatalf("case %d of seed %d: holder %d of %v need not end", number, seed, i, got)
			}
		}
	}
	t.Logf("seed %d: %v", seed, counts)
	for _, name := range []string{"none", "exact true, slow false", "exact false, slow false", "exact false, slow true"} {
		if counts[name] < 5 {
			t.Errorf("%d cases of %s; want at least 5", counts[name], name)
		}
	}
}

// check asks the planner whether a gang fits without holders.
type check struct {
	*run
	ending    *ending
	noHolders []bool
}

func newCheck(p *Planner, t *Topology, g *Gang, h *Holders) (*check, error) {
	e, err := p.newEnding(t, g, h)
	if err != nil {
		return nil, err
	}
	return &check{p.newRun(t, g), e, e.noHolders}, nil
}

func (c *check) fits(set []bool) bool {
	mark := c.fleet.Checkpoint()
	defer c.fleet.Rollback(mark)
	if err := c.ending.show(set); err != nil {
		panic(err)
	}
	defer func() {
		for _, s := range c.ending.sites {
			if s != nil {
				clear(s.shown)
			}
		}
	}()
	return c.fitsOn(c.gang.Required)
}

// BenchmarkEnd prints what an answer takes where all nodes are full, with one holder per GPU.
func BenchmarkEnd(b *testing.B) {
	for _, bench := range []struct {
		nodes      int
		members    int
		gpus       int32
		priorities int
		budgets    int
		gangs      int
		kind       string
	}{
		{500, 8, 8, 4, 0, 0, ""}, {500, 8, 8, 4000, 0, 0, ""}, {500, 64, 1, 4, 0, 0, ""}, {500, 64, 1, 4000, 0, 0, ""}, {500, 125, 8, 4000, 0, 0, ""},
		{500, 8, 8, 4, 20, 0, ""}, {500, 8, 8, 4, 0, 40, ""}, {500, 8, 8, 4, 0, 0, "segments"}, {500, 8, 8, 4, 0, 0, "rack"}, {500, 32, 4, 4, 0, 0, "two classes"},
		{500, 8, 8, 4, 0, 0, "each different"}, {500, 64, 1, 1, 0, 0, "each different"},
		{500, 64, 1, 1, 0, 0, ""}, {500, 64, 4, 1, 0, 0, "two classes"},
		{5000, 8, 8, 4, 0, 0, ""}, {5000, 8, 8, 40_000, 0, 0, ""}, {5000, 64, 4, 40_000, 0, 0, ""}, {5000, 500, 8, 40_000, 0, 0, ""},
	} {
		name := fmt.Sprintf("nodes=%d/members=%d/gpus=%d/priorities=%d/budgets=%d/gangs=%d/%s", bench.nodes, bench.members, bench.gpus, bench.priorities, bench.budgets, bench.gangs, bench.kind)
		b.Run(name, func(b *testing.B) {
			random := rand.New(rand.NewPCG(1, 0))
			list, h := full(bench.nodes)
			if bench.kind == "each different" {
				for i := range list {
					list[i].FreeCPU, list[i].FreeMemory = random.Int64N(64_000), random.Int64N(1<<20)
				}
			}
			planner, topology := newPlanner(b, list, 10)
			inOrder(planner.fleet, h)
			for i := range h.List {
				h.List[i].Priority = random.Int32N(int32(bench.priorities))
				h.List[i].Parts = []Part{{h.Held[i].Node, 4000 + random.Int64N(4), 16 << 10}}
				if bench.budgets > 0 {
					h.List[i].Budgets = [][]int{{random.IntN(bench.budgets)}}
				}
			}
			h.Budgets = make([]int32, bench.budgets)
			for i := range h.Budgets {
				h.Budgets[i] = int32(i % 3)
			}
			for g := range bench.gangs {
				// A gang has four nodes.
				main := g * 32
				h.List[main].Pods, h.List[main].Parts = 32, nil
				for i := main; i < main+32; i++ {
					h.Held[i].Holders = []int{main}
				}
			}
			slices.SortStableFunc(h.Held, func(a, b Held) int { return cmp.Compare(a.Node, b.Node) })
			g := alike(bench.members, bench.gpus)
			switch bench.kind {
			case "segments":
				g.Segment = Segment{4, 1}
			case "rack":
				g.Required = 1
			case "two classes":
				g.Classes = append(g.Classes, Class{Requests: []fleet.Shape{{CPU: 8000, Memory: 1 << 10}}})
				g.Members[0].Class = 1
			}
			var got *Ended
			for b.Loop() {
				var err error
				if got, err = planner.End(topology, g, h); err != nil || got == nil {
					b.Fatal(got, err)
				}
			}
			exact := 0.0
			if got.Exact {
				exact = 1
			}
			b.ReportMetric(float64(got.Pods), "pods")
			b.ReportMetric(float64(got.Violations), "violations")
			b.ReportMetric(exact, "exact")
		})
	}
}
