package whatif

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/cluster/replay"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

func ask(tb testing.TB, objects *Objects, o Options) *Report {
	tb.Helper()
	if o.Scale == 0 {
		o.Scale = 1
	}
	report, err := Ask(tb.Context(), objects, o)
	if err != nil {
		tb.Fatal(err)
	}
	return report
}

// TestOrder: the order of the lists changes nothing.
func TestOrder(t *testing.T) {
	layout, err := ParseLayout("all-balanced@NVIDIA-A100-SXM4-80GB")
	if err != nil {
		t.Fatal(err)
	}
	options := Options{Policies: replay.AllNames(), Seed: 7, Scale: 1.5, Changes: Changes{Add: []Add{{2, "gpu-b"}}, Remove: []string{"gpu-a"}, Layouts: []Layout{layout}}}
	want := ask(t, small(t), options)
	for seed := range uint64(5) {
		objects := small(t)
		numbers := rand.New(rand.NewPCG(seed, 1))
		numbers.Shuffle(len(objects.Nodes), func(i, j int) { objects.Nodes[i], objects.Nodes[j] = objects.Nodes[j], objects.Nodes[i] })
		numbers.Shuffle(len(objects.GPUNodes), func(i, j int) { objects.GPUNodes[i], objects.GPUNodes[j] = objects.GPUNodes[j], objects.GPUNodes[i] })
		numbers.Shuffle(len(objects.Pods), func(i, j int) { objects.Pods[i], objects.Pods[j] = objects.Pods[j], objects.Pods[i] })
		if diff := cmp.Diff(want, ask(t, objects, options)); diff != "" {
			t.Fatalf("seed %d (-list +shuffled):\n%s", seed, diff)
		}
	}
}

// bind places the waiting pods of objects by a policy, as a scheduler does, and returns how many it has placed.
func bind(tb testing.TB, objects *Objects, policy string, seed uint64) int {
	tb.Helper()
	c, err := newCluster(objects)
	if err != nil {
		tb.Fatal(err)
	}
	p, err := newPlacer(c, c.now(), policy, fleet.NewMeasure(c.mix), seed)
	if err != nil {
		tb.Fatal(err)
	}
	bound := 0
	for i := range c.pods {
		node, ok, err := p.place(c, c.pods[i].group)
		if err != nil {
			tb.Fatal(err)
		}
		if ok {
			c.pods[i].object.Spec.NodeName = p.fleet.Node(node).Name
			bound++
		}
	}
	return bound
}

// TestSameAgain: where nothing is changed, the policy that has made the state makes it again.
func TestSameAgain(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		policy := rapid.SampledFrom([]string{"pack", "spread", "latency", "BestFit", "FGD", "GpuPacking"}).Draw(rt, "policy")
		objects := random(rand.New(rand.NewPCG(seed, 1)), rapid.IntRange(1, 8).Draw(rt, "nodes"), rapid.IntRange(0, 60).Draw(rt, "pods"))
		bound := bind(t, objects, policy, 42)
		report := ask(t, objects, Options{Policies: []string{policy}, Seed: 42})
		then := report.WhatIf[0]
		if report.Pods.Running != bound {
			rt.Fatalf("%d pods run; want %d", report.Pods.Running, bound)
		}
		then.Policy = ""
		if diff := cmp.Diff(report.Now, then, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
			rt.Fatalf("(-now +what if):\n%s", diff)
		}
	})
}

// TestCapacity: whatever is asked, a policy never has more held than there is, counts each pod once, and holds what the placed pods
// request.
func TestCapacity(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		objects := random(rand.New(rand.NewPCG(seed, 1)), rapid.IntRange(1, 8).Draw(rt, "nodes"), rapid.IntRange(0, 80).Draw(rt, "pods"))
		if rapid.Bool().Draw(rt, "bound") {
			bind(t, objects, "spread", 1)
		}
		options := Options{Policies: replay.AllNames(), Seed: seed, Scale: rapid.SampledFrom([]float64{1, 1.5, 3}).Draw(rt, "scale")}
		if rapid.Bool().Draw(rt, "add") {
			options.Changes.Add = []Add{{2, "node-0000"}}
		}
		if rapid.Bool().Draw(rt, "layout") {
			options.Changes.Layouts = []Layout{{Text: "x", Devices: map[string]int{"1g.10gb": 3, "3g.40gb": 1}}}
		}
		report := ask(t, objects, options)
		for _, s := range append(report.WhatIf, report.Now) {
			sum := 0.0
			for _, d := range s.Devices {
				if d.Held < 0 || d.Held > d.GPUs {
					rt.Fatalf("%s: %v", s.Policy, d)
				}
				sum += d.Held
			}
			for _, idle := range s.Idle {
				if idle.GPUs <= 0 {
					rt.Fatalf("%s: %v", s.Policy, idle)
				}
				sum += idle.GPUs
			}
			if diff := sum - s.GPUs; diff > 1e-6 || diff < -1e-6 {
				rt.Fatalf("%s: held and idle are %v of %v GPUs", s.Policy, sum, s.GPUs)
			}
			shapes := 0
			for _, shape := range s.UnplacedShapes {
				shapes += shape.Pods
			}
			if shapes != s.Unplaced || s.Displaced+s.StillWaiting > s.Unplaced || s.Unplaced > report.Pods.Running+report.Pods.Waiting+report.Pods.Added {
				rt.Fatalf("%s: %d pods without node, %d of shapes, %d displaced, %d wait: %+v", s.Policy, s.Unplaced, shapes, s.Displaced, s.StillWaiting, report.Pods)
			}
		}
	})
}

// TestTwin compares the placements with those of a simple twin, which asks each node for each pod and remembers nothing.
func TestTwin(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		policy := rapid.SampledFrom([]string{"pack", "spread", "latency", "BestFit", "FGD"}).Draw(rt, "policy")
		objects := random(rand.New(rand.NewPCG(seed, 1)), rapid.IntRange(1, 6).Draw(rt, "nodes"), rapid.IntRange(1, 50).Draw(rt, "pods"))
		c, err := newCluster(objects)
		if err != nil {
			rt.Fatal(err)
		}
		measure := fleet.NewMeasure(c.mix)
		p, err := newPlacer(c, c.empty(), policy, measure, seed)
		if err != nil {
			rt.Fatal(err)
		}
		for i := range c.pods {
			g := &c.groups[c.pods[i].group]
			want := twin(p, c, g, policy, measure, c.pods[i].object)
			got, ok, err := p.place(c, c.pods[i].group)
			if err != nil {
				rt.Fatal(err)
			}
			if !ok {
				got = -1
			}
			if got != want {
				rt.Fatalf("pod %d, %s: node %d; want %d", i, g.text(), got, want)
			}
		}
	})
}

func twin(p *placer, c *cluster, g *group, policy string, measure *fleet.Measure, of *corev1.Pod) int {
	best, score := -1, fleet.NoFit
	for at := range p.fleet.Len() {
		zone, selects := of.Spec.NodeSelector["zone"]
		if node := c.members[c.index[p.fleet.Node(at).Name]].node; selects && node.Labels["zone"] != zone {
			continue
		}
		made, err := replay.NewPolicy(policy, measure, 0)
		if err != nil {
			panic(err)
		}
		if _, s, ok := fleet.NewDecider(p.fleet, onNode{made}).Together(at, g.requests); ok && s > score {
			best, score = at, s
		}
	}
	return best
}

// TestHolders: without the right to read pods, what is held is known by the GPUNodes.
func TestHolders(t *testing.T) {
	all, held := small(t), small(t)
	held.Pods = nil
	held.PodsOfHolders("forbidden")
	want, got := ask(t, all, Options{}), ask(t, held, Options{Policies: []string{"pack"}})
	if diff := cmp.Diff(want.Now.Devices, got.Now.Devices); diff != "" {
		t.Errorf("(-pods +holders):\n%s", diff)
	}
	if got.Pods.Running != 7 || got.WhatIf[0].Displaced != 0 {
		t.Errorf("%d pods run, %d have no node then; want the 7 that hold GPUs, all with a node", got.Pods.Running, got.WhatIf[0].Displaced)
	}
	if !slices.ContainsFunc(got.Notes, func(note string) bool { return strings.HasPrefix(note, "Pods: forbidden;") }) {
		t.Errorf("no note about pods: %q", got.Notes)
	}
}

// TestQuestions: what changes make of a small cluster, computed by hand.
func TestQuestions(t *testing.T) {
	layout := func(text string) []Layout {
		l, err := ParseLayout(text)
		if err != nil {
			t.Fatal(err)
		}
		return []Layout{l}
	}
	type want struct {
		nodes     int
		displaced int
		waiting   int
		gpus      float64
		held      float64
	}
	tests := map[string]struct {
		changes Changes
		want    want
	}{
		// 16 whole GPUs, 2 shared ones, 1 and 7/8 with MIG. Placed again, big-0 finds 4 free GPUs on gpu-a, and so train-3, which selects
		// gpu-a, has none; no node has 2g.20gb.
		"nothing": {Changes{}, want{9, 0, 3, 19.875, 9.125}},
		// Two more like gpu-b have four healthy GPUs each, which help neither train-3 nor the pods that request 2g.20gb.
		"more nodes": {Changes{Add: []Add{{2, "gpu-b"}}}, want{11, 0, 3, 27.875, 9.125}},
		// Only mig-a can serve the pods of MIG; web-0 finds another node.
		"one node less": {Changes{Remove: []string{"mig-a"}}, want{8, 2, 3, 18, 8.5}},
		// Both GPUs have three 2g.20gb: three of them are taken by infer-2 and infer-3, and the two pods of other profiles have no node.
		"other layout": {Changes{Layouts: layout("2g.20gb=3@mig-a")}, want{9, 2, 1, 19.5, 9.25}},
		"MIG off":      {Changes{Layouts: layout("all-disabled@mig-a")}, want{9, 2, 3, 20, 8.5}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			report := ask(t, small(t), Options{Policies: []string{"pack"}, Seed: 42, Changes: test.changes})
			s := &report.WhatIf[0]
			got := want{s.Nodes, s.Displaced, s.StillWaiting, s.GPUs, s.Held}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(want{})); diff != "" {
				t.Errorf("(-want +got):\n%s\n%+v", diff, s)
			}
		})
	}
}
