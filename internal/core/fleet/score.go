package fleet

import (
	"github.com/berth-gpu/berth/internal/core/placement"
)

// Score says how good a node is for a pod: higher is better, a negative one says that the pod does not fit. Its parts, the most
// important one first:
//
//	health      how few of the GPUs are degraded
//	contention  how few are below a PCIe switch with pods that need much bandwidth to the host, if the pod is one of these
//	links       the slowest link between the GPUs: its kind, see linkRank; with the policy latency how fast it is
//	step        what the policy says, 0 to 127
//	packing     how few sets of linked GPUs the choice breaks
type Score int64

// ScoreBits is how many bits a Score has at most.
const ScoreBits = healthShift + healthBits

// Step returns the step of a score.
func (s Score) Step() int32 { return int32(s>>stepShift) & (1<<stepBits - 1) }

// Parts are what is wrong with a choice, each 0 for nothing. Those of several choices can be added up.
type Parts struct {
	// Degraded is how many GPUs are degraded, Crowded how many are below a PCIe switch with pods that need much bandwidth to the host;
	// both are at most 3.
	Degraded int64
	Crowded  int64
	// Links is how far the links between the GPUs are from the best ones, Broken how many sets of linked GPUs the choice breaks.
	Links  int64
	Broken int64
}

// Parts returns the parts of a score that is not NoFit. The policy whose links say how fast they are has another unit of Links.
func (s Score) Parts(p Policy) Parts {
	best := int64(linkBest)
	if p.Name() == PolicyLatency {
		best = 1<<linkBits - 1
	}
	part := func(shift, bits int) int64 { return int64(s>>shift) & (1<<bits - 1) }
	return Parts{
		Degraded: 1<<healthBits - 1 - part(healthShift, healthBits), Crowded: 1<<contentionBits - 1 - part(contentionShift, contentionBits),
		Links: best - part(linkShift, linkBits), Broken: 1<<packingBits - 1 - part(0, packingBits),
	}
}

// Widths of the parts of a Score in bits, the least important one first.
const (
	packingBits    = 8
	stepBits       = 7
	linkBits       = 28
	contentionBits = 2
	healthBits     = 2

	stepShift       = packingBits
	linkShift       = stepShift + stepBits
	contentionShift = linkShift + linkBits
	healthShift     = contentionShift + contentionBits
)

// NoFit is the score of a node on which a pod does not fit.
const NoFit = Score(-1)

// compose makes a score of its parts.
func compose(c *Choice, link uint64, step int32) Score {
	return rank(c.Degraded, healthBits)<<healthShift | rank(c.Crowded, contentionBits)<<contentionShift |
		Score(link&(1<<linkBits-1))<<linkShift | Score(step)<<stepShift | packing(c)
}

// PartScore is the score of a choice of parts of GPUs with nothing wrong and this step.
func PartScore(step int32) Score { return compose(&Choice{}, linkBest, step) }

// rank is lower the more is wrong.
func rank(wrong, bits int) Score {
	most := 1<<bits - 1
	return Score(most - min(wrong, most))
}

// packing is lower the more linked sets a choice breaks: a set of eight counts as much as two of four or four of two.
func packing(c *Choice) Score {
	const most = 1<<packingBits - 1
	if !c.Linked {
		return most
	}
	before, after := &c.Answer.Before, &c.Answer.After
	broken := 4*(before.Eights-after.Eights) + 2*(before.Fours-after.Fours) + before.Twos - after.Twos
	return Score(most - max(0, min(broken, most)))
}

// Ranks of links.
const (
	linkUnknown = 0
	// linkPartial and more: NVLinks between all, but fewer than the node could have for as many GPUs.
	linkPartial = 8
	// linkBest: no links are needed, or NVLinks as good as the node has them for as many GPUs.
	linkBest = 15
)

// linkRank says how good the links of a choice are: NVLinks as many as the node could have, then fewer NVLinks, by how many of those,
// then PCIe paths from PIX down to SYS, then unknown. Nodes of different speeds are equal when each gives its best: a faster model is for
// those who request it.
func linkRank(n *Node, s *Shape, c *Choice) uint64 {
	if s.GPUs < 2 {
		return linkBest
	}
	if !c.Linked {
		return linkUnknown
	}
	score := &c.Answer.Score
	if !score.Bottleneck.NVLink() {
		return min(uint64(score.Bottleneck), linkPartial-1)
	}
	all := placement.Set(1)<<n.Links.GPUs() - 1
	best, err := n.Links.Choose(all, 0, int(s.GPUs))
	if err != nil || score.Bottleneck >= best.Score.Bottleneck && score.NVLinks >= best.Score.NVLinks {
		return linkBest
	}
	const steps = linkBest - linkPartial
	return linkPartial + min(steps-1, uint64(score.NVLinks*steps/max(1, best.Score.NVLinks)))
}

// linkSpeed says how fast the links of a choice are: the slowest one, then the sum, then NUMA nodes.
func linkSpeed(_ *Node, s *Shape, c *Choice) uint64 {
	if s.GPUs < 2 {
		return 1<<linkBits - 1
	}
	if !c.Linked {
		return 0
	}
	score := &c.Answer.Score
	return uint64(min(score.Bottleneck, 1<<9-1))<<19 | uint64(min(score.NVLinks, 1<<11-1))<<8 | uint64(min(score.PCIe, 31))<<3 | uint64(7-min(score.NUMANodes, 7))
}
