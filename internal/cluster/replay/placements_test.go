package replay

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// fiveNodes are offered ties in the order d e a c b with seed 42.
func fiveNodes() []fleet.Node {
	return []fleet.Node{
		fleet.Empty("a", "P100", 64_000, 262_144, 2), fleet.Empty("b", "T4", 104_000, 524_288, 2), fleet.Empty("c", "G2", 96_000, 393_216, 8),
		fleet.Empty("d", "V100M16", 32_000, 131_072, 4), fleet.Empty("e", "G3", 128_000, 786_432, 8),
	}
}

func twentyPods() []fleet.Shape {
	return []fleet.Shape{
		{CPU: 4000, Memory: 8192, GPUs: 1, Share: 500},
		{CPU: 12000, Memory: 16384, GPUs: 1, Share: 1000},
		{CPU: 32000, Memory: 65536, GPUs: 4, Share: 1000},
		{CPU: 2000, Memory: 4096, GPUs: 1, Share: 300},
		{CPU: 8000, Memory: 16384},
		{CPU: 6000, Memory: 8192, GPUs: 1, Share: 810},
		{CPU: 16000, Memory: 32768, GPUs: 2, Share: 1000},
		{CPU: 4000, Memory: 8192, GPUs: 1, Share: 500},
		{CPU: 90000, Memory: 131072, GPUs: 8, Share: 1000},
		{CPU: 3000, Memory: 8192, GPUs: 1, Share: 190},
		{CPU: 11000, Memory: 49152, GPUs: 1, Share: 1000, Models: fleet.Models("T4")},
		{CPU: 20000, Memory: 65536, GPUs: 1, Share: 1000},
		{CPU: 6000, Memory: 8192, GPUs: 1, Share: 700, Models: fleet.ParseModels("V100M16|P100")},
		{CPU: 40000, Memory: 65536},
		{CPU: 8000, Memory: 30517, GPUs: 1, Share: 470},
		{CPU: 12000, Memory: 16384, GPUs: 1, Share: 1000},
		{CPU: 4000, Memory: 8192, GPUs: 1, Share: 500},
		{CPU: 2000, Memory: 4096, GPUs: 1, Share: 300},
		{CPU: 64000, Memory: 131072, GPUs: 2, Share: 1000},
		{CPU: 3000, Memory: 5600, GPUs: 1, Share: 810},
	}
}

// TestPlacements: twenty pods, one after another, by each policy: the node, its GPUs and the score of each. The mix of the
// last two policies is that of the twenty pods. The expected values were computed from the formulas, with rational numbers, apart
// from this code.
func TestPlacements(t *testing.T) {
	tests := map[string]string{
		"BestFit":       "d0=67 d1=78 c0123=50 d0=80 d=83 d2=91 a01=81 c4=54 e01234567=85 c4=57 b0=57 c5=71 - a=96 c6=77 c7=88 c6=92 c4=95 - b1=63",
		"DotProd":       "d0=98 d1=96 c0123=65 d0=99 d=99 d2=98 a01=93 c4=97 e01234567=14 c4=98 b0=94 c5=93 - a=94 c6=98 c7=97 c6=99 c4=99 - b1=98",
		"GpuPacking":    "a0=31 a1=49 d0123=29 a0=95 e=0 b0=31 e01=25 e2=49 c01234567=25 b0=99 b1=49 e3=49 - e=0 e2=95 e4=49 e5=49 e5=95 - e6=49",
		"GpuClustering": "a0=43 b0=43 d0123=37 a0=95 e=0 a1=96 e01=25 c0=25 - a1=98 b1=96 e2=6 - e=0 c0=76 e3=59 c1=78 c1=79 c23=5 c4=61",
		"FGD":           "a0=45 a1=58 d0123=73 a0=53 e=50 b0=49 e01=52 b1=50 c01234567=83 a0=54 - e2=56 - a=50 b1=57 e3=56 e4=44 e4=53 e56=49 -",
		"pack":          "d0=48 d1=54 e0123=64 d0=54 e=50 d2=60 a01=62 d3=57 c01234567=83 d0=48 b0=53 b1=58 - a=50 e4=43 e5=57 e4=57 e6=43 - e7=55",
	}
	for name, want := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := newState(&Trace{Nodes: fiveNodes(), Pods: twentyPods()}, fleet.TypicalShapes(twentyPods(), 1), name, 42)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, pod := range twentyPods() {
				op, ok := s.choose(pod)
				if !ok {
					got = append(got, "-")
					continue
				}
				gpus := ""
				for i := range op.GPUs.All() {
					gpus += fmt.Sprint(i)
				}
				score := s.decider.Scores(pod, nil)[op.Node]
				if name == "FGD" || name == "pack" {
					score = fleet.Score(score.Step()) // The other parts are equal without links and faults.
				}
				got = append(got, fmt.Sprintf("%s%s=%d", s.fleet.Node(op.Node).Name, gpus, score))
				if err := s.arrive(pod); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(strings.Fields(want), got); diff != "" {
				t.Errorf("placements (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRandomPlacements: for each of the twenty pods, Random takes every node and GPU on which it fits, and no other.
func TestRandomPlacements(t *testing.T) {
	trace := &Trace{Nodes: fiveNodes(), Pods: twentyPods()}
	s, err := newState(trace, fleet.TypicalShapes(twentyPods(), 1), "Random", 42)
	if err != nil {
		t.Fatal(err)
	}
	for number, pod := range twentyPods() {
		want, got := map[string]bool{}, map[string]bool{}
		for i := range s.fleet.Len() {
			n := s.fleet.Node(i)
			if fleet.Fit(n, pod).Lack != fleet.None {
				continue
			}
			if !pod.Shared() {
				want[fmt.Sprint(n.Name, fleet.Tightest(n, pod))] = true
				continue
			}
			for g := range n.GPUs {
				if n.GPUs[g].Free >= pod.Share {
					want[fmt.Sprint(n.Name, fleet.GPUSet(0).With(g))] = true
				}
			}
		}
		for range 2000 {
			if op, ok := s.choose(pod); ok {
				got[fmt.Sprint(s.fleet.Node(op.Node).Name, op.GPUs)] = true
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("pod %d (-want +got):\n%s", number, diff)
		}
		if err := s.arrive(pod); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNodeOrder: the order of the node list changes nothing.
func TestNodeOrder(t *testing.T) {
	for _, name := range policyNames() {
		var all [][]Sample
		for _, reverse := range []bool{false, true} {
			nodes := fiveNodes()
			if reverse {
				slices.Reverse(nodes)
			}
			runs, err := RunAll(t.Context(), &Trace{nodes, twentyPods()}, Options{Policies: []string{name}, Seeds: []uint64{1, 2, 3}, Inflate: 1.3, Parallel: 2})
			if err != nil {
				t.Fatal(err)
			}
			for i := range runs {
				all = append(all, runs[i].Samples)
			}
		}
		if diff := cmp.Diff(all[:3], all[3:]); diff != "" {
			t.Errorf("%s (-list +reversed):\n%s", name, diff)
		}
	}
}

// TestArrivals: all pods once, in another order for each seed; then copies of them while the sum stays within the limit.
func TestArrivals(t *testing.T) {
	pods := twentyPods()
	sum := func(list []fleet.Shape) (total int64) {
		for _, pod := range list {
			total += pod.Demand()
		}
		return total
	}
	own := sum(pods)
	for seed := range uint64(50) {
		got := arrivalsOf(pods, own, 2.5, seed)
		if diff := cmp.Diff(got, arrivalsOf(pods, own, 2.5, seed), sameModels); diff != "" {
			t.Fatalf("seed %d is not reproducible:\n%s", seed, diff)
		}
		counts := map[fleet.Shape]int{}
		for _, pod := range got[:len(pods)] {
			counts[pod]++
		}
		for _, pod := range pods {
			counts[pod]--
		}
		for shape, count := range counts {
			if count != 0 {
				t.Errorf("seed %d: %+d pods of %s among the first %d", seed, count, shape, len(pods))
			}
		}
		if total, limit := sum(got), own*5/2; total > limit || total < limit-8*fleet.Whole {
			t.Errorf("seed %d: %d requested; want at most %d, and less by one pod", seed, total, limit)
		}
		if slices.Equal(got, arrivalsOf(pods, own, 2.5, seed+1)) {
			t.Errorf("seeds %d and %d give the same order", seed, seed+1)
		}
	}
	if got := arrivalsOf(pods, 10, 1.3, 1); len(got) != len(pods) {
		t.Errorf("%d pods of a list that requests more than the limit; want all %d", len(got), len(pods))
	}
	if got := arrivalsOf([]fleet.Shape{{CPU: 1}}, 10, 1.3, 1); len(got) != 1 {
		t.Errorf("%d pods of a list without GPU; want 1", len(got))
	}
}

var sameModels = cmp.Comparer(func(a, b fleet.ModelSet) bool { return a == b })
