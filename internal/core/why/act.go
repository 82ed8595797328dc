package why

import (
	"maps"
	"slices"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// ActKind is a kind of change.
type ActKind string

// The changes that are known.
const (
	// EndPod: a pod ends.
	EndPod ActKind = "EndPod"
	// Tolerate: the pod tolerates a taint. SelectLess: it does not select nodes by a label or rule. AcceptModel: it accepts another model,
	// or any where Key is empty: nodes whose model is not known have no label to select them by.
	Tolerate    ActKind = "Tolerate"
	SelectLess  ActKind = "SelectLess"
	AcceptModel ActKind = "AcceptModel"
	// Uncordon, MakeReady, Validate, StartAgent, RepairNode: a node accepts pods again. RepairGPU: a GPU can be allocated again.
	Uncordon   ActKind = "Uncordon"
	MakeReady  ActKind = "MakeReady"
	Validate   ActKind = "Validate"
	StartAgent ActKind = "StartAgent"
	RepairNode ActKind = "RepairNode"
	RepairGPU  ActKind = "RepairGPU"
	// RequestGPUs, RequestCPU, RequestMemory, RequestOther: the pod requests less. RequestResource: it requests another resource.
	RequestGPUs     ActKind = "RequestGPUs"
	RequestCPU      ActKind = "RequestCPU"
	RequestMemory   ActKind = "RequestMemory"
	RequestResource ActKind = "RequestResource"
	// RelaxClaim: a claim of the pod requests something else.
	RelaxClaim ActKind = "RelaxClaim"
	// NewNode: a node with what the pod requests joins. It is proposed when nothing else helps.
	NewNode ActKind = "NewNode"
	// Repartition: an idle GPU gets other MIG devices. AddNode: a node like an existing one joins.
	Repartition ActKind = "Repartition"
	AddNode     ActKind = "AddNode"
	// FewerMembers: the least number of members of a gang is smaller. OtherLevel: it requires another level, or none.
	FewerMembers ActKind = "FewerMembers"
	OtherLevel   ActKind = "OtherLevel"
)

// weight orders changes: the smallest one is that whose acts have the smallest sum. An end that is under way anyway is the least, then what
// a node does by itself, then what one command does without a loss for others, then the end of another pod; last what needs hardware.
func (a *Act) weight() int {
	switch a.Kind {
	case EndPod:
		if a.Ending {
			return 1
		}
		return 4
	case Validate:
		return 1
	case Uncordon, Tolerate, StartAgent:
		return 2
	case OtherLevel, MakeReady, SelectLess, AcceptModel, RequestCPU, RequestMemory, RequestResource:
		return 3
	case RequestGPUs, FewerMembers:
		return 5
	case RepairGPU, RepairNode, Repartition:
		return 6
	case AddNode:
		return 9 * int(max(1, a.Count))
	case RelaxClaim:
		return 5 + a.GPU
	}
	return 100
}

// Act is one thing that changes.
type Act struct {
	Kind ActKind
	// Node is the node that changes, or that a new one is like.
	Node string
	// Pod is the pod that ends; Ending is true when it is being deleted already.
	Pod    string
	Ending bool
	Owner  string
	// Gang is the Key of the gang that ends, for each of its pods.
	Gang string
	// Priority is that of the pod that ends.
	Priority int32
	// Key is the taint or label, the model, or the resource.
	Key string
	// Text is the clause of RelaxClaim, and the level of OtherLevel that is required now.
	Text string
	// GPU is the position of the physical GPU on the node; of RelaxClaim it is the number of the relaxation, of OtherLevel the level.
	GPU int
	// Count is what is requested then: GPUs, thousandths of a core, MiB; of Repartition the MIG devices, of AddNode the nodes of a gang,
	// of FewerMembers the members.
	Count int64
	// Was is what is requested now.
	Was int64
}

// fixes are the changes that end a block, by its code.
var fixes = map[Code]ActKind{
	Taint: Tolerate, Cordoned: Uncordon, NotReady: MakeReady, NotValidated: Validate, Sick: RepairNode, Selector: SelectLess,
}

// blockAct returns the change that ends a block of a node; false when there is none.
func blockAct(n *Node, b *Block) (Act, bool) {
	kind, ok := fixes[b.Code]
	if !ok {
		return Act{}, false
	}
	act := Act{Kind: kind, Key: b.Key}
	if kind != Tolerate && kind != SelectLess {
		act.Node = n.Name
	}
	return act, true
}

// ends tells whether an act ends a block of a node.
func (a *Act) ends(n *Node, b *Block) bool {
	made, ok := blockAct(n, b)
	return ok && made == *a
}

// with returns the world after changes. It shares what they do not change.
func (w *world) with(acts []Act) *world {
	next := *w
	next.nodes = slices.Clone(w.nodes)
	next.gone = slices.Clone(w.gone)
	for i := range acts {
		next.apply(&acts[i])
	}
	return &next
}

// on returns a node after changes that concern it, and the world with the pod's own changes and that node alone.
func (w *world) on(n *Node, acts []Act) (*world, *Node) {
	next := *w
	next.nodes = []Node{*n}
	next.gone = slices.Clone(w.gone)
	for i := range acts {
		next.apply(&acts[i])
	}
	return &next, &next.nodes[len(next.nodes)-1]
}

func (w *world) apply(a *Act) {
	switch a.Kind {
	case EndPod:
		w.end(a.Pod)
	case RequestGPUs:
		w.requests, w.most = w.requestGPUs(a.Count), min(w.most, a.Count)
	case RequestCPU, RequestMemory:
		w.requests = requestPlain(w.requests, a)
	case RequestResource, AcceptModel:
		w.requests = slices.Clone(w.requests)
		for i := range w.requests {
			requestOther(&w.requests[i], a)
		}
	case RelaxClaim:
		w.relaxed = append(slices.Clone(w.relaxed), a.Key)
	case NewNode:
		w.nodes = append(w.nodes, w.fresh())
	case AddNode:
		if n := w.find(a.Node); n != nil {
			w.nodes = append(w.nodes, w.emptied(n))
		}
	default:
		w.applyToNodes(a)
	}
}

// requestOther changes the resource or the models of a request.
func requestOther(s *fleet.Shape, a *Act) {
	switch {
	case s.GPUs == 0:
	case a.Kind == RequestResource:
		s.Resource = a.Key
	case a.Key == "":
		s.Models = fleet.ModelSet{}
	case s.Models != (fleet.ModelSet{}):
		s.Models = fleet.ParseModels(s.Models.String() + "|" + a.Key)
	}
}

// applyToNodes applies a change that ends blocks, or that changes the GPUs of one node.
func (w *world) applyToNodes(a *Act) {
	for i := range w.nodes {
		n := &w.nodes[i]
		if a.Node != "" && a.Node != n.Name {
			continue
		}
		switch a.Kind {
		case StartAgent:
			n.Node.GPUs = slices.Clone(n.GPUs)
			for _, k := range n.Silent {
				n.GPUs[k].State = fleet.Usable
			}
		case RepairGPU:
			n.Node.GPUs = slices.Clone(n.GPUs)
			for k := range n.GPUs {
				if g := &n.GPUs[k]; int(g.Physical) == a.GPU && g.State > fleet.Degraded {
					g.State = fleet.Usable
				}
			}
		case Repartition:
			n.repartition(a)
		default:
			n.Blocks = slices.DeleteFunc(slices.Clone(n.Blocks), func(b Block) bool { return a.ends(n, &b) })
		}
	}
}

// repartition replaces the entries of a physical GPU. The old ones stay in the list, as holders name entries by their position.
func (n *Node) repartition(a *Act) {
	n.Node.GPUs = slices.Clone(n.GPUs)
	for i := range n.GPUs {
		if int(n.GPUs[i].Physical) == a.GPU {
			n.GPUs[i].State = fleet.Gone
		}
	}
	unit := int32(fleet.Whole / max(1, a.Count))
	size := unit * int32(a.Count)
	n.GPUs = append(n.GPUs, fleet.GPU{Resource: a.Key, Unit: unit, Size: size, Free: size, Physical: uint8(a.GPU)})
}

func (w *world) find(name string) *Node {
	for i := range w.nodes {
		if w.nodes[i].Name == name {
			return &w.nodes[i]
		}
	}
	return nil
}

// end ends a pod. What it had is free then; on a GPU that cannot be allocated it stays unusable.
func (w *world) end(name string) {
	for i := range w.nodes {
		n := &w.nodes[i]
		for k := range w.holders[n.Name] {
			if h := &w.holders[n.Name][k]; h.Name == name {
				n.release(h)
			}
		}
	}
	w.gone = append(w.gone, name)
}

// release takes a pod from a node.
func (n *Node) release(h *Holder) {
	n.FreeCPU = min(n.CPU, n.FreeCPU+h.CPU)
	n.FreeMemory = min(n.Memory, n.FreeMemory+h.Memory)
	if len(h.Others) > 0 {
		n.Others = maps.Clone(n.Others)
		for name, amount := range h.Others {
			if o, ok := n.Others[name]; ok {
				n.Others[name] = Other{o.All, min(o.All, o.Free+amount)}
			}
		}
	}
	if len(h.Devices) == 0 {
		return
	}
	n.Node.GPUs = slices.Clone(n.GPUs)
	for _, d := range h.Devices {
		if d.Entry < 0 || d.Entry >= len(n.GPUs) {
			continue
		}
		g := &n.GPUs[d.Entry]
		g.Free = min(sizeOf(g), g.Free+g.Unit*int32(d.Count))
	}
	n.quieten(h)
}

// hold takes the devices of a pod.
func (n *Node) hold(h *Holder) {
	for _, d := range h.Devices {
		if d.Entry >= 0 && d.Entry < len(n.GPUs) {
			g := &n.GPUs[d.Entry]
			g.Free = max(0, g.Free-g.Unit*int32(d.Count))
			if h.Traffic != 0 {
				n.AddTraffic(d.Entry, h.Traffic)
			}
		}
	}
}

// quieten takes the traffic of a pod from its GPUs: once for each of its devices, as it was added.
func (n *Node) quieten(h *Holder) {
	for _, d := range h.Devices {
		for k := range n.GPUs {
			g := &n.GPUs[k]
			if d.Entry >= len(n.GPUs) || g.Physical != n.GPUs[d.Entry].Physical {
				continue
			}
			if h.Traffic&fleet.Bandwidth != 0 && g.Bandwidth > 0 {
				g.Bandwidth--
			}
			if h.Traffic&fleet.HostBandwidth != 0 && g.HostBandwidth > 0 {
				g.HostBandwidth--
			}
		}
	}
}

func sizeOf(g *fleet.GPU) int32 {
	if g.Size == 0 {
		return fleet.Whole
	}
	return g.Size
}

// emptied returns a node like n on which only pods are that every such node has, and which accepts pods.
func (w *world) emptied(n *Node) Node {
	made := *n
	made.Name = n.Name + " (new)"
	made.Blocks = slices.DeleteFunc(slices.Clone(n.Blocks), func(b Block) bool {
		return b.Code != Taint && b.Code != Selector && b.Code != ClaimRule
	})
	for k := range w.holders[n.Name] {
		if h := &w.holders[n.Name][k]; !h.Permanent && !slices.Contains(w.gone, h.Name) {
			made.release(h)
		}
	}
	made.Node.GPUs = slices.Clone(made.GPUs)
	for i := range made.GPUs {
		g := &made.GPUs[i]
		g.State, g.Free, g.Bandwidth, g.HostBandwidth = fleet.Usable, sizeOf(g), 0, 0
	}
	for k := range w.holders[n.Name] {
		if h := &w.holders[n.Name][k]; h.Permanent {
			made.hold(h)
		}
	}
	made.Silent = nil
	return made
}

// requestGPUs returns requests for so many devices in all: the last requests lose, the first one with GPUs gains.
func (w *world) requestGPUs(count int64) []fleet.Shape {
	requests, have := slices.Clone(w.requests), int64(0)
	for i := range requests {
		have += int64(requests[i].GPUs)
	}
	for i := len(requests) - 1; i >= 0 && have > count; i-- {
		s := &requests[i]
		less := min(have-count, int64(s.GPUs))
		s.GPUs -= int32(less)
		have -= less
		if s.GPUs == 0 {
			s.Resource, s.Share = "", 0
			if i > 0 {
				requests = slices.Delete(requests, i, i+1)
			}
		}
	}
	first := slices.IndexFunc(requests, func(s fleet.Shape) bool { return s.GPUs > 0 })
	if first < 0 || have >= count {
		return requests
	}
	requests[first].GPUs = int32(min(fleet.MaxGPUs, int64(requests[first].GPUs)+count-have))
	return requests
}

// requestPlain returns requests of which the first has that CPU or memory.
func requestPlain(requests []fleet.Shape, a *Act) []fleet.Shape {
	requests = slices.Clone(requests)
	for i := range requests {
		if a.Kind == RequestCPU {
			requests[i].CPU = 0
		} else {
			requests[i].Memory = 0
		}
	}
	if a.Kind == RequestCPU {
		requests[0].CPU = a.Count
	} else {
		requests[0].Memory = a.Count
	}
	return requests
}
