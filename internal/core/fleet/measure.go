package fleet

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// Measure computes for a workload mix what of a node's idle GPUs is lost. Losses are integers, in thousandths of a GPU times
// Unit.
type Measure struct {
	mix    Mix
	unit   int64
	models map[string]*modelMix
	// perCPU and perMemory are how many thousandths of a GPU one thousandth of a core, or one MiB, serves if the rest of a node
	// is filled with the mean of the mix, times 2^32. 0 means that the mix does not need the resource.
	perCPU    uint64
	perMemory uint64
	// steps are the losses at which step grows by one.
	steps [99]int64
}

// modelMix is the part of a mix that may use a model.
type modelMix struct{ shares []shareMix }

// shareMix are the typical shapes that request one share, shareMix.counts by number of GPUs.
type shareMix struct {
	share  int32
	counts []countMix
}

// countMix are the typical shapes that request one share of a number of GPUs: weight[i] of them need cpu[i] or less.
type countMix struct {
	count  int32
	cpu    []int64
	weight []int64
}

// NewMeasure returns the measure for a mix.
func NewMeasure(mix Mix) *Measure {
	m := &Measure{mix: slices.Clone(mix), models: map[string]*modelMix{}}
	var gpu, cpu, memory float64
	for _, t := range mix {
		m.unit += t.Weight
		if t.Shape.GPUs > 0 {
			gpu += float64(t.Weight) * float64(cmp.Or(t.Demand, t.Shape.Demand()))
			cpu += float64(t.Weight) * float64(t.Shape.CPU)
			memory += float64(t.Memory)
		}
	}
	m.unit = max(m.unit, 1)
	m.perCPU, m.perMemory = rate(gpu, cpu), rate(gpu, memory)
	for i := range m.steps {
		k := float64(i + 1)
		m.steps[i] = int64(math.Ceil(Whole * float64(m.unit) * math.Log(k/(100-k))))
	}
	return m
}

// rate returns gpu/resource times 2^32, or 0 where one of them is 0.
func rate(gpu, resource float64) uint64 {
	if gpu == 0 || resource == 0 {
		return 0
	}
	return uint64(min(gpu/resource*(1<<32), 1<<62))
}

// Unit is what losses are multiplied by: the weight of the mix.
func (m *Measure) Unit() int64 { return m.unit }

// step maps how much a loss falls to 0..99: floor(100 x sigmoid(fall/1000)), for a fall in thousandths of a GPU times Unit. No
// change is 50.
func (m *Measure) step(fall int64) int32 {
	low, high := 0, len(m.steps)
	for low < high {
		if middle := (low + high) / 2; m.steps[middle] <= fall {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return int32(low)
}

// of returns the part of the mix that may use the model.
func (m *Measure) of(model string) *modelMix {
	found := m.models[model]
	if found == nil {
		found = newModelMix(m.mix, model)
		m.models[model] = found
	}
	return found
}

func newModelMix(mix Mix, model string) *modelMix {
	mix = slices.DeleteFunc(slices.Clone(mix), func(t Typical) bool {
		return t.Shape.GPUs == 0 || t.Shape.Resource != "" || !t.Shape.Models.Allows(model)
	})
	slices.SortStableFunc(mix, func(a, b Typical) int {
		return compare(int64(a.Shape.Share), int64(b.Shape.Share), int64(a.Shape.GPUs), int64(b.Shape.GPUs), a.Shape.CPU, b.Shape.CPU)
	})
	result := &modelMix{}
	for _, t := range mix {
		last := len(result.shares) - 1
		if last < 0 || result.shares[last].share != t.Shape.Share {
			result.shares = append(result.shares, shareMix{share: t.Shape.Share})
			last++
		}
		group := &result.shares[last]
		end := len(group.counts) - 1
		if end < 0 || group.counts[end].count != t.Shape.GPUs {
			group.counts = append(group.counts, countMix{count: t.Shape.GPUs})
			end++
		}
		count := &group.counts[end]
		weight := t.Weight
		if n := len(count.weight); n > 0 {
			weight += count.weight[n-1]
		}
		count.cpu, count.weight = append(count.cpu, t.Shape.CPU), append(count.weight, weight)
	}
	return result
}

// compare compares pairs of numbers, the first pair that differs decides.
func compare(pairs ...int64) int {
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i] != pairs[i+1] {
			if pairs[i] < pairs[i+1] {
				return -1
			}
			return 1
		}
	}
	return 0
}

// fitting returns the weight of the shapes that need at most cpu.
func (c *countMix) fitting(cpu int64) int64 {
	for i, needed := range slices.Backward(c.cpu) {
		if needed <= cpu {
			return c.weight[i]
		}
	}
	return 0
}

// fragmentation returns F of a node: the idle thousandths that a pod of the mix cannot use, in the mean over the mix, times
// Unit. free are the usable GPUs in ascending order, idle is their sum.
//
// All that is idle is lost to a pod that requests no GPU, may not use the model, or does not fit; what is idle on the GPUs
// with too little free for it, to one that fits.
func (m *Measure) fragmentation(mix *modelMix, cpu int64, free []int32, idle int64) int64 {
	lost, fit := int64(0), int64(0)
	below, position := int64(0), 0
	for i := range mix.shares {
		group := &mix.shares[i]
		for position < len(free) && free[position] < group.share {
			below += int64(free[position])
			position++
		}
		have := int32(len(free) - position)
		if have == 0 {
			break // Larger shares fit on no GPU either.
		}
		for j := range group.counts {
			count := &group.counts[j]
			if count.count > have {
				break
			}
			weight := count.fitting(cpu)
			fit += weight
			lost += weight * below
		}
	}
	return lost + (m.unit-fit)*idle
}

// stranded returns Phi of a node: the idle thousandths that would be left if the rest of the node was filled with the mean of
// the mix, times Unit.
func (m *Measure) stranded(cpu, memory, idle int64) int64 {
	served := idle
	if m.perCPU > 0 {
		served = min(served, scale(cpu, m.perCPU))
	}
	if m.perMemory > 0 {
		served = min(served, scale(memory, m.perMemory))
	}
	return (idle - served) * m.unit
}

// scale returns amount x rate / 2^32, or the largest number.
func scale(amount int64, rate uint64) int64 {
	high, low := bits.Mul64(uint64(amount), rate)
	if high >= 1<<31 {
		return math.MaxInt64
	}
	return int64(high<<32 | low>>32)
}

// Fragmentation returns F of the node as it is: the expected idle thousandths of its GPUs that a pod of the mix cannot use,
// times Unit.
func (m *Measure) Fragmentation(n *Node) int64 {
	if n.hasResources() {
		return m.unusable(n, &Shape{}, 0)
	}
	var free [MaxGPUs]int32
	list, idle := sortedFree(n, free[:0])
	return m.fragmentation(m.of(n.Model), n.FreeCPU, list, idle)
}

// Stranded returns Phi of the node as it is: the idle thousandths of its GPUs that its CPU and memory cannot serve, times
// Unit.
func (m *Measure) Stranded(n *Node) int64 { return m.stranded(n.FreeCPU, n.FreeMemory, n.Idle()) }

// sortedFree appends what is free on the usable GPUs, in ascending order, and returns its sum.
func sortedFree(n *Node, list []int32) ([]int32, int64) {
	idle := int64(0)
	for i := range n.GPUs {
		if g := &n.GPUs[i]; g.State.allocatable() {
			idle += int64(g.Free)
			list = insert(list, g.Free)
		}
	}
	return list, idle
}

// insert adds a number to an ascending list.
func insert(list []int32, number int32) []int32 {
	list = append(list, number)
	for i := len(list) - 1; i > 0 && list[i-1] > number; i-- {
		list[i-1], list[i] = number, list[i-1]
	}
	return list
}
