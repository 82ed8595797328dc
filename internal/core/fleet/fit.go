package fleet

import (
	"cmp"
	"fmt"
)

// Lack is what a node lacks for a pod.
type Lack uint8

const (
	// None: the pod fits.
	None Lack = iota
	// Resource: the node has no devices of the resource.
	Resource
	// Model: the GPUs of the node are of a model that the pod does not accept.
	Model
	// Many: the node refuses requests for more than one device of the resource.
	Many
	// GPUs: the node has too few GPUs, used or not.
	GPUs
	// Health: the node has enough GPUs, but too few of them are usable.
	Health
	// Share: enough GPUs are usable, but too few have the share free.
	Share
	// Contention: the pod needs much memory bandwidth, and the GPU that it would get has another such pod.
	Contention
	// CPU and Memory: less is free than the pod requests.
	CPU
	Memory
)

func (l Lack) String() string {
	switch l {
	case None:
		return "fits"
	case Resource:
		return "resource"
	case Model:
		return "GPU model"
	case Many:
		return "requests for several"
	case GPUs:
		return "number of GPUs"
	case Health:
		return "usable GPUs"
	case Share:
		return "free GPUs"
	case Contention:
		return "memory bandwidth"
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
	Want int64
	Have int64
	// Model is that of the node's GPUs and Models are those that the pod accepts, when the model lacks.
	Model  string
	Models ModelSet
	// Share is what the pod requests of each GPU, in thousandths, and Resource the resource of which it requests devices, when GPUs lack.
	Share    int32
	Resource string
	// Draining and Gone count the GPUs of the node that are not usable.
	Draining int
	Gone     int
}

// String returns the reason as part of a sentence.
func (r Reason) String() string {
	switch r.Lack {
	case None:
		return "the pod fits"
	case Model:
		return fmt.Sprintf("its GPUs are of the model %q, the pod accepts %s", r.Model, r.Models)
	case Resource:
		return fmt.Sprintf("it has no %s", r.Resource)
	case Many:
		return fmt.Sprintf("it refuses requests for more than one %s, the pod requests %d", r.Resource, r.Want)
	case GPUs:
		return fmt.Sprintf("it has %d %s, the pod requests %d", r.Have, r.things(), r.Want)
	case Health:
		return fmt.Sprintf("%d of its %s are usable (%d draining, %d gone), the pod requests %d", r.Have, r.things(), r.Draining, r.Gone, r.Want)
	case Share:
		if r.Share == Whole || r.Resource != "" {
			return fmt.Sprintf("%d of its %s are free, the pod requests %d", r.Have, r.things(), r.Want)
		}
		return fmt.Sprintf("%d of its GPUs have %d thousandths free, the pod requests %d", r.Have, r.Share, r.Want)
	case Contention:
		return fmt.Sprintf("the pod needs much memory bandwidth, and would share its GPU with another such pod (%d of the free %s would not)", r.Have, r.things())
	case CPU:
		return fmt.Sprintf("%s cores are free, the pod requests %s", cores(r.Have), cores(r.Want))
	case Memory:
		return fmt.Sprintf("%d MiB of memory are free, the pod requests %d", r.Have, r.Want)
	}
	return r.Lack.String()
}

// things is what the pod requests.
func (r Reason) things() string { return cmp.Or(r.Resource, "GPUs") }

// devices counts what a node has for a shape: devices in all, of entries that can be allocated, that are free, and that are free
// without contention. single is true where a request for several is refused.
type devices struct {
	all      int64
	usable   int64
	free     int64
	calm     int64
	draining int
	gone     int
	single   bool
}

func count(n *Node, s *Shape) devices {
	var d devices
	for i := range n.GPUs {
		g := &n.GPUs[i]
		if !s.wants(g) {
			continue
		}
		all, free := int64(1), int64(0)
		if amount := s.Of(g); g.Unit > 0 {
			all, free = int64(g.Total()/amount), int64(g.Free/amount)
		} else if g.Free >= amount {
			free = 1
		}
		d.all += all
		d.single = d.single || g.Single
		switch {
		case g.State == Draining:
			d.draining += int(all)
		case g.State == Gone:
			d.gone += int(all)
		default:
			d.usable += all
			d.free += free
			if g.Bandwidth == 0 {
				d.calm += free
			}
		}
	}
	return d
}

// Fits tells whether a pod of shape s fits on n. It is Fit without its reason.
func Fits(n *Node, s *Shape) bool {
	if n.FreeCPU < s.CPU || n.FreeMemory < s.Memory {
		return false
	}
	if s.GPUs == 0 {
		return true
	}
	if s.Resource == "" {
		have := int32(0)
		for i := range n.GPUs {
			if g := &n.GPUs[i]; g.Free >= s.Share && g.State.allocatable() && g.Resource == "" {
				have++
			}
		}
		return have >= s.GPUs && s.Models.Allows(n.Model)
	}
	d := count(n, s)
	return d.free >= int64(s.GPUs) && (s.GPUs == 1 || !d.single) && s.Models.Allows(n.Model) && !contended(n, s)
}

// contended tells whether a pod that needs much memory bandwidth would share a GPU with another one. The node's device plugin chooses
// the GPU and knows nothing of that, so it counts what it would choose.
func contended(n *Node, s *Shape) bool {
	if s.Traffic&Bandwidth == 0 || s.Resource == "" {
		return false
	}
	for i := range Choose(n, s).GPUs.All() {
		if n.GPUs[i].Bandwidth > 0 {
			return true
		}
	}
	return false
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
	d := count(n, &s)
	if s.Resource != "" && d.all == 0 {
		return Reason{Lack: Resource, Want: int64(s.GPUs), Resource: s.Resource}
	}
	if !s.Models.Allows(n.Model) {
		return Reason{Lack: Model, Model: n.Model, Models: s.Models}
	}
	r := Reason{Want: int64(s.GPUs), Share: s.Share, Resource: s.Resource, Draining: d.draining, Gone: d.gone}
	switch {
	case d.single && s.GPUs > 1:
		r.Lack = Many
	case d.all < r.Want:
		r.Lack, r.Have = GPUs, d.all
	case d.usable < r.Want:
		r.Lack, r.Have = Health, d.usable
	case d.free < r.Want:
		r.Lack, r.Have = Share, d.free
	case contended(n, &s):
		r.Lack, r.Have = Contention, d.calm
	default:
		return Reason{}
	}
	return r
}
