package fleet

import (
	"cmp"
	"math"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement/shared"
)

const gpuResource = "nvidia.com/gpu"

// pairs are links of GPUs of which 0 and 1, 2 and 3, ... have NVLinks.
func pairs(t testing.TB, gpus int) *shared.Topology {
	t.Helper()
	links, numa := make(gpu.Topology, gpus), make([]int, gpus)
	for i := range links {
		links[i] = make([]gpu.Link, gpus)
		for k := range links[i] {
			links[i][k] = gpu.Link{Path: gpu.PathSystem}
			if i/2 == k/2 && i != k {
				links[i][k].Kind, links[i][k].Count = gpu.LinkNVLink, 4
			}
		}
	}
	topology, err := shared.NewCache(shared.Options{}).Topology(links, numa)
	if err != nil {
		t.Fatal(err)
	}
	return topology
}

// full is a node without a free GPU.
func full(t testing.TB, gpus int) *Node {
	n := Empty("n", "H100", 64_000, 512_000, gpus)
	n.Links = pairs(t, gpus)
	for i := range n.GPUs {
		n.GPUs[i] = GPU{Resource: gpuResource, Unit: Whole, Physical: uint8(i)}
	}
	return &n
}

func request(gpus int32) []Shape { return []Shape{{Resource: gpuResource, GPUs: gpus}} }

// pod is a victim of one pod.
func pod(priority int32) Victim { return Victim{Pods: 1, Priority: priority} }

// each is one holding per victim: victim i has the GPUs of sets[i].
func each(sets ...GPUSet) []Held {
	var held []Held
	for i, set := range sets {
		held = append(held, Held{Victims: []int{i}, GPUs: set})
	}
	return held
}

func TestPlans(t *testing.T) {
	busy := func(n *Node, cpu int64) *Node { n.FreeCPU = cpu; return n }
	tests := map[string]struct {
		p    Preemption
		want []int
	}{
		"one victim of four GPUs rather than four of one": {
			Preemption{Node: full(t, 8), Requests: request(4), Victims: []Victim{pod(5), pod(5), pod(5), pod(5), pod(5)}, Held: each(0x0f, 0x10, 0x20, 0x40, 0x80)}, []int{0},
		},
		"four of a lower priority rather than one": {
			Preemption{Node: full(t, 8), Requests: request(4), Victims: []Victim{pod(6), pod(5), pod(5), pod(5), pod(5)}, Held: each(0x0f, 0x10, 0x20, 0x40, 0x80)}, []int{1, 2, 3, 4},
		},
		"the two whose GPUs are linked": {
			Preemption{Node: full(t, 8), Requests: request(2), Victims: []Victim{pod(5), pod(5), pod(5), pod(5)}, Held: each(0x01, 0x04, 0x10, 0x08)}, []int{1, 3},
		},
		"links come after the number of pods": {
			Preemption{Node: full(t, 8), Requests: request(2), Victims: []Victim{pod(5), pod(5), pod(5)}, Held: each(0x01|0x04, 0x10, 0x20)}, []int{0},
		},
		"a budget is kept, whatever the priority": {
			Preemption{
				Node: full(t, 2), Requests: request(1), Victims: []Victim{pod(9), {Pods: 1, Priority: 1, Budgets: [][]int{{0}}}}, Held: each(0x1, 0x2), Budgets: []int32{0},
			}, []int{0},
		},
		"a budget allows one pod": {
			Preemption{
				Node: full(t, 3), Requests: request(2), Budgets: []int32{1}, Held: each(0x1, 0x2, 0x4),
				Victims: []Victim{{Pods: 1, Budgets: [][]int{{0}}}, {Pods: 1, Budgets: [][]int{{0}}}, pod(3)},
			}, []int{1, 2},
		},
		"the younger one": {
			Preemption{Node: full(t, 2), Requests: request(1), Victims: []Victim{{Pods: 1, Started: 7}, {Pods: 1, Started: 3}}, Held: each(0x1, 0x2)}, []int{0},
		},
		"a lower sum of priorities": {
			Preemption{Node: full(t, 3), Requests: request(2), Victims: []Victim{pod(5), pod(4), pod(3)}, Held: each(0x1|0x4, 0, 0)}, []int{0},
		},
		"a shared claim is free when all its pods have ended": {
			Preemption{Node: full(t, 2), Requests: request(2), Victims: []Victim{pod(5), pod(5), pod(5)}, Held: []Held{{Victims: []int{0, 2}, GPUs: 0x3}}}, []int{0, 2},
		},
		"a group counts all its pods": {
			Preemption{Node: full(t, 3), Requests: request(2), Victims: []Victim{{Pods: 3, Priority: 5}, pod(5), pod(5)}, Held: each(0x3, 0x1, 0x4)}, []int{1, 2},
		},
		"the CPU lacks, not GPUs": {
			Preemption{
				Node: busy(new(Empty("n", "", 4000, 1000, 0)), 0), Requests: []Shape{{CPU: 2000}},
				Victims: []Victim{{Pods: 1, CPU: 1500}, {Pods: 1, CPU: 1500}, {Pods: 1, CPU: 2500}},
			}, []int{2},
		},
		"GPUs and CPU": {
			Preemption{
				Node: busy(full(t, 2), 0), Requests: []Shape{{Resource: gpuResource, GPUs: 1, CPU: 2000}},
				Victims: []Victim{{Pods: 1, CPU: 1000}, {Pods: 1, CPU: 1000}, {Pods: 1, CPU: 2000}}, Held: each(0x1, 0x2),
			}, []int{1, 2},
		},
		"nothing helps": {
			Preemption{Node: full(t, 2), Requests: request(2), Victims: []Victim{pod(5)}, Held: each(0x1)}, nil,
		},
		"nothing has to end": {
			Preemption{Node: new(Empty("n", "", 4000, 1000, 1)), Requests: []Shape{{GPUs: 1, Share: 500}}, Victims: []Victim{pod(5)}, Held: each(0x1)}, nil,
		},
		"a victim with a GPU that drains does not help": {
			Preemption{Node: draining(full(t, 2)), Requests: request(1), Victims: []Victim{pod(1), pod(5)}, Held: each(0x1, 0x2)}, []int{1},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			plans, err := test.p.Plans(1)
			if err != nil {
				t.Fatal(err)
			}
			var got []int
			if len(plans) > 0 {
				got = plans[0].Victims
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("victims %v; want %v", got, test.want)
			}
		})
	}
}

func draining(n *Node) *Node { n.GPUs[0].State = Draining; return n }

func TestPlansRefuse(t *testing.T) {
	bad := func(change func(*Preemption)) *Preemption {
		p := &Preemption{Node: full(t, 2), Requests: request(1), Victims: []Victim{pod(1), pod(2)}, Held: each(0x1, 0x2)}
		change(p)
		return p
	}
	tests := map[string]*Preemption{
		"an unknown victim":     bad(func(p *Preemption) { p.Held[0].Victims = []int{2} }),
		"a victim listed twice": bad(func(p *Preemption) { p.Held[0].Victims = []int{1, 1} }),
		"no holder":             bad(func(p *Preemption) { p.Held[0].Victims = nil }),
		"an unknown GPU":        bad(func(p *Preemption) { p.Held[0].GPUs = 0x4 }),
		"an unknown budget":     bad(func(p *Preemption) { p.Victims[0].Budgets = [][]int{{0}} }),
		"too many pods":         bad(func(p *Preemption) { p.Victims[0].Pods = MaxPods + 1 }),
		"no pod":                bad(func(p *Preemption) { p.Victims[0].Pods = 0 }),
		"a bad request":         bad(func(p *Preemption) { p.Requests[0].GPUs = -1 }),
		"a bad node":            bad(func(p *Preemption) { p.Node.GPUs[0].Free = -1 }),
		"too many victims":      bad(func(p *Preemption) { p.Victims = make([]Victim, MaxVictims+1) }),
	}
	for name, p := range tests {
		t.Run(name, func(t *testing.T) {
			if plans, err := p.Plans(1); err == nil {
				t.Errorf("plans %v; want an error", plans)
			}
			if plan, ok := p.Evaluate([]int{0}); ok {
				t.Errorf("plan %v; want none", plan)
			}
		})
	}
}

// ended is the simple twin of a trial: it computes the node without the victims of a mask from the beginning.
func ended(p *Preemption, mask int) Node {
	n := *p.Node
	n.GPUs = slices.Clone(p.Node.GPUs)
	has := func(v int) bool { return mask>>v&1 == 1 }
	for i := range p.Victims {
		if has(i) {
			n.FreeCPU, n.FreeMemory = min(n.CPU, n.FreeCPU+p.Victims[i].CPU), min(n.Memory, n.FreeMemory+p.Victims[i].Memory)
		}
	}
	for _, h := range p.Held {
		if slices.ContainsFunc(h.Victims, func(v int) bool { return !has(v) }) {
			continue
		}
		for i := range h.GPUs.All() {
			g := &n.GPUs[i]
			g.Free = min(g.Total(), g.Free+cmp.Or(h.Amount, g.Unit))
		}
	}
	return n
}

// brute returns the best plan by trying all sets of victims.
func brute(p *Preemption) (best Plan, found bool) {
	for mask := range 1 << len(p.Victims) {
		n, score, fit := ended(p, mask), Score(math.MaxInt64), true
		var single []Shape // the request for several replicas, too, is one for each
		for _, s := range p.Requests {
			for range max(1, s.GPUs) {
				if s.Resource != "shared" {
					single = append(single, s)
					break
				}
				single = append(single, Shape{Resource: "shared", GPUs: 1})
			}
		}
		for _, s := range single {
			if Fit(&n, s).Lack != None {
				fit = false
				break
			}
			c := Choose(&n, &s)
			score = min(score, compose(&c, linkRank(&n, &s, &c), 0))
			n.FreeCPU, n.FreeMemory = n.FreeCPU-s.CPU, n.FreeMemory-s.Memory
			for i := range c.GPUs.All() {
				n.GPUs[i].Free -= n.GPUs[i].Unit
			}
		}
		if !fit {
			continue
		}
		plan := Plan{Priority: math.MinInt32, Score: score}
		used := make([]int32, len(p.Budgets))
		for i, v := range p.Victims {
			if mask>>i&1 == 0 {
				continue
			}
			plan.Victims = append(plan.Victims, i)
			plan.Pods += v.Pods
			plan.PrioritySum += int64(v.Pods) * int64(v.Priority)
			plan.Priority = max(plan.Priority, v.Priority)
			for _, pod := range v.Budgets {
				used[pod[0]]++
			}
		}
		plan.Started = math.MaxInt64
		for _, i := range plan.Victims {
			if p.Victims[i].Priority == plan.Priority {
				plan.Started = min(plan.Started, p.Victims[i].Started)
			}
		}
		for b, n := range used {
			plan.Violations += int(max(0, n-p.Budgets[b]))
		}
		if len(plan.Victims) == 0 {
			return Plan{}, false
		}
		if !found || plan.compare(&best) < 0 {
			best, found = plan, true
		}
	}
	return best, found
}

// anyPreemption draws a node with whole GPUs, replicas or MIG devices, up to 10 victims, claims that several share, and budgets. A
// plain one has only victims of one pod each, which hold different whole GPUs.
func anyPreemption(t *rapid.T, links *shared.Topology, plain bool) *Preemption {
	n := Empty("n", "H100", 16_000, 64_000, 8)
	n.FreeCPU, n.FreeMemory = rapid.Int64Range(0, 4000).Draw(t, "cpu"), rapid.Int64Range(0, 4000).Draw(t, "memory")
	n.Links, n.Spread = links, rapid.Bool().Draw(t, "spread")
	for i := range n.GPUs {
		n.GPUs[i] = GPU{Resource: gpuResource, Unit: Whole, Physical: uint8(i), State: rapid.SampledFrom([]State{Usable, Usable, Usable, Degraded, Draining}).Draw(t, "state")}
		if i >= 6 {
			n.GPUs[i].Resource, n.GPUs[i].Unit, n.GPUs[i].Size = "shared", 250, 1000
		}
		if rapid.IntRange(0, 4).Draw(t, "free") == 0 {
			n.GPUs[i].Free = n.GPUs[i].Unit
		}
	}
	p := &Preemption{Node: &n, Budgets: []int32{0, 1, 2}}
	count := rapid.IntRange(1, 10).Draw(t, "victims")
	for range count {
		v := Victim{
			Pods: rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(t, "pods"), Priority: rapid.Int32Range(-1, 2).Draw(t, "priority"), Started: rapid.Int64Range(0, 2).Draw(t, "start"),
			CPU: rapid.Int64Range(0, 3).Draw(t, "cores") * 1000, Memory: rapid.Int64Range(0, 2).Draw(t, "GiB") * 1024,
		}
		if plain {
			v.Pods = 1
		} else if budget := rapid.IntRange(-3, 2).Draw(t, "budget"); budget >= 0 {
			v.Budgets = [][]int{{budget}}
		}
		p.Victims = append(p.Victims, v)
	}
	for i := range n.GPUs {
		holders := rapid.IntRange(0, 2).Draw(t, "holders")
		if plain {
			holders = min(1, holders)
		}
		for range holders {
			victims := []int{rapid.IntRange(0, count-1).Draw(t, "holder")}
			if other := rapid.IntRange(0, 4*count).Draw(t, "other"); other < count && other != victims[0] && !plain {
				victims = append(victims, other)
			}
			held := Held{Victims: victims, GPUs: GPUSet(0).With(i)}
			if i >= 6 && !plain {
				held.Amount = rapid.SampledFrom([]int32{0, 0, 200, 500}).Draw(t, "amount")
			}
			p.Held = append(p.Held, held)
		}
	}
	p.Requests = []Shape{{Resource: gpuResource, GPUs: rapid.Int32Range(1, 4).Draw(t, "GPUs"), CPU: rapid.Int64Range(0, 6).Draw(t, "want") * 1000}}
	if !plain && rapid.IntRange(0, 2).Draw(t, "more") == 0 {
		p.Requests = append(p.Requests, Shape{Resource: "shared", GPUs: 1}, Shape{Resource: "shared", GPUs: rapid.Int32Range(1, 3).Draw(t, "replicas")})
	}
	return p
}

// TestPlansTwin: the plan is the one that a search through all sets finds, also with several plans asked for, and Evaluate says the
// same of it.
func TestPlansTwin(t *testing.T) {
	links, found := pairs(t, 8), 0
	rapid.Check(t, func(t *rapid.T) {
		p := anyPreemption(t, links, false)
		want, ok := brute(p)
		plans, err := p.Plans(rapid.IntRange(1, 4).Draw(t, "most"))
		if err != nil {
			t.Fatal(err)
		}
		if ok != (len(plans) > 0) {
			t.Fatalf("plans %+v; want %+v, %v", plans, want, ok)
		}
		if !ok {
			return
		}
		found++
		if diff := gocmp.Diff(want, plans[0]); diff != "" {
			t.Fatalf("-want +got\n%s", diff)
		}
		for i := range plans {
			if same, ok := p.Evaluate(plans[i].Victims); !ok || !gocmp.Equal(same, plans[i]) {
				t.Fatalf("Evaluate: %+v, %v; want %+v", same, ok, plans[i])
			}
			if i > 0 && plans[i-1].compare(&plans[i]) >= 0 {
				t.Fatalf("plans out of order: %+v", plans)
			}
		}
	})
	if found == 0 {
		t.Error("no case had a plan")
	}
}

func BenchmarkPlans(b *testing.B) {
	for name, gpus := range map[string]int{"8 GPUs": 8, "16 GPUs": 16} {
		b.Run(name, func(b *testing.B) {
			p := Preemption{Node: full(b, gpus), Requests: request(4)}
			for i := range gpus {
				p.Victims = append(p.Victims, pod(int32(i%3)))
				p.Held = append(p.Held, Held{Victims: []int{i}, GPUs: GPUSet(0).With(i)})
			}
			for b.Loop() {
				if plans, err := p.Plans(1); err != nil || len(plans) != 1 {
					b.Fatal(plans, err)
				}
			}
		})
	}
}
