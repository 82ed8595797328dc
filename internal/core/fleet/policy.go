package fleet

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
	Score(n *Node, s *Shape) (int32, GPUSet)
}

// gradient is the policy that places a pod where a loss grows least.
type gradient struct {
	name     string
	measure  *Measure
	stranded bool
}

// Pack is Berth's policy: it places a pod where fragmentation and stranding together grow least.
func Pack(m *Measure) Policy { return gradient{"pack", m, true} }

// FragmentationGradient is the policy that considers fragmentation alone: FGD of "Beware of Fragmentation" (USENIX ATC 2023).
// It is here only since its formula is part of Pack's; no program decides by it.
func FragmentationGradient(m *Measure) Policy { return gradient{"FGD", m, false} }

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

// Score is how much the loss falls, as a step. A share of a GPU goes to the GPU with the highest step, the lowest index among
// equals; whole GPUs are the first free ones.
func (g *gradientScorer) Score(n *Node, s *Shape) (int32, GPUSet) {
	var space [MaxGPUs]int32
	before := &g.nodes[n.index]
	if before.mix == nil || before.generation != n.generation {
		free, idle := sortedFree(n, space[:0])
		mix := g.measure.of(n.Model)
		*before = nodeLoss{n.generation, mix, g.loss(mix, n.FreeCPU, n.FreeMemory, free, idle)}
	}
	if s.GPUs != 1 || s.Share == Whole {
		gpus := Tightest(n, *s)
		return g.measure.Step(before.loss - g.after(before.mix, n, s, gpus)), gpus
	}
	best, chosen := int32(-1), -1
	for i, gpu := range n.GPUs {
		if gpu.State != Usable || gpu.Free < s.Share || g.seen(n, i) {
			continue
		}
		if step := g.measure.Step(before.loss - g.after(before.mix, n, s, GPUSet(0).With(i))); step > best {
			best, chosen = step, i
		}
	}
	return best, GPUSet(0).With(chosen)
}

// seen tells whether a GPU with a lower index is as free as GPU i, and usable.
func (g *gradientScorer) seen(n *Node, i int) bool {
	for _, gpu := range n.GPUs[:i] {
		if gpu.Free == n.GPUs[i].Free && gpu.State == Usable {
			return true
		}
	}
	return false
}

// after returns the loss of a node with one more pod on these GPUs.
func (g *gradientScorer) after(mix *modelMix, n *Node, s *Shape, gpus GPUSet) int64 {
	var space [MaxGPUs]int32
	free, idle := space[:0], int64(0)
	for i, gpu := range n.GPUs {
		if gpu.State != Usable {
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
