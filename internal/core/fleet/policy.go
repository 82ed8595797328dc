package fleet

import "fmt"

// Policy is a way to choose a node.
type Policy interface {
	// Name is what the policy is called by users.
	Name() string
	// Scorer returns a scorer for one fleet.
	Scorer(f *Fleet) Scorer
}

// Scorer scores the nodes of one fleet.
type Scorer interface {
	// Score returns how good it is to place a pod of shape s on n, on which it fits, and on which GPUs. Higher is better; 0 is
	// the lowest. It depends on nothing but the shape and the state of the node: it is asked once for each generation of the
	// node and shape.
	Score(n *Node, s *Shape) (Score, GPUSet)
}

// Judge scores GPUs that something else has chosen, such as the allocator of ResourceClaims. n need not be a node of the fleet.
type Judge interface {
	Judge(n *Node, s *Shape, c *Choice) Score
}

// Losses says what the state of a node costs: what the placement of several pods costs is how much that rises.
type Losses interface {
	Loss(n *Node) int64
}

// Policies of the scheduler, by the names that users give.
const (
	PolicyPack    = "pack"
	PolicySpread  = "spread"
	PolicyLatency = "latency"
)

// PolicyNames are the names of the scheduler's policies.
func PolicyNames() []string { return []string{PolicyPack, PolicySpread, PolicyLatency} }

// NewPolicy returns the policy of that name. It returns an error that lists the names for another one.
func NewPolicy(name string, m *Measure) (Policy, error) {
	switch name {
	case PolicyPack:
		return Pack(m), nil
	case PolicySpread:
		return Spread(), nil
	case PolicyLatency:
		return latency(m), nil
	}
	return nil, fmt.Errorf("unknown policy %q; want one of %v", name, PolicyNames())
}

// gradient is the policy that places a pod where a loss grows least.
type gradient struct {
	name     string
	measure  *Measure
	stranded bool
	links    func(*Node, *Shape, *Choice) uint64
}

// Pack is Berth's policy: it places a pod where fragmentation and stranding together grow least.
func Pack(m *Measure) Policy { return gradient{PolicyPack, m, true, linkRank} }

// latency places a pod where its GPUs have the fastest links, and then as Pack does.
func latency(m *Measure) Policy { return gradient{PolicyLatency, m, true, linkSpeed} }

// FragmentationGradient is the policy that considers fragmentation alone: FGD of "Beware of Fragmentation" (USENIX ATC 2023).
// It is here only since its formula is part of Pack's; no program decides by it.
func FragmentationGradient(m *Measure) Policy { return gradient{"FGD", m, false, linkRank} }

func (g gradient) Name() string { return g.name }

func (g gradient) Scorer(f *Fleet) Scorer {
	return &gradientScorer{gradient: g, nodes: make([]nodeLoss, f.Len())}
}

// nodeLoss is the loss of a node as it is.
type nodeLoss struct {
	generation uint64
	mix        *modelMix
	loss       int64
}

type gradientScorer struct {
	gradient
	nodes []nodeLoss
}

// before returns the loss of the node as it is.
func (g *gradientScorer) before(n *Node) *nodeLoss {
	before := &g.nodes[n.index]
	if before.mix != nil && before.generation == n.generation {
		return before
	}
	mix := g.measure.of(n.Model)
	if n.hasResources() {
		*before = nodeLoss{n.generation, mix, g.lossOf(n, &Shape{}, 0)}
		return before
	}
	var space [MaxGPUs]int32
	free, idle := sortedFree(n, space[:0])
	*before = nodeLoss{n.generation, mix, g.loss(mix, n.FreeCPU, n.FreeMemory, free, idle)}
	return before
}

// Loss is the fragmentation and stranding of the node as it is.
func (g *gradientScorer) Loss(n *Node) int64 { return g.before(n).loss }

// Score is how much the loss falls, as a step. A share of a GPU goes to the GPU with the highest step, the lowest index among
// equals.
func (g *gradientScorer) Score(n *Node, s *Shape) (Score, GPUSet) {
	before := g.before(n)
	if s.Shared() && s.GPUs == 1 {
		return g.scoreShare(n, s, before)
	}
	c := Choose(n, s)
	return compose(&c, g.links(n, s, &c), g.measure.step(before.loss-g.after(before.mix, n, s, c.GPUs))), c.GPUs
}

// Judge is Score for GPUs that something else has chosen.
func (g *gradientScorer) Judge(n *Node, s *Shape, c *Choice) Score {
	return compose(c, g.links(n, s, c), g.measure.step(g.lossOf(n, &Shape{}, 0)-g.lossOf(n, s, c.GPUs)))
}

// scoreShare chooses the GPU for a share by the loss.
func (g *gradientScorer) scoreShare(n *Node, s *Shape, before *nodeLoss) (Score, GPUSet) {
	best, chosen := int32(-1), -1
	for i := range n.GPUs {
		gpu := &n.GPUs[i]
		if !gpu.State.allocatable() || gpu.Resource != "" || gpu.Free < s.Share || g.seen(n, i) || chosen >= 0 && gpu.State > n.GPUs[chosen].State {
			continue
		}
		step := g.measure.step(before.loss - g.after(before.mix, n, s, GPUSet(0).With(i)))
		if step > best || gpu.State < n.GPUs[chosen].State {
			best, chosen = step, i
		}
	}
	c := Choice{GPUs: GPUSet(0).With(chosen)}
	n.judge(s, &c)
	return compose(&c, linkBest, best), c.GPUs
}

// seen tells whether a GPU with a lower index is as free as GPU i, and in the same state.
func (g *gradientScorer) seen(n *Node, i int) bool {
	for k := range n.GPUs[:i] {
		if gpu := &n.GPUs[k]; gpu.Free == n.GPUs[i].Free && gpu.State == n.GPUs[i].State {
			return true
		}
	}
	return false
}

// after returns the loss of a node with one more pod on these GPUs.
func (g *gradientScorer) after(mix *modelMix, n *Node, s *Shape, gpus GPUSet) int64 {
	if n.hasResources() {
		return g.lossOf(n, s, gpus)
	}
	var space [MaxGPUs]int32
	free, idle := space[:0], int64(0)
	for i := range n.GPUs {
		gpu := &n.GPUs[i]
		if !gpu.State.allocatable() {
			continue
		}
		left := gpu.Free
		if gpus.Has(i) {
			left -= s.Share
		}
		idle += int64(left)
		free = insert(free, left)
	}
	return g.loss(mix, n.FreeCPU-s.CPU, n.FreeMemory-s.Memory, free, idle)
}

func (g *gradientScorer) loss(mix *modelMix, cpu, memory int64, free []int32, idle int64) int64 {
	loss := g.measure.fragmentation(mix, cpu, free, idle)
	if g.stranded {
		loss += g.measure.stranded(cpu, memory, idle)
	}
	return loss
}

// lossOf is the loss of a node with resources, with one more pod on these GPUs.
func (g *gradientScorer) lossOf(n *Node, s *Shape, gpus GPUSet) int64 {
	loss := g.measure.unusable(n, s, gpus)
	if g.stranded {
		idle := n.Idle()
		for i := range gpus.All() {
			idle -= int64(s.Of(&n.GPUs[i]))
		}
		loss += g.measure.stranded(n.FreeCPU-s.CPU, n.FreeMemory-s.Memory, idle)
	}
	return loss
}

// spread is the policy that places a pod where most is free.
type spread struct{}

// Spread places a pod on the node that has most of its GPUs free, so that a fault or an upgrade of a node ends few pods. A pod without
// GPUs goes to a node without GPUs.
func Spread() Policy { return spread{} }

func (spread) Name() string         { return PolicySpread }
func (spread) Scorer(*Fleet) Scorer { return spread{} }

func (p spread) Score(n *Node, s *Shape) (Score, GPUSet) {
	c := Choose(n, s)
	return p.Judge(n, s, &c), c.GPUs
}

// Loss grows with the square of what the node's GPUs have in use, so that it rises less on a node that has more free.
func (spread) Loss(n *Node) int64 {
	all := int64(0)
	for i := range n.GPUs {
		all += int64(n.GPUs[i].Total())
	}
	used := all - n.Idle()
	return used * used / max(1, all)
}

// Judge says how much of the node's GPUs is free.
func (spread) Judge(n *Node, s *Shape, c *Choice) Score {
	const most = 1<<stepBits - 1
	free, all := n.Idle(), int64(0)
	for i := range n.GPUs {
		all += int64(n.GPUs[i].Total())
	}
	if s.GPUs == 0 && all == 0 {
		free, all = 1, 1
	} else if s.GPUs == 0 {
		free = 0
	}
	return compose(c, linkRank(n, s, c), int32(free*most/max(1, all)))
}
