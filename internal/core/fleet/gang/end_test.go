package gang

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// full returns nodes of 8 GPUs without a free one, and a holder for each: holder i has GPU i%8 of node i/8.
func full(count int) ([]fleet.Node, *Holders) {
	list, h := nodes(count), &Holders{}
	for n := range list {
		for k := range list[n].GPUs {
			list[n].GPUs[k].Free = 0
			h.Held = append(h.Held, Held{Node: n, Holders: []int{len(h.List)}, GPUs: fleet.GPUSet(0).With(k)})
			h.List = append(h.List, Holder{Pods: 1})
		}
	}
	return list, h
}

// inOrder makes the nodes of a question those of a fleet: node n of the list is that of the name.
func inOrder(f *fleet.Fleet, h *Holders) {
	at := func(n int) int {
		i, _ := f.Find(fmt.Sprintf("node-%02d", n))
		return i
	}
	for i := range h.Held {
		h.Held[i].Node = at(h.Held[i].Node)
	}
	for i := range h.List {
		for k := range h.List[i].Parts {
			h.List[i].Parts[k].Node = at(h.List[i].Parts[k].Node)
		}
	}
}

// TestEnd has fleets of full nodes of 8 GPUs, in racks of two.
func TestEnd(t *testing.T) {
	on := func(node int, gpus ...int) Held {
		held := Held{Node: node}
		for _, i := range gpus {
			held.GPUs = held.GPUs.With(i)
		}
		return held
	}
	half := []int{0, 1, 2, 3}
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	by := func(held Held, holders ...int) Held { held.Holders = holders; return held }
	pods := func(n int, priority int32) Holder { return Holder{Pods: n, Priority: priority} }
	kept := func(priority int32) Holder { return Holder{Pods: 1, Priority: priority, Budgets: [][]int{{0}}} }
	tests := map[string]struct {
		nodes   int
		free    []int // of node 0
		gang    *Gang
		change  func(*Gang)
		holders Holders
		want    []int
	}{
		"nothing has to end": {
			nodes: 1, free: half, gang: alike(2, 2), holders: Holders{List: []Holder{pods(1, 0)}, Held: []Held{by(on(0, 4), 0)}},
		},
		"it does not fit when all have ended": {
			nodes: 2, gang: alike(2, 8), holders: Holders{List: []Holder{pods(1, 0)}, Held: []Held{by(on(0, all...), 0)}},
		},
		"the fewest pods": {
			nodes: 3, gang: alike(2, 4), want: []int{2, 3},
			holders: Holders{
				List: []Holder{pods(3, 0), pods(2, 0), pods(1, 0), pods(1, 0)},
				Held: []Held{by(on(0, all...), 0), by(on(1, half...), 1), by(on(1, 4, 5, 6, 7), 2), by(on(2, half...), 3)},
			},
		},
		"one holder of two nodes rather than three": {
			nodes: 2, gang: alike(2, 8), want: []int{0},
			holders: Holders{
				List: []Holder{pods(2, 0), pods(1, 0), pods(1, 0), pods(1, 0)},
				Held: []Held{by(on(0, half...), 0), by(on(0, 4, 5), 0), by(on(0, 6, 7), 0), by(on(1, all...), 0)},
			},
		},
		"a lower priority rather than fewer pods": {
			nodes: 2, gang: alike(1, 8), want: []int{1, 2},
			holders: Holders{List: []Holder{pods(1, 5), pods(4, 4), pods(4, 4)}, Held: []Held{by(on(0, all...), 0), by(on(1, half...), 1), by(on(1, 4, 5, 6, 7), 2)}},
		},
		"a whole gang": {
			nodes: 3, gang: alike(2, 8), want: []int{1},
			holders: Holders{
				List: []Holder{pods(3, 0), pods(2, 0)},
				Held: []Held{by(on(0, half...), 0), by(on(0, 4, 5, 6, 7), 1), by(on(1, all...), 1), by(on(2, all...), 0)},
			},
			change: func(g *Gang) { g.Classes[0].Requests[0].GPUs = 4 },
		},
		"the surplus of a gang first": {
			nodes: 2, gang: alike(1, 4), want: []int{1},
			holders: Holders{List: []Holder{{Pods: 2, With: []int{1}}, pods(1, 0)}, Held: []Held{by(on(0, all...), 0), by(on(1, half...), 1)}},
		},
		"the surplus ends with its gang": {
			nodes: 2, gang: alike(1, 8), want: []int{0, 1},
			holders: Holders{List: []Holder{{Pods: 2, With: []int{1}}, pods(1, 0)}, Held: []Held{by(on(0, all...), 0), by(on(1, half...), 1)}},
		},
		"a budget is kept, whatever the priority": {
			nodes: 2, gang: alike(1, 8), want: []int{0},
			holders: Holders{List: []Holder{pods(5, 9), kept(1)}, Held: []Held{by(on(0, all...), 0), by(on(1, all...), 1)}, Budgets: []int32{0}},
		},
		"a budget that two nodes share": {
			nodes: 3, gang: alike(2, 8), want: []int{0, 2}, change: func(g *Gang) { g.Preferred = Anywhere },
			holders: Holders{
				List: []Holder{pods(1, 3), kept(0), kept(0)}, Held: []Held{by(on(0, all...), 0), by(on(1, all...), 1), by(on(2, all...), 2)}, Budgets: []int32{1},
			},
		},
		"a budget that has to be violated, and the other priority": {
			nodes: 2, gang: alike(1, 8), want: []int{1},
			holders: Holders{List: []Holder{kept(2), kept(1)}, Held: []Held{by(on(0, all...), 0), by(on(1, all...), 1)}, Budgets: []int32{0}},
		},
		"one rack, where more have to end": {
			nodes: 4, gang: alike(2, 8), want: []int{2, 3}, change: func(g *Gang) { g.Required = 1 },
			holders: Holders{
				List: []Holder{pods(1, 0), pods(1, 0), pods(2, 0), pods(2, 0)},
				Held: []Held{by(on(0, all...), 0), by(on(2, all...), 3), by(on(3, all...), 2)},
			},
		},
		"anywhere where no level is required": {
			nodes: 4, gang: alike(2, 8), want: []int{0, 1}, change: func(g *Gang) { g.Preferred = 1 },
			holders: Holders{
				List: []Holder{pods(1, 0), pods(1, 0), pods(2, 0)}, Held: []Held{by(on(0, all...), 0), by(on(2, all...), 1), by(on(3, all...), 2)},
			},
		},
		"one rack where it costs nothing": {
			nodes: 6, gang: alike(2, 8), want: []int{1, 2}, change: func(g *Gang) { g.Preferred = 1 },
			holders: Holders{
				List: []Holder{pods(1, 0), pods(1, 0), pods(1, 0), pods(1, 0)},
				Held: []Held{by(on(0, all...), 0), by(on(2, all...), 1), by(on(3, all...), 2), by(on(4, all...), 3)},
			},
		},
		"the later start": {
			nodes: 4, gang: alike(1, 8), want: []int{0},
			holders: Holders{List: []Holder{{Pods: 1, Started: 7}, {Pods: 1, Started: 3}}, Held: []Held{by(on(0, all...), 0), by(on(1, all...), 1)}},
			change:  func(g *Gang) { g.Required, g.Preferred = 2, 2 },
		},
		"the less important": {
			nodes: 4, gang: alike(1, 8), want: []int{1},
			holders: Holders{List: []Holder{pods(1, 0), pods(1, 0)}, Held: []Held{by(on(0, all...), 0), by(on(1, all...), 1)}},
		},
		"devices that two have": {
			nodes: 2, gang: alike(1, 4), want: []int{0, 2},
			holders: Holders{
				List: []Holder{pods(1, 0), pods(2, 0), pods(1, 0)}, Held: []Held{by(on(0, half...), 0, 2), by(on(1, half...), 0, 1), by(on(1, 4, 5), 0)},
			},
		},
		"CPU lacks": {
			nodes: 1, free: all, gang: &Gang{Classes: []Class{{Requests: []fleet.Shape{{CPU: 100_000}}}}, Members: []Member{{Node: Unbound}}, Min: 1, Required: Anywhere, Preferred: 2}, want: []int{1},
			holders: Holders{List: []Holder{{Pods: 1, Parts: []Part{{0, 50_000, 0}}}, {Pods: 1, Parts: []Part{{0, 100_000, 1}}}, {Pods: 1, Parts: []Part{{0, 0, 9}}}}},
		},
		"nothing ends for surplus": {
			nodes: 2, free: half, gang: alike(3, 4), want: []int{0}, change: func(g *Gang) { g.Min = 2 },
			holders: Holders{List: []Holder{pods(1, 0), pods(2, 0)}, Held: []Held{by(on(0, 4, 5, 6, 7), 0), by(on(1, all...), 1)}},
		},
		"segments": {
			nodes: 6, gang: alike(4, 8), want: []int{2, 3, 4, 5}, change: func(g *Gang) { g.Segment = Segment{2, 1} },
			holders: Holders{
				List: []Holder{pods(1, 0), pods(1, 0), pods(2, 0), pods(2, 0), pods(2, 0), pods(2, 0)},
				Held: []Held{by(on(0, all...), 0), by(on(2, all...), 2), by(on(3, all...), 3), by(on(4, all...), 4), by(on(5, all...), 5)},
			},
		},
		"other rules let none run on a node": {
			nodes: 2, gang: alike(1, 8), want: []int{0}, change: func(g *Gang) { g.Classes[0].Capacity = []int32{1, 1} },
			holders: Holders{List: []Holder{pods(2, 0), pods(1, 0)}, Held: []Held{by(on(0, all...), 0), by(on(1, all...), 1)}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			list, _ := full(test.nodes)
			for _, k := range test.free {
				list[0].GPUs[k].Free = fleet.Whole
			}
			if strings.HasPrefix(name, "CPU") {
				list[0].FreeCPU = 0
			}
			planner, topology := newPlanner(t, list, 2)
			inOrder(planner.fleet, &test.holders)
			if test.change != nil {
				test.change(test.gang)
			}
			if limit := test.gang.Classes[0].Capacity; limit != nil {
				other, _ := planner.fleet.Find("node-01")
				limit[other] = 0
			}
			got, err := planner.End(topology, test.gang, &test.holders)
			if err != nil {
				t.Fatal(err)
			}
			if got == nil {
				got = &Ended{Exact: true}
			}
			if !slices.Equal(got.Holders, test.want) || !got.Exact {
				t.Errorf("%+v; want %v", got, test.want)
			}
		})
	}
}

// TestEndRefuses: holders that cannot be.
func TestEndRefuses(t *testing.T) {
	tests := map[string]func(g *Gang, h *Holders){
		"a bad gang":                        func(g *Gang, h *Holders) { g.Min = 0 },
		"no pod":                            func(g *Gang, h *Holders) { h.List[0].Pods = 0 },
		"too many pods":                     func(g *Gang, h *Holders) { h.List[0].Pods = fleet.MaxPods + 1 },
		"an unknown budget":                 func(g *Gang, h *Holders) { h.List[0].Budgets = [][]int{{1}} },
		"an unknown holder ends with it":    func(g *Gang, h *Holders) { h.List[0].With = []int{16} },
		"a negative holder ends with it":    func(g *Gang, h *Holders) { h.List[0].With = []int{-1} },
		"it ends with itself":               func(g *Gang, h *Holders) { h.List[3].With = []int{3} },
		"a holder ends with it twice":       func(g *Gang, h *Holders) { h.List[3].With = []int{4, 5, 4} },
		"a part on an unknown node":         func(g *Gang, h *Holders) { h.List[0].Parts = []Part{{Node: 2}} },
		"two parts on a node":               func(g *Gang, h *Holders) { h.List[0].Parts = []Part{{Node: 1}, {Node: 1}} },
		"negative CPU":                      func(g *Gang, h *Holders) { h.List[0].Parts = []Part{{CPU: -1}} },
		"negative memory":                   func(g *Gang, h *Holders) { h.List[0].Parts = []Part{{Memory: -1}} },
		"devices of an unknown node":        func(g *Gang, h *Holders) { h.Held[0].Node = -1 },
		"devices of no holder":              func(g *Gang, h *Holders) { h.Held[0].Holders = nil },
		"devices of an unknown holder":      func(g *Gang, h *Holders) { h.Held[0].Holders = []int{16} },
		"devices of a holder that is twice": func(g *Gang, h *Holders) { h.Held[0].Holders = []int{2, 2} },
		"an unknown GPU":                    func(g *Gang, h *Holders) { h.Held[0].GPUs = 1 << 8 },
		"a negative amount":                 func(g *Gang, h *Holders) { h.Held[0].Amount = -1 },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			list, h := full(2)
			planner, topology := newPlanner(t, list, 2)
			g := alike(1, 8)
			h.Budgets = []int32{0}
			change(g, h)
			before := contents(planner.fleet)
			if got, err := planner.End(topology, g, h); err == nil {
				t.Errorf("%+v; want an error", got)
			}
			if contents(planner.fleet) != before {
				t.Error("the fleet has changed")
			}
		})
	}
}

// TestEndApart: members that are bound to several domains of the required level.
func TestEndApart(t *testing.T) {
	list, h := full(4)
	planner, topology := newPlanner(t, list, 2)
	g := alike(3, 1)
	g.Required, g.Preferred = 2, 2
	g.Members[0].Node, g.Members[1].Node = 0, 1
	if got, err := planner.End(topology, g, h); got != nil || err != nil {
		t.Errorf("%+v, %v; want nothing", got, err)
	}
}

// TestEndTraffic: a member that needs much memory bandwidth does not share a GPU with a pod that does.
func TestEndTraffic(t *testing.T) {
	n := fleet.Empty("node-00", "H100", 8000, 8000, 1)
	n.GPUs[0] = fleet.GPU{Free: 500, Resource: replica, Unit: 250}
	n.AddTraffic(0, fleet.Bandwidth)
	planner, topology := newPlanner(t, []fleet.Node{n}, 2)
	g := &Gang{
		Classes: []Class{{Requests: []fleet.Shape{{Resource: replica, GPUs: 1, Traffic: fleet.Bandwidth}}}}, Members: []Member{{Node: Unbound}}, Min: 1, Required: Anywhere, Preferred: 2,
	}
	h := &Holders{List: []Holder{{Pods: 1}, {Pods: 1}}, Held: []Held{{Holders: []int{0}, GPUs: 1, Traffic: fleet.Bandwidth}, {Holders: []int{1}, GPUs: 1}}}
	got, err := planner.End(topology, g, h)
	if err != nil || got == nil || !slices.Equal(got.Holders, []int{0}) {
		t.Errorf("%+v, %v; want the first holder to end", got, err)
	}
}

// partial is a policy that gives members no GPUs on a node, or a policy's own.
type partial struct {
	fleet.Policy
	node string
}

type partialScorer struct {
	fleet.Scorer
	node string
}

func (p partial) Scorer(f *fleet.Fleet) fleet.Scorer {
	return partialScorer{p.Policy.Scorer(f), p.node}
}

func (s partialScorer) Score(n *fleet.Node, shape *fleet.Shape) (fleet.Score, fleet.GPUSet) {
	score, gpus := s.Scorer.Score(n, shape)
	if n.Name == s.node {
		return score, 0
	}
	return score, gpus
}

// TestEndByPolicy: the answer is one of the policy where that gives members other GPUs than a device plugin would.
func TestEndByPolicy(t *testing.T) {
	list, h := full(2)
	planner, topology := newPlanner(t, list, 2)
	inOrder(planner.fleet, h)
	other := NewPlanner(fleet.NewDecider(planner.fleet, partial{fleet.Spread(), "node-01"}))
	got, err := other.End(topology, alike(1, 2), h)
	if err != nil || got == nil || !slices.Equal(got.Holders, []int{6, 7}) || got.Exact {
		t.Errorf("%+v, %v; want the last two holders of the first node", got, err)
	}
	other = NewPlanner(fleet.NewDecider(planner.fleet, partial{fleet.Spread(), "node-00"}))
	if got, err = other.End(topology, alike(2, 8), h); err != nil || got != nil {
		t.Errorf("%+v, %v; want no answer", got, err)
	}
}

// TestEndShares: members that share GPUs are placed by the policy.
func TestEndShares(t *testing.T) {
	list := []fleet.Node{fleet.Empty("node-00", "T4", 8000, 8000, 2)}
	list[0].GPUs[0].Free, list[0].GPUs[1].Free = 200, 100
	planner, topology := newPlanner(t, list, 2)
	g := &Gang{Classes: []Class{{Requests: []fleet.Shape{{GPUs: 1, Share: 600}}}}, Members: []Member{{Node: Unbound}, {Node: Unbound}}, Min: 2, Required: Anywhere, Preferred: 2}
	h := &Holders{
		List: []Holder{{Pods: 1}, {Pods: 1}, {Pods: 1}, {Pods: 1}},
		Held: []Held{{Holders: []int{0}, GPUs: 1, Amount: 300}, {Holders: []int{1}, GPUs: 1, Amount: 500}, {Holders: []int{2}, GPUs: 2, Amount: 600}, {Holders: []int{3}, GPUs: 2, Amount: 300}},
	}
	got, err := planner.End(topology, g, h)
	if err != nil || got == nil || !slices.Equal(got.Holders, []int{1, 2}) || !got.Exact {
		t.Errorf("%+v, %v; want 1 and 2 to end", got, err)
	}
}

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
			if !check.fits(check.nobody) && check.fits(all) {
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
		if !check.fits(set) || check.fits(check.nobody) || got.Plan.Placed < g.Min || w.violations != got.Violations || w.priority != got.Priority || w.pods != got.Pods {
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
	ending *ending
	nobody []bool
}

func newCheck(p *Planner, t *Topology, g *Gang, h *Holders) (*check, error) {
	e, err := p.newEnding(t, g, h)
	if err != nil {
		return nil, err
	}
	return &check{p.newRun(t, g), e, e.nobody}, nil
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
		nodes, members int
		gpus           int32
		priorities     int
		budgets, gangs int
		kind           string
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
