package replay

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// policyStream separates the random numbers of a policy from others of the seed.
const policyStream = 2

// The published baselines normalise by the largest node of the openb cluster: 128 cores, 8 GPUs.
const (
	mostCPU = 128_000
	mostGPU = 8 * fleet.Whole
)

// PolicyRandom is the policy that takes any node on which a pod fits.
const PolicyRandom = "Random"

// policyNames returns the names of the policies that are compared on traces: the published baselines, then Berth's default.
func policyNames() []string {
	return []string{PolicyRandom, "DotProd", "GpuClustering", "GpuPacking", "BestFit", "FGD", fleet.PolicyPack}
}

// AllNames returns the names of all policies.
func AllNames() []string { return append(policyNames(), fleet.PolicySpread, fleet.PolicyLatency) }

// Placed counts a pod for a scorer that considers which pods were placed, as that of GpuClustering does.
func Placed(scorer fleet.Scorer, op fleet.Op) {
	if own, ok := scorer.(*clusteringScorer); ok {
		own.placed(op)
	}
}

// NewPolicy returns the policy of that name, in any case of letters, for a workload mix. The seed is that of random choices.
func NewPolicy(name string, measure *fleet.Measure, seed uint64) (fleet.Policy, error) {
	switch strings.ToLower(name) {
	case "random":
		return &random{numbers: rand.New(rand.NewPCG(seed, policyStream))}, nil
	case "dotprod":
		return formula{"DotProd", dotProd}, nil
	case "gpuclustering":
		return clustering{}, nil
	case "gpupacking":
		return formula{"GpuPacking", gpuPacking}, nil
	case "bestfit":
		return formula{"BestFit", bestFit}, nil
	case "fgd":
		return fleet.FragmentationGradient(measure), nil
	}
	if policy, err := fleet.NewPolicy(strings.ToLower(name), measure); err == nil {
		return policy, nil
	}
	return nil, fmt.Errorf("unknown policy %q; want %s", name, strings.Join(AllNames(), ", "))
}

// formula is a policy whose score depends on what is free on the node and nothing else. GPUs are the tightest that fit.
type formula struct {
	name  string
	score func(n *fleet.Node, s *fleet.Shape) int32
}

func (f formula) Name() string                     { return f.name }
func (f formula) Scorer(*fleet.Fleet) fleet.Scorer { return f }
func (f formula) Score(n *fleet.Node, s *fleet.Shape) (fleet.Score, fleet.GPUSet) {
	return fleet.Score(f.score(n, s)), fleet.Tightest(n, *s)
}

// bestFit scores the node higher the less is left on it:
//
//	floor(100 x (1 - 0.5 x cpuLeftAfter/128,000m - 0.5 x gpuLeftAfter/8,000m))
//
// The published simulator (pkg/simulator/plugin/best_fit_score.go) then stretches the scores to 0..100, which keeps their
// order.
func bestFit(n *fleet.Node, s *fleet.Shape) int32 {
	cpu, gpu := n.FreeCPU-s.CPU, n.Idle()-s.Demand()
	const scale = 2 * mostCPU
	return int32(max(0, scale-cpu-gpu*(mostCPU/mostGPU)) / (scale / 100))
}

// dotProd is the heuristic of Tetris: it scores the node lower the more what is free on it points where the request does:
//
//	floor(100 x (1 - 0.5 x (cpuLeft x cpu/128,000² + gpuLeft x gpu/8,000²)))
//
// with all GPUs of the node summed up (pkg/simulator/plugin/dot_product_score.go, with the settings of the publication:
// dimensions merged, normalised by the maximum, GPUs by best fit).
func dotProd(n *fleet.Node, s *fleet.Shape) int32 {
	const square = float64(mostCPU) * mostCPU
	product := float64(n.FreeCPU)*float64(s.CPU) + float64(n.Idle())*float64(s.Demand())*(mostCPU/mostGPU)*(mostCPU/mostGPU)
	return int32(max(0, 100*square-50*product) / square)
}

// gpuPacking prefers GPUs that are in use, then nodes that are (pkg/simulator/plugin/gpu_packing_score.go):
//
//	all GPUs of the node are free:       33 - free GPUs (at least the number of free GPUs)
//	the pod needs GPUs that are free:    50 - free GPUs that it takes (at least 33)
//	it fits on GPUs in use:              100 - per cent left on them before / 10 (at least 50)
//
// where it takes the GPUs with the least left that fit. Pods without GPU score 0 everywhere.
func gpuPacking(n *fleet.Node, s *fleet.Shape) int32 {
	if s.GPUs == 0 {
		return 0
	}
	free := int32(0)
	for _, g := range n.GPUs {
		if g.Free == fleet.Whole {
			free++
		}
	}
	if int(free) == len(n.GPUs) {
		return max(33-free, free)
	}
	whole, left := int32(0), int32(0)
	for i := range fleet.Tightest(n, *s).All() {
		if n.GPUs[i].Free == fleet.Whole {
			whole++
		}
		left += n.GPUs[i].Free * 100 / fleet.Whole
	}
	if whole > 0 {
		return max(50-whole, 33)
	}
	return max(100-left/10, 50)
}

// clustering prefers nodes on which pods with as many GPUs run, of which shared ones are one kind
// (pkg/simulator/plugin/gpu_clustering_score.go): 25 x (1 - gpuLeft/8,000m), rounded down, and
//
//	75 more where only pods of this kind run, 50 where others run, too, 25 where none runs, 0 where only others run.
//
// Pods without GPU score 0 everywhere, and do not count.
type clustering struct{}

func (clustering) Name() string { return "GpuClustering" }
func (clustering) Scorer(f *fleet.Fleet) fleet.Scorer {
	return &clusteringScorer{make([]map[int32]int, f.Len())}
}

type clusteringScorer struct{ kinds []map[int32]int }

// kindOf is 0 for a shared pod, or its number of GPUs.
func kindOf(s *fleet.Shape) int32 {
	if s.GPUs == 1 && s.Shared() {
		return 0
	}
	return s.GPUs
}

// placed counts the pod.
func (c *clusteringScorer) placed(op fleet.Op) {
	if op.Shape.GPUs == 0 {
		return
	}
	if c.kinds[op.Node] == nil {
		c.kinds[op.Node] = map[int32]int{}
	}
	c.kinds[op.Node][kindOf(&op.Shape)]++
}

func (c *clusteringScorer) Score(n *fleet.Node, s *fleet.Shape) (fleet.Score, fleet.GPUSet) {
	gpus := fleet.Tightest(n, *s)
	if s.GPUs == 0 {
		return 0, gpus
	}
	score := fleet.Score(25 * max(0, mostGPU-n.Idle()) / mostGPU)
	kinds := c.kinds[n.Index()]
	switch {
	case kinds[kindOf(s)] > 0 && len(kinds) == 1:
		score += 75
	case kinds[kindOf(s)] > 0:
		score += 50
	case len(kinds) == 0:
		score += 25
	}
	return score, gpus
}

// random takes any node on which the pod fits, and any GPU of it that has the share free; whole GPUs are the first free ones
// (pkg/simulator/plugin/random_score.go, with the setting that GPUs are chosen at random).
type random struct {
	numbers *rand.Rand
	scores  []fleet.Score
}

func (*random) Name() string                       { return "Random" }
func (r *random) Scorer(*fleet.Fleet) fleet.Scorer { return r }
func (r *random) Score(n *fleet.Node, s *fleet.Shape) (fleet.Score, fleet.GPUSet) {
	return 0, fleet.Tightest(n, *s)
}

// choose replaces the decider's choice.
func (r *random) choose(d *fleet.Decider, s fleet.Shape) (fleet.Op, bool) {
	r.scores = d.Scores(s, r.scores[:0])
	node, seen := -1, 0
	for i, score := range r.scores {
		if score >= 0 {
			if seen++; r.numbers.IntN(seen) == 0 {
				node = i
			}
		}
	}
	if node < 0 {
		return fleet.Op{Node: -1}, false
	}
	n := d.Fleet().Node(node)
	gpus := fleet.Tightest(n, s)
	if s.Shared() && s.GPUs == 1 {
		seen = 0
		for i, g := range n.GPUs {
			if g.State == fleet.Usable && g.Free >= s.Share {
				if seen++; r.numbers.IntN(seen) == 0 {
					gpus = fleet.GPUSet(0).With(i)
				}
			}
		}
	}
	return fleet.Op{Node: node, GPUs: gpus, Shape: s}, true
}

// Canonical returns a policy's name as AllNames has it, and each name once; "all" is those of policyNames.
func Canonical(names []string) ([]string, error) {
	var result []string
	for _, name := range names {
		if strings.EqualFold(name, "all") {
			result = append(result, policyNames()...)
			continue
		}
		i := slices.IndexFunc(AllNames(), func(known string) bool { return strings.EqualFold(known, name) })
		if i < 0 {
			return nil, fmt.Errorf("unknown policy %q; want %s, or all", name, strings.Join(AllNames(), ", "))
		}
		result = append(result, AllNames()[i])
	}
	var once []string
	for _, name := range result {
		if !slices.Contains(once, name) {
			once = append(once, name)
		}
	}
	return once, nil
}
