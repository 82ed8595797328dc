package gang

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// nodes returns empty nodes of 8 GPUs: node-00 and so on.
func nodes(count int) []fleet.Node {
	list := make([]fleet.Node, count)
	for i := range list {
		list[i] = fleet.Empty(fmt.Sprintf("node-%02d", i), "H100", 192_000, 2<<20, 8)
		for k := range list[i].GPUs {
			list[i].GPUs[k].Resource, list[i].GPUs[k].Unit = gpu, fleet.Whole
		}
	}
	return list
}

// newPlanner returns a planner of these nodes with racks of a number of nodes, in the order of their names.
func newPlanner(t testing.TB, list []fleet.Node, rack int) (*Planner, *Topology) {
	t.Helper()
	f, err := fleet.New(list, 0)
	if err != nil {
		t.Fatal(err)
	}
	policy := fleet.Pack(fleet.NewMeasure(fleet.Mix{{Shape: ofGPUs(1), Weight: 700}, {Shape: ofGPUs(8), Weight: 300}}))
	topology := NewTopology(f, []string{"zone", "rack"}, func(level int, node string) string {
		if rack == 0 {
			return ""
		}
		if level == 0 {
			return "zone-a"
		}
		number := 0
		if _, err := fmt.Sscanf(node, "node-%d", &number); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("rack-%02d", number/rack)
	})
	return NewPlanner(fleet.NewDecider(f, policy)), topology
}

func ofGPUs(n int32) fleet.Shape {
	return fleet.Shape{CPU: 4000, Memory: 16 << 10, Resource: gpu, GPUs: n}
}

// alike returns a gang of members that request as many GPUs each.
func alike(members int, gpus int32) *Gang {
	g := &Gang{Classes: []Class{{Requests: []fleet.Shape{ofGPUs(gpus)}}}, Min: members, Required: Anywhere, Preferred: 2}
	for range members {
		g.Members = append(g.Members, Member{Node: Unbound})
	}
	return g
}

// TestPlaces checks on which nodes the members are, by index.
func TestPlaces(t *testing.T) {
	tests := map[string]struct {
		nodes  int
		rack   int
		used   map[string]int // GPUs in use
		gang   func(g *Gang)
		member int32 // GPUs of a member
		count  int
		want   string
		level  string
	}{
		"one node":                  {nodes: 4, rack: 2, member: 1, count: 4, want: "0 0 0 0", level: "node"},
		"the node with least left":  {nodes: 4, rack: 2, member: 1, count: 4, used: map[string]int{"node-02": 4}, want: "2 2 2 2", level: "node"},
		"one rack":                  {nodes: 6, rack: 2, member: 8, count: 2, used: map[string]int{"node-00": 1, "node-05": 8}, want: "2 3", level: "rack"},
		"the rack with least left":  {nodes: 6, rack: 3, member: 8, count: 2, used: map[string]int{"node-01": 1}, want: "0 2", level: "rack"},
		"the zone":                  {nodes: 4, rack: 2, member: 8, count: 3, want: "0 2 3", level: "zone"},
		"no labels":                 {nodes: 4, member: 8, count: 3, want: "0 2 3", level: ""},
		"neighbours":                {nodes: 4, rack: 2, member: 4, count: 8, want: "0 0 1 1 2 2 3 3", level: "zone"},
		"a required level":          {nodes: 4, rack: 2, member: 4, count: 2, used: map[string]int{"node-00": 4, "node-01": 4, "node-02": 8, "node-03": 8}, gang: func(g *Gang) { g.Required = 1 }, want: "0 1", level: "rack"},
		"surplus members are left":  {nodes: 2, rack: 2, member: 4, count: 6, gang: func(g *Gang) { g.Min = 3 }, want: "0 0 1 1 - -", level: "rack"},
		"beside a bound member":     {nodes: 6, rack: 2, member: 8, count: 2, used: map[string]int{"node-04": 8}, gang: func(g *Gang) { g.Members[0].Node = 4 }, want: "4 5", level: "rack"},
		"segments":                  {nodes: 6, rack: 3, member: 8, count: 4, gang: func(g *Gang) { g.Segment = Segment{Size: 2, Level: 1} }, want: "0 1 3 4", level: "zone"},
		"segments of one node each": {nodes: 4, rack: 2, member: 2, count: 4, used: map[string]int{"node-00": 4, "node-01": 6, "node-02": 4, "node-03": 8}, gang: func(g *Gang) { g.Segment = Segment{Size: 2, Level: 2} }, want: "0 0 2 2", level: "zone"},
		"capacity of other rules":   {nodes: 3, member: 1, count: 3, gang: func(g *Gang) { g.Classes[0].Capacity = []int32{1, 1, 1} }, want: "0 1 2", level: ""},
		"a leader without GPUs": {nodes: 2, rack: 1, member: 8, count: 2, used: map[string]int{"node-00": 1}, gang: func(g *Gang) {
			g.Classes = append(g.Classes, Class{Requests: []fleet.Shape{{CPU: 1000}}})
			g.Members[0].Class = 1
		}, want: "1 1", level: "node"},
		"the smallest level that it has": {nodes: 2, rack: 2, member: 8, count: 2, gang: func(g *Gang) { g.Preferred = Anywhere }, want: "0 1", level: ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			list := nodes(test.nodes)
			for i := range list {
				for k := range test.used[list[i].Name] {
					list[i].GPUs[k].Free = 0
				}
			}
			planner, topology := newPlanner(t, list, test.rack)
			g := alike(test.count, test.member)
			if test.gang != nil {
				test.gang(g)
			}
			for i, m := range g.Members {
				if m.Node != Unbound {
					g.Members[i].Node, _ = planner.fleet.Find(fmt.Sprintf("node-%02d", m.Node))
				}
			}
			plan, refusal, err := planner.Plan(topology, g)
			if err != nil || refusal != nil {
				t.Fatal(err, refusal)
			}
			var got []string
			for _, node := range plan.Nodes {
				if node == Unbound {
					got = append(got, "-")
					continue
				}
				got = append(got, strings.TrimPrefix(planner.fleet.Node(node).Name, "node-0"))
			}
			if strings.Join(got, " ") != test.want || topology.Name(plan.Level) != test.level {
				t.Errorf("nodes %v on level %q; want %s on %q", got, topology.Name(plan.Level), test.want, test.level)
			}
		})
	}
}

// TestRefusal checks the sentences of gangs that do not fit, and that the fleet is the same afterwards.
func TestRefusal(t *testing.T) {
	tests := map[string]struct {
		gang func(g *Gang)
		rack int
		want string
	}{
		"too many": {rack: 2, want: `5 members have to fit together, and at most 4 do; for the next one the nearest node is node-00: 0 of its nvidia.com/gpu are free, the pod requests 8 (wider: "")`},
		"one rack": {
			rack: 2, gang: func(g *Gang) { g.Required, g.Min = 1, 3 },
			want: `3 members have to fit in one rack, and at most 2 do (rack-00); for the next one the nearest node is node-00: 0 of its nvidia.com/gpu are free, the pod requests 8 (wider: "zone")`,
		},
		"the rack in which most fit": {
			rack: 3, gang: func(g *Gang) { g.Required, g.Min = 1, 4 },
			want: `4 members have to fit in one rack, and at most 3 do (rack-00); for the next one the nearest node is node-00: 0 of its nvidia.com/gpu are free, the pod requests 8 (wider: "zone")`,
		},
		"the other rack": {
			rack: 1, gang: func(g *Gang) {
				g.Required, g.Min, g.Classes[0].Requests[0].GPUs, g.Classes[0].Capacity = 1, 3, 4, []int32{1, 1, 1, 2}
			},
			want: `3 members have to fit in one rack, and at most 2 do (rack-01); for the next one the nearest node is node-01: 0 of its nvidia.com/gpu are free, the pod requests 4 (wider: "zone")`,
		},
		"no such level": {gang: func(g *Gang) { g.Required = 1 }, want: `no node has the topology level rack, which the gang requires (wider: "")`},
		"bound apart": {
			rack: 1, gang: func(g *Gang) { g.Required, g.Members[0].Node, g.Members[1].Node = 1, 0, 1 },
			want: `members that have a node are in several domains of the level rack, which all have to share (wider: "")`,
		},
		"other rules exclude nodes": {
			rack: 4, gang: func(g *Gang) { g.Classes[0].Capacity = []int32{0, 0, 1, 2} },
			want: `5 members have to fit together, and at most 2 do; for the next one the nearest node is node-01: 0 of its nvidia.com/gpu are free, the pod requests 8 (wider: "")`,
		},
		"other rules exclude all nodes": {
			rack: 4, gang: func(g *Gang) { g.Classes[0].Capacity = make([]int32, 4) },
			want: `5 members have to fit together, and at most 0 do (wider: "")`,
		},
		"larger than a node": {
			rack: 2, gang: func(g *Gang) { g.Classes[0].Requests[0].GPUs = 16 },
			want: `5 members have to fit together, and at most 0 do; for the next one the nearest node is node-00: it has 8 nvidia.com/gpu, the pod requests 16 (wider: "")`,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			planner, topology := newPlanner(t, nodes(4), test.rack)
			g := alike(5, 8)
			if test.gang != nil {
				test.gang(g)
			}
			before := planner.fleet.Free()
			_, refusal, err := planner.Plan(topology, g)
			if err != nil || refusal == nil {
				t.Fatal(err, refusal)
			}
			if got := fmt.Sprintf("%v (wider: %q)", refusal, refusal.Wider); got != test.want || planner.fleet.Free() != before {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// TestByClass checks a gang whose members are all of another class: each has a node where it fits, and only there.
func TestByClass(t *testing.T) {
	planner, topology := newPlanner(t, nodes(20), 5)
	g := &Gang{Min: 16, Required: 1, Preferred: 2}
	for i := range 16 {
		capacity := make([]int32, 20)
		for k := range capacity {
			number := 0
			if _, err := fmt.Sscanf(planner.fleet.Node(k).Name, "node-%d", &number); err != nil {
				t.Fatal(err)
			}
			if number == 5+i/4 || number == i {
				capacity[k] = 1
			}
		}
		g.Classes = append(g.Classes, Class{Requests: []fleet.Shape{ofGPUs(2)}, Capacity: capacity})
		g.Members = append(g.Members, Member{Class: i, Node: Unbound})
	}
	plan, refusal, err := planner.Plan(topology, g)
	if err != nil || refusal != nil {
		t.Fatal(err, refusal)
	}
	for i, node := range plan.Nodes {
		if g.Classes[i].Capacity[node] == 0 || topology.Domain(1, node) != "rack-01" || plan.Exact {
			t.Errorf("member %d is on %s, exact %v", i, planner.fleet.Node(node).Name, plan.Exact)
		}
	}
	g.Classes[3].Requests = []fleet.Shape{ofGPUs(16)}
	_, refusal, err = planner.Plan(topology, g)
	if want := fmt.Sprintf("%d members of many kinds have to fit in one rack, and they do not", g.Min); err != nil || refusal == nil || !refusal.Rough || refusal.String() != want {
		t.Errorf("a member that fits nowhere: %+v, %v; want %q", refusal, err, want)
	}
}

// TestInvalid checks that a gang that cannot be is an error.
func TestInvalid(t *testing.T) {
	tests := map[string]func(g *Gang){
		"no members":            func(g *Gang) { g.Members = nil },
		"min 0":                 func(g *Gang) { g.Min = 0 },
		"min above":             func(g *Gang) { g.Min = 6 },
		"an unknown class":      func(g *Gang) { g.Members[0].Class = 1 },
		"an unknown node":       func(g *Gang) { g.Members[0].Node = 4 },
		"an unknown level":      func(g *Gang) { g.Preferred = 3 },
		"levels the other way":  func(g *Gang) { g.Required, g.Preferred = 2, 1 },
		"a negative segment":    func(g *Gang) { g.Segment.Size = -1 },
		"a segment of no level": func(g *Gang) { g.Segment = Segment{Size: 2, Level: Anywhere} },
		"capacity of few nodes": func(g *Gang) { g.Classes[0].Capacity = []int32{1} },
		"others of few nodes":   func(g *Gang) { g.Others = []Other{{Wants: []int64{1}, Free: []int64{1}}} },
		"others of no class":    func(g *Gang) { g.Others = []Other{{Free: make([]int64, 4)}} },
		"others below 0":        func(g *Gang) { g.Others = []Other{{Wants: []int64{1}, Free: []int64{1, 1, -1, 1}}} },
		"no requests":           func(g *Gang) { g.Classes[0].Requests = nil },
		"a bad request":         func(g *Gang) { g.Classes[0].Requests[0].CPU = -1 },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			planner, topology := newPlanner(t, nodes(4), 2)
			g := alike(5, 1)
			change(g)
			if _, _, err := planner.Plan(topology, g); err == nil {
				t.Error("no error")
			}
		})
	}
}

// TestKept checks that a node is looked at again only after it has changed.
func TestKept(t *testing.T) {
	planner, topology := newPlanner(t, nodes(50), 10)
	plan, _, err := planner.Plan(topology, alike(8, 1))
	if err != nil || planner.stats.Tables != 50 {
		t.Fatalf("%v; %d tables; want 50", err, planner.stats.Tables)
	}
	for _, node := range plan.Nodes {
		op := fleet.Op{Node: node, Shape: ofGPUs(1)}
		op.GPUs = fleet.Choose(planner.fleet.Node(node), &op.Shape).GPUs
		if err := planner.fleet.Place(op); err != nil {
			t.Fatal(err)
		}
	}
	changed := slices.Compact(slices.Sorted(slices.Values(plan.Nodes)))
	if _, _, err = planner.Plan(topology, alike(8, 1)); err != nil || planner.stats.Tables != 50+uint64(len(changed)) {
		t.Errorf("%v; %d tables; want %d more than 50", err, planner.stats.Tables, len(changed))
	}
}

// BenchmarkPlan prints what a plan takes: of gangs that fit, one of which is placed between two, and of one that does not.
func BenchmarkPlan(b *testing.B) {
	for _, bench := range []struct {
		nodes    int
		members  int
		gpus     int32
		required int
	}{{500, 8, 1, Anywhere}, {500, 125, 1, Anywhere}, {500, 4, 8, 1}, {500, 501, 8, Anywhere}, {5000, 8, 1, Anywhere}, {5000, 125, 1, Anywhere}, {5000, 1000, 8, Anywhere}} {
		b.Run(fmt.Sprintf("nodes=%d/members=%d/gpus=%d/level=%d", bench.nodes, bench.members, bench.gpus, bench.required), func(b *testing.B) {
			planner, topology := newPlanner(b, nodes(bench.nodes), 10)
			g := alike(bench.members, bench.gpus)
			g.Required = bench.required
			one := fleet.Op{Shape: ofGPUs(1), GPUs: 1}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, _, err := planner.Plan(topology, g); err != nil {
					b.Fatal(err)
				}
				one.Node = i / 2 % bench.nodes
				change := planner.fleet.Place
				if i%2 == 1 {
					change = planner.fleet.Remove
				}
				if err := change(one); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
