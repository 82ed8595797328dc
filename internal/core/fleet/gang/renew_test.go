package gang

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// randomQuestion returns a question of the kind of TestTwin.
func randomQuestion(t *testing.T, random *rand.Rand) (*fleet.Fleet, fleet.Policy, *Topology, *Gang) {
	t.Helper()
	f, err := fleet.New(randomNodes(t, random), 0)
	if err != nil {
		t.Fatal(err)
	}
	policy, err := fleet.NewPolicy(fleet.PolicyNames()[random.IntN(3)], fleet.NewMeasure(fleet.Mix{{Shape: fleet.Shape{CPU: 2000, Resource: gpu, GPUs: 1}, Weight: 500}}))
	if err != nil {
		t.Fatal(err)
	}
	shift := random.IntN(6)
	topology := NewTopology(f, []string{"zone", "rack"}[:random.IntN(3)], func(level int, node string) string {
		return []string{"", "a", "b", "c", "a", "b"}[(int(node[5]-'0')*(level+1)+shift)%6]
	})
	return f, policy, topology, randomGang(random, topology, f.Len())
}

// state returns a copy of the nodes of a fleet.
func state(f *fleet.Fleet) []fleet.Node {
	list := make([]fleet.Node, f.Len())
	for i := range list {
		list[i] = *copyOf(f.Node(i))
	}
	return list
}

// churn places pods on random nodes.
func churn(f *fleet.Fleet, random *rand.Rand, pods int) {
	for range pods {
		i, s := random.IntN(f.Len()), fleet.Shape{CPU: 1000, Resource: gpu, GPUs: 1 + random.Int32N(2)}
		if fleet.Fits(f.Node(i), &s) {
			_ = f.Place(fleet.Op{Node: i, GPUs: fleet.Choose(f.Node(i), &s).GPUs, Shape: s}) // Where it does not fit nothing changes.
		}
	}
}

// TestRenew: a plan that was made of an earlier state of the fleet is one of the present state afterwards, or refused; where nothing
// of it was taken it is the same, and members keep their places where they can.
func TestRenew(t *testing.T) {
	random, counts := rand.New(rand.NewPCG(3, 0)), map[string]int{}
	for number := range 1500 {
		f, policy, topology, g := randomQuestion(t, random)
		planner := NewPlanner(fleet.NewDecider(f, policy))
		old, _, err := planner.Plan(topology, g)
		if err != nil {
			t.Fatal(err)
		}
		if len(old.Nodes) == 0 {
			continue
		}
		same, kept, refusal, err := planner.Renew(topology, g, &old)
		if err != nil || refusal != nil || !slices.Equal(same.Nodes, old.Nodes) || !slices.Equal(kept, old.Nodes) {
			t.Fatalf("case %d: %+v, %v, %v, %v; want the plan %+v of the same state\n%+v", number, same, kept, refusal, err, old, g)
		}
		churn(f, random, random.IntN(6))
		present := state(f)
		plan, kept, refusal, err := planner.Renew(topology, g, &old)
		if err != nil || fmt.Sprint(state(f)) != fmt.Sprint(present) {
			t.Fatalf("case %d: %v, or the fleet has changed", number, err)
		}
		w := &twin{t: t, nodes: present, policy: policy, topology: topology, gang: g}
		switch {
		case refusal != nil:
			counts["refused"]++
			if slices.Equal(kept, old.Nodes) {
				t.Fatalf("case %d: refused (%v), though all places are free\n%+v", number, refusal, g)
			}
			continue
		case slices.Equal(plan.Nodes, old.Nodes):
			counts["kept"]++
		default:
			counts["repaired"]++
		}
		if _, ok := w.cost(plan.Nodes, g.Required); !ok || !w.together(plan.Nodes, g.Required) || plan.Placed < g.Min {
			t.Fatalf("case %d: the renewed plan %+v of %+v does not fit\n%+v", number, plan, old, g)
		}
		for i, node := range kept {
			if node != Unbound && plan.Nodes[i] != node {
				t.Fatalf("case %d: member %d had a free place on %d and is planned for %d", number, i, node, plan.Nodes[i])
			}
		}
	}
	t.Log(counts)
	for _, name := range []string{"refused", "kept", "repaired"} {
		if counts[name] < 40 {
			t.Errorf("%d cases are %s; want at least 40", counts[name], name)
		}
	}
}

// TestStands: holders that end for a gang are still what has to end in the same state, and not once the gang fits without that, or has lost
// a place.
func TestStands(t *testing.T) {
	list, h := full(4)
	planner, topology := newPlanner(t, list, 2)
	inOrder(planner.fleet, h)
	g := alike(2, 8)
	ended, err := planner.End(topology, g, h)
	if err != nil || ended == nil {
		t.Fatal(ended, err)
	}
	only := &Holders{}
	for _, held := range h.Held {
		if at, ends := slices.BinarySearch(ended.Holders, held.Holders[0]); ends {
			held.Holders = []int{at}
			only.List, only.Held = append(only.List, Holder{Pods: 1}), append(only.Held, held)
		}
	}
	eight := func(node int) fleet.Op {
		return fleet.Op{Node: node, GPUs: 1<<8 - 1, Shape: fleet.Shape{Resource: gpu, GPUs: 8}}
	}
	tests := map[string]struct {
		change func(f *fleet.Fleet) error
		want   bool
	}{
		"the same": {func(*fleet.Fleet) error { return nil }, true},
		"a GPU is gone": {func(f *fleet.Fleet) error {
			node := *f.Node(ended.Plan.Nodes[0])
			node.GPUs = slices.Clone(node.GPUs)
			node.GPUs[3].State = fleet.Gone
			return f.Override(ended.Plan.Nodes[0], node)
		}, false},
		"two nodes are free": {func(f *fleet.Fleet) error {
			for i := range f.Len() {
				if !slices.Contains(ended.Plan.Nodes, i) {
					if err := f.Remove(eight(i)); err != nil {
						return err
					}
				}
			}
			return nil
		}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			mark := planner.fleet.Checkpoint()
			defer planner.fleet.Rollback(mark)
			if err := test.change(planner.fleet); err != nil {
				t.Fatal(err)
			}
			if stands, err := planner.Stands(topology, g, only, &ended.Plan); err != nil || stands != test.want {
				t.Errorf("stands: %v, %v; want %v", stands, err, test.want)
			}
		})
	}
}

// TestBound: a question within a budget has the same answer as without one, or none; the fleet is the same after it.
func TestBound(t *testing.T) {
	random, over := rand.New(rand.NewPCG(4, 0)), 0
	for number := range 300 {
		f, policy, topology, g := randomQuestion(t, random)
		planner := NewPlanner(fleet.NewDecider(f, policy))
		plan, refusal, err := planner.Plan(topology, g)
		if err != nil {
			t.Fatal(err)
		}
		before := fmt.Sprint(state(f))
		for steps := uint64(1); ; steps *= 4 {
			bounded := NewPlanner(fleet.NewDecider(f, policy))
			bounded.Bound(Budget{Steps: steps})
			got, why, err := bounded.Plan(topology, g)
			if fmt.Sprint(state(f)) != before {
				t.Fatalf("case %d: %d steps have changed the fleet", number, steps)
			}
			if errors.Is(err, ErrSteps) {
				if done := bounded.stats.Steps; done > steps {
					t.Fatalf("case %d: %d steps; want at most %d", number, done, steps)
				}
				over++
				continue
			}
			if err != nil || fmt.Sprint(got, why) != fmt.Sprint(plan, refusal) {
				t.Fatalf("case %d: %+v, %v, %v in %d steps; want %+v, %v", number, got, why, err, steps, plan, refusal)
			}
			break
		}
	}
	if over < 300 {
		t.Errorf("%d questions took too many steps; want some of each case", over)
	}
}

// TestStop: a question that was stopped ends soon, and is not planned class by class either.
func TestStop(t *testing.T) {
	planner, topology := newPlanner(t, nodes(300), 8)
	asked := 0
	planner.Bound(Budget{Rough: true, Stop: func() bool { asked++; return true }})
	if _, _, err := planner.Plan(topology, ofKinds(512, 2, 1)); !errors.Is(err, ErrSteps) || asked != 1 {
		t.Errorf("%v, asked %d times; want ErrSteps once", err, asked)
	}
}

// TestRough: a gang that takes too many steps is planned class by class, if that is wanted.
func TestRough(t *testing.T) {
	planner, topology := newPlanner(t, nodes(60), 8)
	g := ofKinds(80, 2, 1)
	planner.Bound(Budget{Steps: 200_000})
	if _, _, err := planner.Plan(topology, g); !errors.Is(err, ErrSteps) {
		t.Fatalf("%v; want ErrSteps", err)
	}
	planner.Bound(Budget{Steps: 200_000, Rough: true})
	plan, refusal, err := planner.Plan(topology, g)
	if err != nil || refusal != nil || plan.Exact || plan.Placed != 80 {
		t.Errorf("%+v, %v, %v; want a plan for 80 that is not exact", plan, refusal, err)
	}
}

// TestOthersByClass: a gang that is planned class by class has no more members of all classes on a node than it has pods left.
func TestOthersByClass(t *testing.T) {
	for most, want := range map[int64]int{0: 0, 1: 0, 2: 2, 3: 3, 100: 8} {
		planner, topology := newPlanner(t, nodes(60), 8)
		g := ofKinds(80, 2, 1)
		g.Others = []Other{{Wants: []int64{1, 1}, Free: slices.Repeat([]int64{most}, 60)}}
		planner.Bound(Budget{Steps: 200_000, Rough: true})
		plan, refusal, err := planner.Plan(topology, g)
		on, highest := make([]int, 60), 0
		for _, node := range plan.Nodes {
			on[node]++
			highest = max(highest, on[node])
		}
		least := *g
		least.Classes = slices.Repeat(g.Classes, 40) // So many that there are too many combinations.
		for i := range least.Members {
			least.Members[i].Class = i
		}
		least.Others = []Other{{Wants: slices.Repeat([]int64{1}, 80), Free: g.Others[0].Free}}
		planner.Bound(Budget{})
		if fits := planner.newRun(topology, &least).fitsOn(Anywhere); fits != (want > 0) {
			t.Errorf("%d pods a node: 80 members of as many classes fit: %v", most, fits)
		}
		if err != nil || (refusal == nil) != (want > 0) || highest != want || refusal == nil && plan.Exact {
			t.Errorf("%d pods a node: up to %d members on one, %v, %v; want %d", most, highest, refusal, err, want)
		}
	}
}

// TestFill: very many members of one class are placed exactly if they fit, as many on each node as it takes.
func TestFill(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 0))
	for range 500 {
		tables, all := make([]table, 1+random.IntN(6)), 0
		for k := range tables {
			for n := range 1 + random.IntN(5) {
				tables[k] = append(tables[k], entry{n, Cost{Nodes: int64(min(n, 1)), Loss: random.Int64N(9)}})
			}
			all += len(tables[k]) - 1
		}
		target := random.IntN(all + 2)
		_, rows, ok := fill(tables, target)
		sum := 0
		for k, row := range rows {
			if sum += int(row[0]); int(row[0]) >= len(tables[k]) {
				t.Fatalf("%d members on a node for %d", row[0], len(tables[k])-1)
			}
		}
		if ok != (target <= all) || ok && sum != target {
			t.Fatalf("%d of %d members, %v; %d fit", sum, target, ok, all)
		}
	}
}

// TestManyKinds: plans class by class take steps in proportion to the nodes and kinds that matter, though nodes become other ones while
// the classes are placed.
func TestManyKinds(t *testing.T) {
	planner, topology := newPlanner(t, nodes(300), 8)
	g := ofKinds(1024, 64, 1)
	plan, refusal, err := planner.Plan(topology, g)
	if err != nil || refusal != nil || plan.Placed != 1024 {
		t.Fatalf("%+v, %v, %v", plan, refusal, err)
	}
	if steps := planner.stats.Steps; steps > 20_000_000 {
		t.Errorf("%d steps; want at most 20 million", steps)
	}
}

// TestTraffic: members that differ only in the bandwidth that they need have different places.
func TestTraffic(t *testing.T) {
	n := fleet.Empty("node-00", "H100", 8000, 8000, 1)
	n.GPUs[0] = fleet.GPU{Free: 500, Resource: replica, Unit: 250}
	n.AddTraffic(0, fleet.Bandwidth)
	planner, topology := newPlanner(t, []fleet.Node{n}, 2)
	for traffic, want := range map[fleet.Traffic]bool{0: true, fleet.Bandwidth: false} {
		g := alike(1, 1)
		g.Classes[0].Requests = []fleet.Shape{{Resource: replica, GPUs: 1, Traffic: traffic}}
		if plan, refusal, err := planner.Plan(topology, g); err != nil || (refusal == nil) != want {
			t.Errorf("traffic %d: %+v, %v, %v; want a plan: %v", traffic, plan, refusal, err, want)
		}
	}
}
