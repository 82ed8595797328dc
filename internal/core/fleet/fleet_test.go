package fleet

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

var plain = cmp.Options{cmp.AllowUnexported(Node{}), cmp.Comparer(func(a, b ModelSet) bool { return a == b }), cmpopts.EquateEmpty()}

func someNodes() []Node {
	return []Node{Empty("a", "T4", 8000, 64_000, 2), Empty("b", "G2", 96_000, 393_216, 8), Empty("c", "T4", 4000, 1000, 1), Empty("d", "", 16_000, 64_000, 0)}
}

// twin is a fleet without a log: it copies everything at a checkpoint.
type twin struct {
	nodes map[string]*Node
	saved []map[string]*Node
}

func copied(nodes map[string]*Node) map[string]*Node {
	result := map[string]*Node{}
	for name, n := range nodes {
		same := *n
		same.GPUs = slices.Clone(n.GPUs)
		result[name] = &same
	}
	return result
}

// apply adds the pod's request, times sign; it tells whether the result is a node that can be.
func (w *twin) apply(name string, op Op, sign int64) bool {
	n := w.nodes[name]
	after := *copied(map[string]*Node{"": n})[""]
	after.FreeCPU += sign * op.Shape.CPU
	after.FreeMemory += sign * op.Shape.Memory
	for i := range op.GPUs.All() {
		if sign < 0 && after.GPUs[i].State != Usable {
			return false
		}
		after.GPUs[i].Free += int32(sign) * op.Shape.Share
	}
	if after.validate() != nil || sign < 0 && op.Shape.GPUs > 0 && !op.Shape.Models.Allows(n.Model) {
		return false
	}
	*n = after
	return true
}

// TestTwin: random operations, checkpoints, rollbacks and commits have the effects that they have on a simple twin, also on
// sums, and the decider with its cache answers like a new one.
func TestTwin(t *testing.T) {
	shapes := []Shape{
		{CPU: 1000, Memory: 1000, GPUs: 1, Share: 500}, {CPU: 2000, Memory: 500, GPUs: 1, Share: Whole}, {CPU: 500, Memory: 100, GPUs: 2, Share: Whole, Models: Models("G2")},
		{CPU: 3000, Memory: 900}, {CPU: 100, Memory: 10, GPUs: 1, Share: 300, Models: Models("T4")},
	}
	measure := NewMeasure(TypicalShapes(shapes, 1))
	rapid.Check(t, func(t *rapid.T) {
		f, err := New(someNodes(), rapid.Uint64().Draw(t, "seed"))
		if err != nil {
			t.Fatal(err)
		}
		d := NewDecider(f, Pack(measure))
		w := &twin{nodes: map[string]*Node{}}
		for _, n := range someNodes() {
			w.nodes[n.Name] = &n
		}
		var marks []Mark
		var generations [][]uint64
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			shape := rapid.SampledFrom(shapes).Draw(t, "shape")
			node := rapid.IntRange(0, 3).Draw(t, "node")
			n := f.Node(node)
			op := Op{node, Tightest(n, shape), shape}
			if rapid.Bool().Draw(t, "any GPUs") {
				op.GPUs = GPUSet(rapid.Uint64Range(0, 7).Draw(t, "GPUs"))
			}
			valid := op.GPUs.Len() == int(shape.GPUs) && op.GPUs>>len(n.GPUs) == 0
			switch what := rapid.SampledFrom([]string{"place", "place", "remove", "state", "override", "checkpoint", "rollback", "commit"}).Draw(t, "what"); what {
			case "place", "remove":
				sign, do := int64(-1), f.Place
				if what == "remove" {
					sign, do = 1, f.Remove
				}
				if want, err := valid && w.apply(n.Name, op, sign), do(op); want != (err == nil) {
					t.Fatalf("%s %v on %s: %v; want success %v", what, op, n.Name, err, want)
				}
			case "state":
				gpu, state := rapid.IntRange(0, 8).Draw(t, "gpu"), rapid.SampledFrom([]State{Usable, Draining, Gone}).Draw(t, "state")
				if err := setState(f, node, gpu, state); (err == nil) != (gpu < len(n.GPUs)) {
					t.Fatal(err)
				} else if err == nil {
					w.nodes[n.Name].GPUs[gpu].State = state
				}
			case "override":
				other := *n
				other.CPU += rapid.Int64Range(0, 2).Draw(t, "cores") * 1000
				other.FreeCPU = rapid.Int64Range(0, other.CPU+1).Draw(t, "CPU")
				other.GPUs = slices.Clone(n.GPUs)
				if len(other.GPUs) > 0 {
					other.GPUs[0].Free = rapid.SampledFrom([]int32{0, 500, Whole}).Draw(t, "free")
				}
				if err := f.Override(node, other); (err == nil) != (other.FreeCPU <= other.CPU) {
					t.Fatal(err)
				} else if err == nil {
					w.nodes[n.Name] = new(other)
					w.nodes[n.Name].GPUs = slices.Clone(other.GPUs)
				}
			case "checkpoint":
				marks, w.saved, generations = append(marks, f.Checkpoint()), append(w.saved, copied(w.nodes)), append(generations, slices.Clone(f.generations))
			default:
				if len(marks) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(marks)-1).Draw(t, "mark")
				if what == "commit" {
					f.Commit(marks[i])
				} else {
					f.Rollback(marks[i])
					w.nodes = copied(w.saved[i])
					if !slices.Equal(f.generations, generations[i]) {
						t.Fatalf("generations %v; want %v", f.generations, generations[i])
					}
				}
				marks, w.saved, generations = marks[:i], w.saved[:i], generations[:i]
			}
			same(t, f, w)
			sameDecision(t, f, d, measure, shape)
		}
	})
}

func same(t *rapid.T, f *Fleet, w *twin) {
	var free Totals
	for i := range f.Len() {
		n := f.Node(i)
		want := *w.nodes[n.Name]
		want.index, want.generation = n.index, n.generation
		if diff := cmp.Diff(want, *n, plain); diff != "" {
			t.Fatalf("node %s (-want +got):\n%s", n.Name, diff)
		}
		free.CPU += want.FreeCPU
		free.Memory += want.FreeMemory
		free.GPU += want.Idle()
	}
	if free != f.Free() {
		t.Fatalf("free %+v; want %+v", f.Free(), free)
	}
}

func sameDecision(t *rapid.T, f *Fleet, d *Decider, measure *Measure, s Shape) {
	got, ok := d.Best(s)
	want, wantOK := NewDecider(f, Pack(measure)).Best(s)
	if got != want || ok != wantOK {
		t.Fatalf("the cache says %v, %v; a new decider %v, %v", got, ok, want, wantOK)
	}
	if explained := f.Explain(s); (explained.Fits > 0) != ok {
		t.Fatalf("decision %v, but %s", ok, explained)
	}
}

// TestAskedOnce counts evaluations: all nodes for a new shape, then only those that have changed, and none after a rollback.
func TestAskedOnce(t *testing.T) {
	shape := Shape{CPU: 100, Memory: 10, GPUs: 1, Share: 300}
	f, err := New(someNodes(), 1)
	if err != nil {
		t.Fatal(err)
	}
	d := NewDecider(f, Pack(NewMeasure(TypicalShapes([]Shape{shape}, 1))))
	step := func(name string, want uint64) Op {
		t.Helper()
		before := d.Stats().Evaluations
		op, _ := d.Best(shape)
		if got := d.Stats().Evaluations - before; got != want {
			t.Errorf("%s: %d evaluations; want %d", name, got, want)
		}
		return op
	}
	op := step("first", 4)
	step("again", 0)
	mark := f.Checkpoint()
	if err := f.Place(op); err != nil {
		t.Fatal(err)
	}
	f.Rollback(mark)
	step("after a rollback whose state was not read", 0)
	mark = f.Checkpoint()
	if err := f.Place(op); err != nil {
		t.Fatal(err)
	}
	step("after one changed", 1)
	f.Rollback(mark)
	step("after it changed back", 1)
	if err := setState(f, op.Node, 0, Gone); err != nil {
		t.Fatal(err)
	}
	step("after a GPU went", 1)
}

// TestOrder: ties go by names and seed, whatever the order of the list, and no two seeds of these are equal.
func TestOrder(t *testing.T) {
	names := func(seed uint64, reverse bool) string {
		nodes := someNodes()
		if reverse {
			slices.Reverse(nodes)
		}
		f, err := New(nodes, seed)
		if err != nil {
			t.Fatal(err)
		}
		var list strings.Builder
		for i := range f.Len() {
			list.WriteString(f.Node(i).Name)
		}
		return list.String()
	}
	seen := map[string]bool{}
	for seed := range uint64(200) {
		if names(seed, false) != names(seed, true) {
			t.Errorf("seed %d: the order of the list counts", seed)
		}
		seen[names(seed, false)] = true
	}
	if len(seen) != 24 {
		t.Errorf("200 seeds give %d of the 24 orders", len(seen))
	}
}

func TestFit(t *testing.T) {
	n := Empty("n", "T4", 8500, 1000, 4)
	n.GPUs = []GPU{{Free: 400}, {Free: Whole}, {Free: Whole, State: Draining}, {Free: Whole, State: Gone}}
	tests := map[string]struct {
		shape Shape
		want  string
	}{
		"fits":         {Shape{CPU: 8500, Memory: 1000, GPUs: 1, Share: Whole}, "the pod fits"},
		"model":        {Shape{GPUs: 1, Share: 100, Models: Models("V100", "A10")}, `its GPUs are of the model "T4", the pod accepts A10|V100`},
		"number":       {Shape{GPUs: 5, Share: 100}, "it has 4 GPUs, the pod requests 5"},
		"health":       {Shape{GPUs: 3, Share: 100}, "2 of its GPUs are usable (1 draining, 1 gone), the pod requests 3"},
		"whole":        {Shape{GPUs: 2, Share: Whole}, "1 of its GPUs are free, the pod requests 2"},
		"share":        {Shape{GPUs: 2, Share: 500}, "1 of its GPUs have 500 thousandths free, the pod requests 2"},
		"CPU":          {Shape{CPU: 8600, GPUs: 1, Share: 500}, "8.5 cores are free, the pod requests 8.6"},
		"memory":       {Shape{Memory: 1001}, "1000 MiB of memory are free, the pod requests 1001"},
		"no GPU, fits": {Shape{CPU: 1, Models: Models("A10")}, "the pod fits"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			reason := Fit(&n, test.shape)
			if got := reason.String(); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if Fits(&n, &test.shape) != (reason.Lack == None) {
				t.Error("fits says something else")
			}
		})
	}
}

// TestMeasure compares F and Phi with values computed by hand. The mix is 3 pods of half a GPU with 2 cores and 1,000 MiB, and
// one of 2 GPUs with 12 cores and 5,000 MiB: 3.5 GPUs in all, 18 cores, 8,000 MiB.
func TestMeasure(t *testing.T) {
	half, two := Shape{CPU: 2000, Memory: 1000, GPUs: 1, Share: 500}, Shape{CPU: 12_000, Memory: 5000, GPUs: 2, Share: Whole}
	m := NewMeasure(TypicalShapes([]Shape{half, half, half, two}, 1))
	tests := map[string]struct {
		cpu           int64
		memory        int64
		free          []int32
		fragmentation float64
		strandedIn    float64
	}{
		"all fit":              {64_000, 64_000, []int32{1000, 1000}, 0, 0},
		"a remainder":          {64_000, 64_000, []int32{1000, 1000, 400}, 0.75*400 + 0.25*400, 0},
		"no two whole GPUs":    {64_000, 64_000, []int32{1000, 600}, 0.25 * 1600, 0},
		"CPU for half a GPU":   {2000, 64_000, []int32{1000, 1000}, 0.25 * 2000, 2000 - 2000*3500/18_000.},
		"no CPU":               {0, 64_000, []int32{1000}, 1000, 1000},
		"memory for one GPU":   {64_000, 8000, []int32{1000, 1000, 1000, 1000}, 0, 500},
		"nothing idle, no CPU": {0, 0, []int32{0, 0}, 0, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n := Node{Name: "n", Model: "T4", CPU: 64_000, FreeCPU: test.cpu, Memory: 64_000, FreeMemory: test.memory}
			for _, free := range test.free {
				n.GPUs = append(n.GPUs, GPU{Free: free})
			}
			unit := float64(m.Unit())
			if got := float64(m.Fragmentation(&n)) / unit; got != test.fragmentation {
				t.Errorf("fragmentation %v; want %v", got, test.fragmentation)
			}
			if got := float64(m.Stranded(&n)) / unit; math.Abs(got-test.strandedIn) > 1 {
				t.Errorf("stranded %v; want %v", got, test.strandedIn)
			}
		})
	}
}

// TestStep compares the steps with the formula.
func TestStep(t *testing.T) {
	m := NewMeasure(Mix{{Shape: Shape{GPUs: 1, Share: Whole}, Weight: 7}})
	for milli := -8000.5; milli <= 8000; milli += 0.25 {
		want := int32(math.Floor(100 / (1 + math.Exp(-milli/1000))))
		if got := m.step(int64(math.Floor(milli * 7))); got != want && m.step(int64(math.Ceil(milli*7))) != want {
			t.Fatalf("a fall of %v: step %d; want %d", milli, got, want)
		}
	}
	if m.step(0) != 50 || m.step(-1) != 49 {
		t.Errorf("steps %d and %d; want 50 for no change and 49 for a little growth", m.step(0), m.step(-1))
	}
}

// TestPlan: pods in place of others, without a trace of it left.
func TestPlan(t *testing.T) {
	f, err := New([]Node{Empty("a", "T4", 8000, 8000, 1)}, 1)
	if err != nil {
		t.Fatal(err)
	}
	whole := Shape{CPU: 1000, Memory: 1000, GPUs: 1, Share: Whole}
	victim := Op{0, GPUSet(0).With(0), whole}
	if err := f.Place(victim); err != nil {
		t.Fatal(err)
	}
	before, generation := *f.Node(0), f.Node(0).Generation()
	d := NewDecider(f, Pack(NewMeasure(TypicalShapes([]Shape{whole}, 1))))
	got, why, err := planned(d, []Op{victim}, []Shape{whole})
	if err != nil || why != nil || !slices.Equal(got, []Op{victim}) {
		t.Errorf("plan %v, %v, %v; want the place of the victim", got, why, err)
	}
	got, why, err = planned(d, nil, []Shape{whole})
	want := "fits on 0 of 1 nodes: 1 lack free GPUs (nearest a: 0 of its GPUs are free, the pod requests 1)"
	if err != nil || len(got) > 0 || fmt.Sprint(why) != want {
		t.Errorf("plan %v, %v, %v; want %s", got, why, err, want)
	}
	if _, _, err = planned(d, []Op{victim, victim}, nil); err == nil {
		t.Error("a victim was removed twice")
	}
	if diff := cmp.Diff(before, *f.Node(0), plain); diff != "" || f.Node(0).Generation() != generation {
		t.Errorf("the node has changed:\n%s", diff)
	}
}

// TestRefused: nodes that cannot be.
func TestRefused(t *testing.T) {
	tests := map[string][]Node{
		"name twice":    {Empty("a", "", 1, 1, 1), Empty("a", "", 1, 1, 1)},
		"too many GPUs": {Empty("a", "", 1, 1, MaxGPUs+1)},
		"negative":      {Empty("a", "", -1, 1, 1)},
		"too much free": {{Name: "a", FreeCPU: 1}},
		"GPU over full": {{Name: "a", GPUs: []GPU{{Free: Whole + 1}}}},
	}
	for name, nodes := range tests {
		if _, err := New(nodes, 1); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestUnusable: no pod is placed on a GPU that is draining or gone, and a pod that is there can leave.
func TestUnusable(t *testing.T) {
	for _, state := range []State{Draining, Gone} {
		f, err := New([]Node{Empty("a", "T4", 8000, 8000, 2)}, 1)
		if err != nil {
			t.Fatal(err)
		}
		op := Op{0, GPUSet(0).With(0), Shape{GPUs: 1, Share: 500}}
		if err := f.Place(op); err != nil {
			t.Fatal(err)
		}
		if err := setState(f, 0, 0, state); err != nil {
			t.Fatal(err)
		}
		if err := f.Place(op); err == nil || f.Free().GPU != Whole {
			t.Errorf("%v: %v, free %+v; want a refusal", state, err, f.Free())
		}
		if err := f.Remove(op); err != nil || f.Free().GPU != Whole {
			t.Errorf("%v: %v, free %+v", state, err, f.Free())
		}
	}
}

// TestEndedCheckpoint: a checkpoint ends once.
func TestEndedCheckpoint(t *testing.T) {
	f, err := New(someNodes(), 1)
	if err != nil {
		t.Fatal(err)
	}
	ended := f.Checkpoint()
	f.Commit(ended)
	for name, mark := range map[string]Mark{"never made": {}, "ended": ended} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a rollback to a checkpoint that was %s", name)
				}
			}()
			f.Rollback(mark)
		}()
	}
}

// TestOverride: a node keeps its name, and Replace is refused where Override is not.
func TestOverride(t *testing.T) {
	f, err := New(someNodes(), 1)
	if err != nil {
		t.Fatal(err)
	}
	n := *f.Node(0)
	other := n
	other.Name = f.Node(1).Name
	if f.Override(0, other) == nil || f.Override(-1, n) == nil || f.Override(f.Len(), n) == nil {
		t.Error("a node took the place of another one")
	}
	mark := f.Checkpoint()
	n.FreeCPU = 0
	if f.Replace(0, n) == nil {
		t.Error("a node was replaced while a checkpoint was open")
	}
	if err := f.Override(0, n); err != nil || f.Node(0).FreeCPU != 0 || f.Node(0).Index() != 0 {
		t.Errorf("%+v, %v; want no free CPU", f.Node(0), err)
	}
	f.Rollback(mark)
	if f.Node(0).FreeCPU == 0 {
		t.Error("the rollback did not undo the override")
	}
}

// planned says where pods would go if others were gone, all or none, and changes nothing. Of pods that do not all fit, the result is the
// operations of those before the first that does not, which the explanation is about. The error is that of a pod that is not there to
// go.
func planned(d *Decider, gone []Op, pods []Shape) ([]Op, *Explanation, error) {
	mark := d.fleet.Checkpoint()
	defer d.fleet.Rollback(mark)
	for _, op := range gone {
		if err := d.fleet.Remove(op); err != nil {
			return nil, nil, err
		}
	}
	var placements []Op
	for _, pod := range pods {
		op, ok := d.Best(pod)
		if !ok {
			why := d.fleet.Explain(pod)
			return placements, &why, nil
		}
		ops, _, _ := d.Together(op.Node, []Shape{pod})
		for _, op := range ops {
			if err := d.fleet.Place(op); err != nil {
				return placements, nil, err
			}
		}
		placements = append(placements, ops...)
	}
	return placements, nil, nil
}

// setState overrides the state of a GPU.
func setState(f *Fleet, node, gpu int, state State) error {
	n := *f.Node(node)
	if gpu >= len(n.GPUs) {
		return fmt.Errorf("node %d has no GPU %d", node, gpu)
	}
	n.GPUs = slices.Clone(n.GPUs)
	n.GPUs[gpu].State = state
	return f.Override(node, n)
}
