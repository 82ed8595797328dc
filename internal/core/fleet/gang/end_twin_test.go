package gang

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// endTwin answers by trying all sets of holders.
type endTwin struct {
	t        *testing.T
	nodes    []fleet.Node // in the order of the fleet
	policy   fleet.Policy
	topology *Topology
	gang     *Gang
	holders  *Holders
}

// closed adds to a set who ends with its holders.
func (w *endTwin) closed(set uint) uint {
	for {
		before := set
		for i, h := range w.holders.List {
			for _, other := range h.With {
				if set>>i&1 == 1 {
					set |= 1 << other
				}
			}
		}
		if set == before {
			return set
		}
	}
}

// without returns the nodes without the holders of a set.
func (w *endTwin) without(set uint) []fleet.Node {
	nodes := slices.Clone(w.nodes)
	for i := range nodes {
		nodes[i].GPUs = slices.Clone(nodes[i].GPUs)
	}
	for i, h := range w.holders.List {
		if set>>i&1 == 1 {
			for _, part := range h.Parts {
				n := &nodes[part.Node]
				n.FreeCPU, n.FreeMemory = min(n.CPU, n.FreeCPU+part.CPU), min(n.Memory, n.FreeMemory+part.Memory)
			}
		}
	}
	for _, held := range w.holders.Held {
		if slices.ContainsFunc(held.Holders, func(i int) bool { return set>>i&1 == 0 }) {
			continue
		}
		for i := range held.GPUs.All() {
			g := &nodes[held.Node].GPUs[i]
			g.Free = min(fleet.Whole, g.Free+cmp.Or(held.Amount, g.Unit))
		}
	}
	return nodes
}

// level returns the narrowest level on which the least number of members fits without the holders of a set; -2 for none.
func (w *endTwin) level(set uint) int {
	f, err := fleet.New(w.without(set), 0)
	if err != nil {
		w.t.Fatal(err)
	}
	g := *w.gang
	if g.Segment.Size == 0 {
		g.Members = slices.Clone(g.Members[:g.Min])
		for _, m := range w.gang.Members[g.Min:] {
			if m.Node != Unbound {
				g.Members = append(g.Members, m)
			}
		}
	}
	plan, refusal, err := NewPlanner(fleet.NewDecider(f, w.policy)).Plan(w.topology, &g)
	if err != nil {
		w.t.Fatal(err)
	}
	if refusal != nil {
		return -2
	}
	return plan.Level
}

// total returns the violations, the highest priority and the pods of a set.
func (w *endTwin) total(set uint) (sum [3]int) {
	used := make([]int, len(w.holders.Budgets))
	sum[1] = math.MinInt32
	for i, h := range w.holders.List {
		if set>>i&1 == 0 {
			continue
		}
		sum[1], sum[2] = max(sum[1], int(h.Priority)), sum[2]+h.Pods
		for _, pod := range h.Budgets {
			violates := 0
			for _, b := range pod {
				if used[b]++; used[b] > int(w.holders.Budgets[b]) {
					violates = 1
				}
			}
			sum[0] += violates
		}
	}
	return sum
}

// best returns what the best sets have in all, and the narrowest level of them. The result is false if the gang does not fit, or fits
// without ending anything.
func (w *endTwin) best() (sum [3]int, level int, found bool) {
	if w.level(0) > -2 || w.level(1<<len(w.holders.List)-1) == -2 {
		return sum, 0, false
	}
	type candidate struct {
		set uint
		sum [3]int
	}
	var list []candidate
	for set := range uint(1) << len(w.holders.List) {
		if w.closed(set) == set {
			list = append(list, candidate{set, w.total(set)})
		}
	}
	slices.SortFunc(list, func(a, b candidate) int { return slices.Compare(a.sum[:], b.sum[:]) })
	level = -2
	for _, c := range list {
		if level > -2 && c.sum != sum {
			break
		}
		if at := w.level(c.set); at > level {
			sum, level = c.sum, at
		}
	}
	return sum, level, true
}

// irreducible checks that no holder of a set can be left out, apart from those that end with others.
func (w *endTwin) irreducible(set uint) {
	w.t.Helper()
	for i := range w.holders.List {
		if set>>i&1 == 0 {
			continue
		}
		if fewer := set &^ (1 << i); w.closed(fewer) == fewer && w.level(fewer) > -2 {
			w.t.Fatalf("the gang fits without ending %d of %b\n%+v\n%+v", i, set, w.holders, w.gang)
		}
	}
}

// randomHolders lets holders have most of what the nodes have.
func randomHolders(random *rand.Rand, nodes []fleet.Node, count int) *Holders {
	h := &Holders{List: make([]Holder, count), Budgets: []int32{0, 1, 2}}
	budgets := random.IntN(2) == 0
	for i := range h.List {
		holder := &h.List[i]
		holder.Pods, holder.Priority, holder.Started = 1+random.IntN(2)*random.IntN(3), random.Int32N(4), random.Int64N(3)
		for range random.IntN(holder.Pods + 1) {
			if budgets {
				holder.Budgets = append(holder.Budgets, []int{random.IntN(3)})
			}
		}
		if random.IntN(12) == 0 && budgets && len(holder.Budgets) > 0 {
			holder.Budgets[0] = []int{0, 2}
		}
		if other := random.IntN(4 * count); other < count && other != i {
			holder.With = []int{other}
		}
	}
	part := func(holder, node int) *Part {
		for k := range h.List[holder].Parts {
			if p := &h.List[holder].Parts[k]; p.Node == node {
				return p
			}
		}
		h.List[holder].Parts = append(h.List[holder].Parts, Part{Node: node})
		return &h.List[holder].Parts[len(h.List[holder].Parts)-1]
	}
	for node := range nodes {
		n := &nodes[node]
		// Most holders are on one node.
		holder := func() int {
			if own := node + len(nodes)*random.IntN(1+count/len(nodes)); own < count && random.IntN(8) > 0 {
				return own
			}
			return random.IntN(count)
		}
		for range random.IntN(3) {
			p := part(holder(), node)
			p.CPU, p.Memory = random.Int64N(n.CPU-n.FreeCPU+1), random.Int64N(n.Memory-n.FreeMemory+1)
		}
		for i := range n.GPUs {
			g := &n.GPUs[i]
			if random.IntN(8) > 0 {
				g.Free = 0
			}
			if g.Free > 0 || random.IntN(12) == 0 {
				continue
			}
			for range g.Total() / g.Unit {
				held := Held{Node: node, Holders: []int{holder()}, GPUs: fleet.GPUSet(0).With(i)}
				if random.IntN(2) == 0 {
					held.Amount = g.Unit
				}
				if other := holder(); random.IntN(6) == 0 && other != held.Holders[0] {
					held.Holders = append(held.Holders, other)
				}
				h.Held = append(h.Held, held)
			}
		}
	}
	return h
}

// endCase returns a random question.
func endCase(t *testing.T, random *rand.Rand, number, holders int) (*endTwin, *Planner) {
	nodes := randomNodes(t, random)
	nodes = nodes[:min(5, len(nodes))]
	f, err := fleet.New(nodes, 0)
	if err != nil {
		t.Fatal(err)
	}
	inOrder := make([]fleet.Node, f.Len())
	for i := range inOrder {
		inOrder[i] = *copyOf(f.Node(i))
	}
	h := randomHolders(random, inOrder, holders)
	if f, err = fleet.New(inOrder, 0); err != nil {
		t.Fatal(err)
	}
	mix := fleet.Mix{{Shape: fleet.Shape{CPU: 2000, Resource: gpu, GPUs: 1}, Weight: 1}}
	policy, err := fleet.NewPolicy(fleet.PolicyNames()[random.IntN(3)], fleet.NewMeasure(mix))
	if err != nil {
		t.Fatal(err)
	}
	topology := NewTopology(f, []string{"zone", "rack"}[:random.IntN(3)], func(level int, node string) string {
		return []string{"", "a", "b", "c", "a", "b"}[(int(node[5]-'0')*(level+1)+number)%6]
	})
	w := &endTwin{t: t, nodes: inOrder, policy: policy, topology: topology, gang: randomGang(random, topology, f.Len()), holders: h}
	return w, NewPlanner(fleet.NewDecider(f, policy))
}

func bits(holders []int) (set uint) {
	for _, i := range holders {
		set |= 1 << i
	}
	return set
}

// TestEndTwin compares the holders that end in small fleets with the best of all sets.
func TestEndTwin(t *testing.T) {
	seed, cases := uint64(7), 1000
	if os.Getenv("BERTH_SOAK") != "" {
		cases = 10_000
	}
	t.Logf("seed %d, %d cases", seed, cases)
	random := rand.New(rand.NewPCG(seed, 0))
	counts := map[string]int{}
	for number := range cases {
		w, p := endCase(t, random, number, 1+random.IntN(9))
		mark := p.fleet.Checkpoint() // as a caller that has placed another gang
		before := contents(p.fleet)
		got, err := p.End(w.topology, w.gang, w.holders)
		if err != nil {
			t.Fatal(err)
		}
		if after := contents(p.fleet); after != before {
			t.Fatalf("case %d: the fleet changed from %s to %s", number, before, after)
		}
		p.fleet.Rollback(mark)
		sum, level, found := w.best()
		if found != (got != nil) {
			t.Fatalf("case %d: %+v; want %v, %v\n%+v\n%+v", number, got, sum, found, w.holders, w.gang)
		}
		if !found {
			counts["without an answer"]++
			continue
		}
		set := bits(got.Holders)
		if own := [3]int{got.Violations, int(got.Priority), got.Pods}; own != w.total(set) || !got.Exact || own != sum || w.closed(set) != set {
			t.Fatalf("case %d: %+v; want %v\n%+v\n%+v", number, got, sum, w.holders, w.gang)
		}
		if at := w.level(set); at != level && w.gang.Segment.Size == 0 {
			t.Fatalf("case %d: %+v is on level %d; want %d\n%+v\n%+v", number, got, at, level, w.holders, w.gang)
		}
		w.irreducible(set)
		w.planned(p, got, set)
		e, err := p.newEnding(w.topology, w.gang, w.holders)
		if err != nil {
			t.Fatal(err)
		}
		if !e.slow {
			counts["not slow"]++
			if set, exact := e.modelled(slices.Repeat([]bool{true}, len(w.holders.List))); exact {
				counts["modelled"]++
				if total := w.total(bits(positions(set))); total != sum {
					t.Fatalf("case %d: the model has %v, %v; want %v\n%+v\n%+v", number, set, total, sum, w.holders, w.gang)
				}
			}
		}
		counts["ended"]++
		count(counts, w, got)
	}
	t.Log(counts)
	if counts["modelled"] < counts["not slow"]*93/100 {
		t.Errorf("the model has the answer in %d of %d cases; want at least 93 in 100", counts["modelled"], counts["not slow"])
	}
	for _, name := range []string{"without an answer", "modelled", "ended", "with violations", "with a budget kept", "in segments", "with several", "on several nodes", "with others", "of two classes", "on a required level"} {
		if counts[name] < cases/50 {
			t.Errorf("%d cases are %s; want at least %d of %d", counts[name], name, cases/50, cases)
		}
	}
}

func count(counts map[string]int, w *endTwin, got *Ended) {
	list := w.holders.List
	has := func(name string, is bool) {
		if is {
			counts[name]++
		}
	}
	has("with violations", got.Violations > 0)
	has("with a budget kept", got.Violations == 0 && slices.ContainsFunc(got.Holders, func(i int) bool { return len(list[i].Budgets) > 0 }))
	has("in segments", w.gang.Segment.Size > 0)
	has("with several", len(got.Holders) > 1)
	has("on several nodes", slices.ContainsFunc(got.Holders, func(i int) bool { return len(list[i].Parts) > 1 }))
	has("with others", slices.ContainsFunc(got.Holders, func(i int) bool { return len(list[i].With) > 0 }))
	has("of two classes", len(w.gang.Classes) > 1)
	has("on a required level", w.gang.Required > Anywhere)
}

// planned checks the plan of an answer: it is that of the planner on the fleet without the holders.
func (w *endTwin) planned(p *Planner, got *Ended, set uint) {
	w.t.Helper()
	f, err := fleet.New(w.without(set), 0)
	if err != nil {
		w.t.Fatal(err)
	}
	plan, refusal, err := NewPlanner(fleet.NewDecider(f, w.policy)).Plan(w.topology, w.gang)
	if err != nil || refusal != nil || fmt.Sprint(plan) != fmt.Sprint(got.Plan) {
		w.t.Fatalf("the plan is %+v; want %+v, %v, %v", got.Plan, plan, refusal, err)
	}
	again, err := p.End(w.topology, w.gang, w.holders)
	if err != nil || fmt.Sprint(again) != fmt.Sprint(got) {
		w.t.Fatalf("the second answer is %+v, the first %+v, %v", again, got, err)
	}
}

// contents is what is known of a fleet, generations included.
func contents(f *fleet.Fleet) string {
	text := fmt.Sprintln(f.Free())
	for i := range f.Len() {
		text += fmt.Sprintf("%+v\n", *f.Node(i))
	}
	return text
}
