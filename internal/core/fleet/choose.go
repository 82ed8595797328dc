package fleet

import (
	"github.com/berth-gpu/berth/internal/core/placement"
	"github.com/berth-gpu/berth/internal/core/placement/shared"
)

// Choice is what a pod gets of a node.
type Choice struct {
	GPUs GPUSet
	// Degraded is how many of them are degraded, Crowded how many are below a PCIe switch with pods that need much
	// bandwidth to the host, if the pod is one of these.
	Degraded int
	Crowded  int
	// Linked is true where the links between the GPUs are known; Answer is their value then.
	Linked bool
	Answer shared.Answer
}

// Choose returns the GPUs that a pod of shape s gets of n, on which it fits. For devices of a resource it is what the node's device
// plugin chooses: healthy GPUs before degraded ones; whole GPUs by their links; of replicas and MIG devices those of the GPU that is
// used most or least, as Node.Spread says. Without links they are the first free ones.
func Choose(n *Node, s *Shape) Choice {
	if s.GPUs == 0 {
		return Choice{}
	}
	var c Choice
	if s.Resource == "" {
		c.GPUs = Tightest(n, *s)
	} else {
		c = chooseDevices(n, s)
	}
	n.judge(s, &c)
	return c
}

// Chosen returns the value of GPUs that something else has chosen, such as the allocator of claims.
func Chosen(n *Node, s *Shape, gpus GPUSet) Choice {
	c := Choice{GPUs: gpus}
	if physical, ok := n.physical(gpus); ok && n.Links != nil {
		if answer, err := n.Links.Choose(physical, physical, physical.Len()); err == nil {
			c.Linked, c.Answer = true, answer
		}
	}
	n.judge(s, &c)
	return c
}

// judge counts what is wrong with the GPUs of a choice.
func (n *Node) judge(s *Shape, c *Choice) {
	for i := range c.GPUs.All() {
		g := &n.GPUs[i]
		if g.State != Usable {
			c.Degraded++
		}
		if s.Traffic&HostBandwidth != 0 && n.switchCrowded(g.Switch) {
			c.Crowded++
		}
	}
}

// switchCrowded tells whether a pod below a PCIe switch needs much bandwidth to the host.
func (n *Node) switchCrowded(number uint8) bool {
	for i := range n.GPUs {
		if g := &n.GPUs[i]; g.Switch == number && g.HostBandwidth > 0 {
			return true
		}
	}
	return false
}

// classes are the GPUs that a pod can have, by their state.
type classes [Degraded + 1]GPUSet

func chooseDevices(n *Node, s *Shape) Choice {
	var free classes
	whole := true
	for i := range n.GPUs {
		g := &n.GPUs[i]
		if s.wants(g) && g.Free >= g.Unit && g.State.allocatable() {
			whole = whole && g.Unit == Whole
			free[g.State] = free[g.State].With(i)
		}
	}
	if !whole {
		return Choice{GPUs: n.chooseByUse(int(s.GPUs), free)}
	}
	if n.Links != nil {
		if c, ok := n.chooseLinked(s, free); ok {
			return c
		}
	}
	var chosen GPUSet
	for _, class := range free {
		chosen |= first(class, int(s.GPUs)-chosen.Len())
	}
	return Choice{GPUs: chosen}
}

// first returns the n lowest of a set.
func first(set GPUSet, n int) GPUSet {
	var result GPUSet
	for i := range set.All() {
		if result.Len() >= n {
			break
		}
		result = result.With(i)
	}
	return result
}

// chooseLinked chooses whole GPUs by their links, as the device plugin does: while the better classes have too few, all of them and the
// best of the next class to go with them.
func (n *Node) chooseLinked(s *Shape, free classes) (Choice, bool) {
	var available, must GPUSet
	for _, class := range free {
		if available.Len() >= int(s.GPUs) {
			break
		}
		must, available = available, available|class
	}
	at, ok := n.physical(available)
	required, ok2 := n.physical(must)
	if !ok || !ok2 || at.Len() < int(s.GPUs) {
		return Choice{}, false
	}
	answer, err := n.Links.Choose(at, required, int(s.GPUs))
	if err != nil {
		return Choice{}, false
	}
	return Choice{GPUs: n.entries(answer.GPUs, available), Linked: true, Answer: answer}, true
}

// physical returns the positions of GPUs. The result is false for one that the topology does not have.
func (n *Node) physical(gpus GPUSet) (placement.Set, bool) {
	var set placement.Set
	for i := range gpus.All() {
		p := n.GPUs[i].Physical
		if p >= placement.MaxGPUs || n.Links != nil && int(p) >= n.Links.GPUs() {
			return 0, false
		}
		set |= 1 << p
	}
	return set, true
}

// entries is the inverse of physical, within the available ones.
func (n *Node) entries(set placement.Set, available GPUSet) GPUSet {
	var gpus GPUSet
	for i := range available.All() {
		if set.Has(int(n.GPUs[i].Physical)) {
			gpus = gpus.With(i)
		}
	}
	return gpus
}

// oneByOne tells whether a request for several devices of n is a request for one after another: replicas or MIG devices, of which one
// entry has several.
func (n *Node) oneByOne(s *Shape) bool {
	if s.GPUs < 2 || s.Resource == "" {
		return false
	}
	for i := range n.GPUs {
		if g := &n.GPUs[i]; s.wants(g) && g.Unit < Whole {
			return true
		}
	}
	return false
}

// chooseByUse chooses an entry for each of count replicas or MIG devices: another one for each while there are others. The result has fewer
// entries where there are not.
func (n *Node) chooseByUse(count int, free classes) GPUSet {
	var chosen GPUSet
	for range count {
		var from GPUSet
		for _, class := range free {
			if from = class &^ chosen; from != 0 {
				break
			}
		}
		best, load := -1, int32(0)
		for i := range from.All() {
			used := n.used(n.GPUs[i].Physical)
			if best < 0 || n.Spread && used < load || !n.Spread && used > load {
				best, load = i, used
			}
		}
		if best < 0 {
			break
		}
		chosen = chosen.With(best)
	}
	return chosen
}

// used returns what pods have of a physical GPU, in thousandths.
func (n *Node) used(physical uint8) int32 {
	used := int32(0)
	for i := range n.GPUs {
		if g := &n.GPUs[i]; g.Physical == physical {
			used += g.Total() - g.Free
		}
	}
	return used
}

// Tightest returns the GPUs of n with the least free that still have the share of s, the lowest index first among equals, and
// degraded ones last. For whole GPUs these are the first free ones. The pod must fit.
func Tightest(n *Node, s Shape) GPUSet {
	var chosen GPUSet
	for range s.GPUs {
		best := -1
		for i := range n.GPUs {
			g := &n.GPUs[i]
			if !g.State.allocatable() || !s.wants(g) || g.Free < s.Of(g) || chosen.Has(i) {
				continue
			}
			if best < 0 || g.State < n.GPUs[best].State || g.State == n.GPUs[best].State && g.Free < n.GPUs[best].Free {
				best = i
			}
		}
		if best >= 0 {
			chosen = chosen.With(best)
		}
	}
	return chosen
}
