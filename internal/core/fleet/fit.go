package fleet

import "fmt"

// Lack is what a node lacks for a pod.
type Lack uint8

const (
	// None: the pod fits.
	None Lack = iota
	// Model: the GPUs of the node are of a model that the pod does not accept.
	Model
	// GPUs: the node has too few GPUs, used or not.
	GPUs
	// Health: the node has enough GPUs, but too few of them are usable.
	Health
	// Share: enough GPUs are usable, but too few have the share free.
	Share
	// CPU and Memory: less is free than the pod requests.
	CPU
	Memory
)

func (l Lack) String() string {
	switch l {
	case None:
		return "fits"
	case Model:
		return "GPU model"
	case GPUs:
		return "number of GPUs"
	case Health:
		return "usable GPUs"
	case Share:
		return "free GPUs"
	case CPU:
		return "CPU"
	case Memory:
		return "memory"
	}
	return fmt.Sprintf("lack %d", uint8(l))
}

// Reason says why a pod does not fit on a node. The zero value says that it fits.
type Reason struct {
	Lack Lack
	// Want is what the pod requests and Have what the node has of it: GPUs, thousandths of a core, or MiB. Both are 0 when the
	// model lacks.
	Want, Have int64
	// Model is that of the node's GPUs and Models are those that the pod accepts, when the model lacks.
	Model  string
	Models ModelSet
	// Share is what the pod requests of each GPU, in thousandths, when GPUs lack.
	Share int32
	// Draining and Gone count the GPUs of the node that are not usable.
	Draining, Gone int
}

// String returns the reason as part of a sentence.
func (r Reason) String() string {
	switch r.Lack {
	case None:
		return "the pod fits"
	case Model:
		return fmt.Sprintf("its GPUs are of the model %q, the pod accepts %s", r.Model, r.Models)
	case GPUs:
		return fmt.Sprintf("it has %d GPUs, the pod requests %d", r.Have, r.Want)
	case Health:
		return fmt.Sprintf("%d of its GPUs are usable (%d draining, %d gone), the pod requests %d", r.Have, r.Draining, r.Gone, r.Want)
	case Share:
		if r.Share == Whole {
			return fmt.Sprintf("%d of its GPUs are free, the pod requests %d", r.Have, r.Want)
		}
		return fmt.Sprintf("%d of its GPUs have %d thousandths free, the pod requests %d", r.Have, r.Share, r.Want)
	case CPU:
		return fmt.Sprintf("%s cores are free, the pod requests %s", cores(r.Have), cores(r.Want))
	case Memory:
		return fmt.Sprintf("%d MiB of memory are free, the pod requests %d", r.Have, r.Want)
	}
	return r.Lack.String()
}

// fits tells whether a pod of shape s fits on n. It is Fit without its reason.
func fits(n *Node, s *Shape) bool {
	if n.FreeCPU < s.CPU || n.FreeMemory < s.Memory {
		return false
	}
	if s.GPUs == 0 {
		return true
	}
	have := int32(0)
	for _, g := range n.GPUs {
		if g.Free >= s.Share && g.State == Usable {
			have++
		}
	}
	return have >= s.GPUs && s.Models.Allows(n.Model)
}

// Fit says whether a pod of shape s fits on n now, and otherwise the first thing that lacks: what no other pod's end can change
// comes first.
func Fit(n *Node, s Shape) Reason {
	if s.GPUs > 0 {
		if r := fitGPUs(n, s); r.Lack != None {
			return r
		}
	}
	switch {
	case n.FreeCPU < s.CPU:
		return Reason{Lack: CPU, Want: s.CPU, Have: n.FreeCPU}
	case n.FreeMemory < s.Memory:
		return Reason{Lack: Memory, Want: s.Memory, Have: n.FreeMemory}
	}
	return Reason{}
}

func fitGPUs(n *Node, s Shape) Reason {
	if !s.Models.Allows(n.Model) {
		return Reason{Lack: Model, Model: n.Model, Models: s.Models}
	}
	r := Reason{Want: int64(s.GPUs), Share: s.Share}
	var usable, free int64
	for _, g := range n.GPUs {
		switch {
		case g.State == Draining:
			r.Draining++
		case g.State == Gone:
			r.Gone++
		default:
			usable++
			if g.Free >= s.Share {
				free++
			}
		}
	}
	switch all := int64(len(n.GPUs)); {
	case all < r.Want:
		r.Lack, r.Have = GPUs, all
	case usable < r.Want:
		r.Lack, r.Have = Health, usable
	case free < r.Want:
		r.Lack, r.Have = Share, free
	default:
		return Reason{}
	}
	return r
}

// Tightest returns the GPUs of n with the least free that still have the share of s, the lowest index first among equals. For
// whole GPUs these are the first free ones. The pod must fit.
func Tightest(n *Node, s Shape) GPUSet {
	var chosen GPUSet
	for range s.GPUs {
		best := -1
		for i, g := range n.GPUs {
			if g.State != Usable || g.Free < s.Share || chosen.Has(i) {
				continue
			}
			if best < 0 || g.Free < n.GPUs[best].Free {
				best = i
			}
		}
		if best >= 0 {
			chosen = chosen.With(best)
		}
	}
	return chosen
}
