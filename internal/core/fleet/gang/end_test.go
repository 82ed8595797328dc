package gang

import (
	"fmt"
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
		shared  bool // several use a budget, so that the model cannot say that it is exact
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
			nodes: 3, gang: alike(2, 8), want: []int{0, 2}, change: func(g *Gang) { g.Preferred = Anywhere }, shared: true,
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
		"the less important of one domain": {
			nodes: 4, gang: alike(1, 8), want: []int{1}, change: func(g *Gang) { g.Preferred = Anywhere },
			holders: Holders{List: []Holder{pods(1, 0), pods(1, 0)}, Held: []Held{by(on(0, all...), 1), by(on(1, all...), 0)}},
		},
		"a budget that a gang uses, too": {
			nodes: 4, gang: alike(3, 8), want: []int{0, 2}, change: func(g *Gang) { g.Preferred = Anywhere },
			holders: Holders{
				List: []Holder{{Pods: 2, Budgets: [][]int{{0}}}, kept(0), pods(9, 0)}, Budgets: []int32{1},
				Held: []Held{by(on(0, all...), 0), by(on(1, all...), 0), by(on(2, all...), 1), by(on(3, all...), 2)},
			},
		},
		"the fewest pods of each of two nodes": {
			nodes: 2, gang: alike(2, 4), want: []int{1, 2}, change: func(g *Gang) { g.Classes[0].Capacity = []int32{1, 1} },
			holders: Holders{
				List: []Holder{pods(2, 0), pods(1, 0), pods(1, 0), pods(2, 0)},
				Held: []Held{by(on(0, half...), 0), by(on(0, 4, 5, 6, 7), 1), by(on(1, half...), 2), by(on(1, 4, 5, 6, 7), 3)},
			},
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
			if limit := test.gang.Classes[0].Capacity; strings.HasPrefix(name, "other rules") {
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
			if test.want == nil {
				return
			}
			e, err := planner.newEnding(topology, test.gang, &test.holders)
			if err != nil {
				t.Fatal(err)
			}
			// The table of all sets, which are few here, must not be needed.
			if set, exact := e.modelled(slices.Repeat([]bool{true}, len(test.holders.List))); exact == test.shared || !slices.Equal(positions(set), test.want) {
				t.Errorf("the model has %v, exact %v; want %v", positions(set), exact, test.want)
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
	list[1].CPU++ // A policy gives nodes of equal content the same GPUs.
	planner, topology := newPlanner(t, list, 2)
	inOrder(planner.fleet, h)
	h.List[7].Priority = 1
	other := NewPlanner(fleet.NewDecider(planner.fleet, partial{fleet.Spread(), "node-01"}))
	got, err := other.End(topology, alike(1, 2), h)
	if err != nil || got == nil || !slices.Equal(got.Holders, []int{5, 6}) || got.Exact {
		t.Errorf("%+v, %v; want the last two of a low priority of the first node", got, err)
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

// TestEndRough: what is not known to be the best is not called exact.
func TestEndRough(t *testing.T) {
	n := fleet.Empty("node-00", "H100", 20_000, 8000, 1)
	n.FreeCPU = 0
	planner, topology := newPlanner(t, []fleet.Node{n}, 2)
	h := &Holders{}
	for range fleet.MaxExact + 1 {
		h.List = append(h.List, Holder{Pods: 1, Parts: []Part{{0, 1000, 0}}})
	}
	g := &Gang{Classes: []Class{{Requests: []fleet.Shape{{CPU: 2000}}}}, Members: []Member{{Node: Unbound}}, Min: 1, Required: Anywhere, Preferred: 2}
	got, err := planner.End(topology, g, h)
	if err != nil || got == nil || got.Exact || got.Pods != 2 {
		t.Errorf("many victims: %+v, %v; want two pods, not exact", got, err)
	}
	h.List = h.List[:3]
	for i := range 14 {
		g.Classes = append(g.Classes, Class{Requests: []fleet.Shape{{CPU: int64(i)}}})
		g.Members = append(g.Members, Member{Class: i + 1, Node: Unbound})
	}
	g.Min = len(g.Members)
	got, err = planner.End(topology, g, h)
	if err != nil || got == nil || got.Exact || got.Pods != 3 {
		t.Errorf("many classes: %+v, %v; want three pods, not exact", got, err)
	}
}
