package fleet

// maxKinds bounds the resources of one node that the measure tells apart; further ones count as the last.
const maxKinds = 16

// idleKind is what a node has idle of one resource.
type idleKind struct {
	resource string
	idle     int64
	// devices is how many devices are free.
	devices int32
}

// kinds lists the resources of a node after a pod of shape s was placed on these GPUs, in the order of the entries, and appends them
// to a list. The result has all that is idle, too.
func (n *Node) kinds(list []idleKind, s *Shape, gpus GPUSet) ([]idleKind, int64) {
	total := int64(0)
	for i := range n.GPUs {
		g := &n.GPUs[i]
		if !g.State.allocatable() {
			continue
		}
		free := g.Free
		if gpus.Has(i) {
			free -= s.Of(g)
		}
		at := 0
		for at < len(list) && list[at].resource != g.Resource {
			at++
		}
		if at == len(list) {
			if at == maxKinds {
				at--
			} else {
				list = append(list, idleKind{resource: g.Resource})
			}
		}
		k := &list[at]
		total += int64(free)
		k.idle += int64(free)
		if g.Unit > 0 && free >= g.Unit {
			k.devices += free / g.Unit
		}
	}
	return list, total
}

// hasResources tells whether pods request devices of the node by the names of resources.
func (n *Node) hasResources() bool { return len(n.GPUs) > 0 && n.GPUs[0].Resource != "" }

// unusable returns F of a node whose devices have resources, after a pod of shape s was placed on these GPUs: the expected idle
// thousandths that a pod of the mix cannot use, times Unit. A pod cannot use the devices of another resource; and nothing at all when
// the node has too few devices or too little CPU for it.
func (m *Measure) unusable(n *Node, s *Shape, gpus GPUSet) int64 {
	var space [maxKinds]idleKind
	kinds, idle := n.kinds(space[:0], s, gpus)
	cpu, lost := n.FreeCPU-s.CPU, int64(0)
	for i := range m.mix {
		t := &m.mix[i]
		lost += t.Weight * (idle - usable(t, kinds, cpu, n.Model))
	}
	return lost
}

// usable returns how much of what is idle a pod of the mix can use.
func usable(t *Typical, kinds []idleKind, cpu int64, model string) int64 {
	if t.Shape.GPUs == 0 || t.Shape.CPU > cpu || !t.Shape.Models.Allows(model) {
		return 0
	}
	for i := range kinds {
		k := &kinds[i]
		if k.resource != t.Shape.Resource {
			continue
		}
		if k.devices < t.Shape.GPUs {
			return 0
		}
		return k.idle
	}
	return 0
}
