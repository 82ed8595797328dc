package gang

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/berth-gpu/berth/internal/core/fleet"
	gpus "github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement/shared"
)

const (
	gpu     = "nvidia.com/gpu"
	replica = "nvidia.com/gpu.shared"
)

// links returns a topology of four GPUs.
func links(t testing.TB, rows ...string) *shared.Topology {
	t.Helper()
	topology, err := gpus.ParseTopology(rows)
	if err != nil {
		t.Fatal(err)
	}
	made, err := shared.NewCache(shared.Options{}).Topology(topology, nil)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// twin answers by trying all assignments.
type twin struct {
	t        *testing.T
	nodes    []fleet.Node
	policy   fleet.Policy
	topology *Topology
	gang     *Gang
}

// cost returns what an assignment costs, by placing the members class by class on a fleet of its own. The result is false if it is not
// allowed.
func (w *twin) cost(nodes []int, level int) (Cost, bool) {
	f, err := fleet.New(w.nodes, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	losses := fleet.NewDecider(f, w.policy).Scorer()
	loss := func() (sum int64) {
		for i := range f.Len() {
			sum += losses.(fleet.Losses).Loss(f.Node(i))
		}
		return sum
	}
	before, cost := loss(), Cost{}
	used, members, bound := map[int]bool{}, map[[2]int]int32{}, map[int]bool{}
	others := map[[2]int]int64{}
	for _, m := range w.gang.Members {
		if m.Node != Unbound {
			bound[m.Node] = true
		}
	}
	for class := range w.gang.Classes {
		for i, m := range w.gang.Members {
			node := nodes[i]
			if m.Class != class || m.Node != Unbound || node == Unbound {
				continue
			}
			used[node] = true
			members[[2]int{class, node}]++
			if limit := w.gang.Classes[class].Capacity; limit != nil && members[[2]int{class, node}] > limit[node] {
				return cost, false
			}
			for k, o := range w.gang.Others {
				if others[[2]int{k, node}] += o.Wants[class]; others[[2]int{k, node}] > o.Free[node] {
					return cost, false
				}
			}
			for _, request := range w.gang.Classes[class].Requests {
				if fleet.Fit(f.Node(node), request).Lack != fleet.None {
					return cost, false
				}
				for _, piece := range f.Node(node).Pieces(request) {
					if fleet.Fit(f.Node(node), piece).Lack != fleet.None {
						return cost, false
					}
					score, chosen := losses.Score(f.Node(node), &piece)
					if err := f.Place(fleet.Op{Node: node, GPUs: chosen, Shape: piece}); err != nil {
						return cost, false
					}
					parts := score.Parts(w.policy)
					cost.Degraded += parts.Degraded
					cost.Crowded += parts.Crowded
					cost.Links += parts.Links
					cost.Broken += parts.Broken
				}
			}
		}
	}
	for node := range used {
		if !bound[node] {
			cost.Nodes++
		}
	}
	cost.Loss = loss() - before
	var first int
	for _, node := range nodes {
		if node != Unbound {
			first = node
			break
		}
	}
	for i := range f.Len() {
		if w.sameDomain(level, i, first) && w.sameDomain(w.gang.Required, i, first) {
			cost.Slack += f.Node(i).Idle()
		}
	}
	return cost, true
}

func (w *twin) sameDomain(level, a, b int) bool {
	return level == Anywhere || w.topology.Domain(level, a) != "" && w.topology.Domain(level, a) == w.topology.Domain(level, b)
}

// together tells whether the members are where the levels want them.
func (w *twin) together(nodes []int, level int) bool {
	first := -1
	for _, node := range nodes {
		if node == Unbound {
			continue
		}
		if first < 0 {
			first = node
		}
		if !w.sameDomain(level, node, first) || !w.sameDomain(w.gang.Required, node, first) {
			return false
		}
	}
	if size := w.gang.Segment.Size; size > 0 {
		for i, node := range nodes {
			for j := i/size*size + 0; j < min(len(nodes), i/size*size+size); j++ {
				if node != Unbound && nodes[j] != Unbound && !w.sameDomain(w.gang.Segment.Level, node, nodes[j]) {
					return false
				}
			}
		}
	}
	return true
}

// best returns the level and cost of the best assignment with the most members, and how many these are; 0 for none.
func (w *twin) best() (members, level int, best Cost) {
	g := w.gang
	for members = len(g.Members); members >= g.Min; members-- {
		for level = g.Preferred; level >= g.Required; level-- {
			found := false
			nodes := make([]int, len(g.Members))
			var try func(i int)
			try = func(i int) {
				if i == len(nodes) {
					if !w.together(nodes, level) {
						return
					}
					if cost, ok := w.cost(nodes, level); ok && (!found || cheaper(cost, best)) {
						found, best = true, cost
					}
					return
				}
				if g.Members[i].Node != Unbound || i >= members {
					nodes[i] = g.Members[i].Node
					try(i + 1)
					return
				}
				for node := range w.nodes {
					nodes[i] = node
					try(i + 1)
				}
			}
			try(0)
			if found {
				return members, level, best
			}
		}
	}
	return 0, 0, best
}

// cheaper compares costs in the order that the package documents.
func cheaper(a, b Cost) bool {
	list := func(c Cost) []int64 {
		return []int64{c.Degraded, c.Crowded, c.Links, c.Nodes, c.Slack, c.Loss, c.Broken}
	}
	return slices.Compare(list(a), list(b)) < 0
}

// lacks returns how many members fit on the required level, and the narrowest wider level on which the gang fits.
func (w *twin) lacks() (most int, wider string) {
	relaxed := *w.gang
	relaxed.Preferred, relaxed.Min = relaxed.Required, 1
	other := *w
	other.gang = &relaxed
	most, _, _ = other.best()
	relaxed.Min = w.gang.Min
	for level := w.gang.Required - 1; level >= Anywhere; level-- {
		relaxed.Required, relaxed.Preferred = level, level
		if members, _, _ := other.best(); members > 0 {
			return most, cmp.Or(w.topology.Name(level), "the whole fleet")
		}
	}
	return most, ""
}

// randomNodes returns the nodes of a small fleet.
func randomNodes(t *testing.T, random *rand.Rand) []fleet.Node {
	nodes := make([]fleet.Node, 1+random.IntN(6))
	pairs := links(t, "X NV2 NV1 NV1", "NV2 X NV1 NV1", "NV1 NV1 X NV2", "NV1 NV1 NV2 X")
	sockets := links(t, "X PIX SYS SYS", "PIX X SYS SYS", "SYS SYS X PIX", "SYS SYS PIX X")
	for i := range nodes {
		n := fleet.Empty(fmt.Sprintf("node-%d", i), "H100", 16000, 64<<10, 4)
		n.FreeCPU, n.FreeMemory = int64(random.IntN(17))*1000, int64(16+random.IntN(49))<<10
		if random.IntN(2) == 0 {
			n.FreeCPU = n.CPU
		}
		n.Links = []*shared.Topology{nil, pairs, sockets}[random.IntN(3)]
		shares := random.IntN(6) == 0
		for k := range n.GPUs {
			g := &n.GPUs[k]
			g.Resource, g.Unit = gpu, fleet.Whole
			if shares {
				g.Resource, g.Unit = replica, fleet.Whole/2
			}
			if random.IntN(3) == 0 {
				g.Free = 0
			}
			if random.IntN(8) == 0 {
				g.State = fleet.State(random.IntN(4))
			}
		}
		nodes[i] = n
	}
	return nodes
}

// randomGang returns a gang of few members.
func randomGang(random *rand.Rand, t *Topology, nodes int) *Gang {
	g := &Gang{Members: make([]Member, 1+random.IntN(5))}
	if nodes > 4 && len(g.Members) > 4 {
		g.Members = g.Members[:4]
	}
	for range 1 + random.IntN(2)*random.IntN(3) {
		s := fleet.Shape{CPU: int64(random.IntN(6)) * 1000, Memory: int64(random.IntN(9)) << 10}
		switch random.IntN(8) {
		case 0:
		case 1:
			s.Resource, s.GPUs = replica, 1+random.Int32N(2)
		default:
			s.Resource, s.GPUs = gpu, []int32{1, 1, 2, 4}[random.IntN(4)]
		}
		c := Class{Requests: []fleet.Shape{s}}
		if random.IntN(8) == 0 && s.GPUs > 0 {
			c.Requests = append(c.Requests, fleet.Shape{Resource: gpu, GPUs: 1})
		}
		if random.IntN(4) == 0 {
			for range nodes {
				c.Capacity = append(c.Capacity, random.Int32N(4))
			}
		}
		g.Classes = append(g.Classes, c)
	}
	for range random.IntN(3) {
		g.Others = append(g.Others, randomOther(random, len(g.Classes), nodes))
	}
	for i := range g.Members {
		g.Members[i] = Member{Class: random.IntN(len(g.Classes)), Node: Unbound}
		if random.IntN(12) == 0 {
			g.Members[i].Node = random.IntN(nodes)
		}
	}
	g.Min = 1 + random.IntN(len(g.Members))
	g.Required = random.IntN(t.node()+2) - 1
	if random.IntN(2) == 0 {
		g.Required = Anywhere
	}
	g.Preferred = g.Required + random.IntN(t.node()-g.Required+1)
	if random.IntN(4) == 0 {
		g.Segment = Segment{Size: 1 + random.IntN(3), Level: random.IntN(t.node() + 1)}
	}
	return g
}

// randomOther returns something of which a node has enough for some members.
func randomOther(random *rand.Rand, classes, nodes int) (o Other) {
	for range classes {
		o.Wants = append(o.Wants, random.Int64N(3))
	}
	for range nodes {
		o.Free = append(o.Free, random.Int64N(8))
	}
	return o
}

// TestTwin compares plans of random gangs on small fleets with the best of all assignments.
func TestTwin(t *testing.T) {
	seed, cases := uint64(1), 2000
	if os.Getenv("BERTH_SOAK") != "" {
		cases = 10_000
	}
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d, %d cases", seed, cases)
	mix := fleet.Mix{
		{Shape: fleet.Shape{CPU: 2000, Resource: gpu, GPUs: 1}, Weight: 500}, {Shape: fleet.Shape{CPU: 4000, Resource: gpu, GPUs: 4}, Weight: 300},
		{Shape: fleet.Shape{CPU: 1000}, Weight: 200},
	}
	counts := map[string]int{}
	for number := range cases {
		nodes := randomNodes(t, random)
		f, err := fleet.New(nodes, 0)
		if err != nil {
			t.Fatal(err)
		}
		inOrder := make([]fleet.Node, f.Len())
		for i := range inOrder {
			inOrder[i] = *f.Node(i)
		}
		policy, err := fleet.NewPolicy(fleet.PolicyNames()[random.IntN(3)], fleet.NewMeasure(mix))
		if err != nil {
			t.Fatal(err)
		}
		levels := []string{"zone", "rack"}[:random.IntN(3)]
		topology := NewTopology(f, levels, func(level int, node string) string {
			return []string{"", "a", "b", "c", "a", "b"}[(int(node[5]-'0')*(level+1)+number)%6]
		})
		g := randomGang(random, topology, f.Len())
		w := &twin{t: t, nodes: inOrder, policy: policy, topology: topology, gang: g}
		members, level, best := w.best()
		planner := NewPlanner(fleet.NewDecider(f, policy))
		plan, refusal, err := planner.Plan(topology, g)
		again, _, _ := planner.Plan(topology, g)
		switch {
		case err != nil:
			t.Fatal(err)
		case members == 0 && refusal == nil:
			t.Fatalf("case %d: planned %+v, but no assignment fits\n%+v", number, plan, g)
		case members == 0:
			counts["refused"]++
			if refusal.Apart || refusal.Domains == 0 {
				continue
			}
			if most, wider := w.lacks(); refusal.Most != most || refusal.Wider != wider {
				t.Fatalf("case %d: the refusal is %q, %+v, but at most %d fit, and the gang fits in %q\n%+v", number, refusal, refusal, most, wider, g)
			}
			if refusal.Wider != "" {
				counts["that would fit on a wider level"]++
			}
			continue
		case refusal != nil:
			t.Fatalf("case %d: refused (%v), but %d members fit on level %d\n%+v", number, refusal, members, level, g)
		case !slices.Equal(again.Nodes, plan.Nodes) || again.Cost != plan.Cost:
			t.Fatalf("case %d: the second plan is %+v, the first %+v", number, again, plan)
		}
		for i, m := range g.Members {
			if placed := plan.Nodes[i] != Unbound; m.Node != Unbound && plan.Nodes[i] != m.Node || m.Node == Unbound && placed != (i < members) {
				t.Fatalf("case %d: member %d is on node %d; it was bound to %d, and %d members fit\n%+v", number, i, plan.Nodes[i], m.Node, members, g)
			}
		}
		if plan.Level != level || plan.Cost != best {
			t.Fatalf("case %d: planned on level %d with %+v, the best is on level %d with %+v\n%+v\n%+v", number, plan.Level, plan.Cost, level, best, plan, g)
		}
		if cost, ok := w.cost(plan.Nodes, plan.Level); !ok || cost != plan.Cost || !w.together(plan.Nodes, plan.Level) {
			t.Fatalf("case %d: the plan costs %+v (%v), not %+v\n%+v\n%+v", number, cost, ok, plan.Cost, plan, g)
		}
		counts["planned"]++
		counts["with another plan"] += alternatives(t, w, planner, plan)
		if members < len(g.Members) {
			counts["with surplus left"]++
		}
		if len(g.Classes) > 1 {
			counts["of several classes"]++
		}
		free := *g
		free.Others = nil
		if other, _, _ := planner.Plan(topology, &free); !slices.Equal(other.Nodes, plan.Nodes) {
			counts["elsewhere for others"]++
		}
		if g.Segment.Size > 0 {
			counts["in segments"]++
		}
	}
	t.Log(counts)
	for _, name := range []string{"planned", "refused", "with surplus left", "of several classes", "in segments", "that would fit on a wider level", "with another plan", "elsewhere for others"} {
		if counts[name] < cases/50 {
			t.Errorf("%d cases are %s; want at least %d of %d", counts[name], name, cases/50, cases)
		}
	}
}

// alternatives checks the further plans of a gang: they differ, are no better, place as many members, and keep the rules. It returns 1 if
// there are some.
func alternatives(t *testing.T, w *twin, planner *Planner, first Plan) int {
	t.Helper()
	plans, _, err := planner.Plans(w.topology, w.gang, 4)
	if err != nil || len(plans) == 0 || !slices.Equal(plans[0].Nodes, first.Nodes) || len(plans) > 4 {
		t.Fatalf("%d plans, %v: %+v; want the first to be %+v\n%+v", len(plans), err, plans, first, w.gang)
	}
	seen := map[string]bool{}
	for i, p := range plans {
		cost, ok := w.cost(p.Nodes, p.Level)
		if text := fmt.Sprint(p.Nodes); seen[text] || !ok || cost != p.Cost || p.Placed != first.Placed || !w.together(p.Nodes, p.Level) {
			t.Fatalf("plan %d of %+v: costs %+v (%v)\n%+v", i, plans, cost, ok, w.gang)
		}
		seen[fmt.Sprint(p.Nodes)] = true
		if i > 0 && (p.Level > plans[i-1].Level || p.Level == plans[i-1].Level && p.Cost.less(plans[i-1].Cost)) {
			t.Fatalf("plan %d is better than the one before: %+v\n%+v", i, plans, w.gang)
		}
	}
	return min(1, len(plans)-1)
}
