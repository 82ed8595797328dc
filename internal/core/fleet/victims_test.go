package fleet

import (
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestLeast: the plan is as good as the first of Plans in violations, highest priority and pods, and of all such plans it has the less
// important victims.
func TestLeast(t *testing.T) {
	links, found := pairs(t, 8), 0
	rapid.Check(t, func(t *rapid.T) {
		p := anyPreemption(t, links, rapid.Bool().Draw(t, "plain"))
		plans, err := p.Plans(1 << 10)
		if err != nil {
			t.Fatal(err)
		}
		least, sets, err := p.Least()
		if err != nil || (least == nil) != (len(plans) == 0) {
			t.Fatalf("%+v, %v; want %+v", least, err, plans)
		}
		if least == nil {
			return
		}
		found++
		if same, ok := p.Evaluate(least.Victims); !ok || !gocmp.Equal(same, *least) || sets < 1 {
			t.Fatalf("Evaluate: %+v, %v; want %+v, of %d sets", same, ok, least, sets)
		}
		for _, plan := range plans {
			worse := least.compareEnded(&plan)
			slices.Reverse(plan.Victims)
			if own := slices.Clone(least.Victims); worse == 0 {
				slices.Reverse(own)
				worse = slices.Compare(plan.Victims, own)
			}
			if worse > 0 {
				t.Fatalf("%+v; want %+v", least, plan)
			}
		}
		p.Exact = -1
		if _, sets, err = p.Least(); err != nil || sets != 0 {
			t.Fatalf("%d sets, %v; want none among too many victims", sets, err)
		}
	})
	if found == 0 {
		t.Error("no case had a plan")
	}
}

// TestWithout: the node is that of the simple twin, and the victims have to be known.
func TestWithout(t *testing.T) {
	links := pairs(t, 8)
	rapid.Check(t, func(t *rapid.T) {
		p := anyPreemption(t, links, false)
		mask := rapid.IntRange(0, 1<<len(p.Victims)-1).Draw(t, "victims")
		var victims []int
		for i := range p.Victims {
			if mask>>i&1 == 1 {
				victims = append(victims, i)
			}
		}
		n, err := p.Without(victims)
		if err != nil {
			t.Fatal(err)
		}
		if want := ended(p, mask); !slices.Equal(n.GPUs, want.GPUs) || n.FreeCPU != want.FreeCPU || n.FreeMemory != want.FreeMemory {
			t.Fatalf("%+v; want %+v", n, want)
		}
	})
	p := Preemption{Node: full(t, 2), Victims: []Victim{pod(1), pod(2)}, Held: each(0x1, 0x2)}
	for _, victims := range [][]int{{-1}, {2}, {1, 0}, {1, 1}} {
		if n, err := p.Without(victims); err == nil {
			t.Errorf("without %v: %+v; want an error", victims, n)
		}
	}
	p.Budgets = []int32{0}
	p.Victims[0].Pods = 0
	if n, err := p.Without(nil); err == nil {
		t.Errorf("%+v; want an error for a victim without pods", n)
	}
}

// TestDisruptions: a pod violates when one of its budgets is used up; Undo undoes that.
func TestDisruptions(t *testing.T) {
	d := NewDisruptions([]int32{1, 0, -1})
	for i, step := range []struct {
		pods     [][]int
		want     int
		exceeded []bool
	}{
		{[][]int{{0}}, 0, []bool{false, false, false}},
		{[][]int{{0}, {0, 1}}, 2, []bool{true, true, false}},
		{[][]int{{}, {2}}, 1, []bool{true, true, true}},
	} {
		if got := d.End(step.pods); got != step.want {
			t.Errorf("step %d: %d violations; want %d", i, got, step.want)
		}
		if got := d.Undo(step.pods); got != step.want {
			t.Errorf("step %d: %d violations undone; want %d", i, got, step.want)
		}
		d.End(step.pods)
		for b, want := range step.exceeded {
			if d.Exceeded(b) != want {
				t.Errorf("step %d: budget %d is exceeded: %v; want %v", i, b, !want, want)
			}
		}
	}
}

// TestCover: with many victims there is a plan when the exact choice has one. None of its victims can be left out; its highest priority
// is the lowest where there are no budgets; and in plain cases it has at most as many pods as three things that lack allow.
func TestCover(t *testing.T) {
	links, bounded := pairs(t, 8), 0
	rapid.Check(t, func(t *rapid.T) {
		plain := rapid.Bool().Draw(t, "plain")
		p := anyPreemption(t, links, plain)
		best, ok := brute(p)
		p.Exact = -1
		plans, err := p.Plans(1)
		if err != nil {
			t.Fatal(err)
		}
		if ok != (len(plans) == 1) {
			t.Fatalf("plans %+v; want %v", plans, ok)
		}
		if !ok {
			return
		}
		plan := plans[0]
		if same, ok := p.Evaluate(plan.Victims); !ok || !gocmp.Equal(same, plan) {
			t.Fatalf("Evaluate: %+v, %v; want %+v", same, ok, plan)
		}
		for i := range plan.Victims {
			if fewer, ok := p.Evaluate(slices.Delete(slices.Clone(plan.Victims), i, i+1)); ok {
				t.Fatalf("%+v is enough, too", fewer)
			}
		}
		if !plain {
			return
		}
		bounded++
		if plan.Priority != best.Priority || plan.Pods > 3*best.Pods {
			t.Fatalf("plan %+v; want the priority and at most three times the pods of %+v", plan, best)
		}
	})
	if bounded == 0 {
		t.Error("no case had the bound")
	}
}

// TestManyVictims: among more victims than are searched exactly, whole GPUs are taken from the fewest pods.
func TestManyVictims(t *testing.T) {
	n := full(t, 16)
	n.Links = nil
	p := Preemption{Node: n, Requests: request(5)}
	for i := range 20 {
		p.Victims = append(p.Victims, pod(0))
		set := GPUSet(0).With(i % 16)
		if i == 7 || i == 10 {
			set = set.With(i + 1).With(i + 2)
		}
		p.Held = append(p.Held, Held{Victims: []int{i}, GPUs: set})
	}
	plans, err := p.Plans(3)
	if err != nil || len(plans) != 1 {
		t.Fatal(plans, err)
	}
	if got, want := plans[0].Victims, []int{7, 10}; !slices.Equal(got, want) {
		t.Errorf("victims %v; want %v", got, want)
	}
}

func BenchmarkLeast(b *testing.B) {
	p := Preemption{Node: full(b, 8), Requests: request(4)}
	for i := range 8 {
		p.Victims, p.Held = append(p.Victims, pod(0)), append(p.Held, Held{Victims: []int{i}, GPUs: GPUSet(0).With(i)})
	}
	for b.Loop() {
		if plan, _, err := p.Least(); err != nil || plan == nil {
			b.Fatal(plan, err)
		}
	}
}
