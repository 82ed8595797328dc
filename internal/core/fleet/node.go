package fleet

import (
	"fmt"
	"iter"
	"math/bits"

	"github.com/berth-gpu/berth/internal/core/placement/shared"
)

// Whole is a whole GPU in thousandths.
const Whole = 1000

// MaxGPUs is how many GPUs a node can have.
const MaxGPUs = 64

// MaxAmount is the largest CPU (thousandths of a core) and memory (MiB) of a node or pod.
const MaxAmount = 1 << 40

// State says whether a GPU can be given to new pods.
type State uint8

const (
	// Usable GPUs can be given to new pods.
	Usable State = iota
	// Degraded GPUs are given to new pods when no usable ones are left.
	Degraded
	// Draining GPUs keep the pods that they have, and get no new ones.
	Draining
	// Gone GPUs do not answer.
	Gone
)

func (s State) String() string {
	switch s {
	case Usable:
		return "usable"
	case Degraded:
		return "degraded"
	case Draining:
		return "draining"
	case Gone:
		return "gone"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// allocatable tells whether new pods can be given GPUs of the state.
func (s State) allocatable() bool { return s <= Degraded }

// GPU is what pods can have of a GPU: all of it at once, any share of it, its replicas, or those of its MIG devices that have one
// profile. A GPU with MIG devices of several profiles is several entries.
type GPU struct {
	// Free is what no pod has, in thousandths of the physical GPU.
	Free int32
	// State says whether that can be given away.
	State State
	// Resource is the name under which pods request devices of the entry. It is empty where pods request shares, as in traces.
	Resource string
	// Unit is what one device of the resource is, in thousandths: Whole, less for a replica or MIG device, 0 without a resource.
	Unit int32
	// Size is what the entry has in all, in thousandths; 0 stands for Whole.
	Size int32
	// Physical is the position of the physical GPU on the node: that in Node.Links.
	Physical uint8
	// Switch numbers the PCIe switches, or bridges, below which the node's GPUs are.
	Switch uint8
	// Single is true where a request for more than one device of the entry's resource is refused.
	Single bool
	// Bandwidth counts the pods on the physical GPU that need much bandwidth of its memory, HostBandwidth those that need much to the host.
	Bandwidth     int16
	HostBandwidth int16
}

// Total returns what the entry has in all, in thousandths.
func (g *GPU) Total() int32 {
	if g.Size == 0 {
		return Whole
	}
	return g.Size
}

// Node is a node with its capacity and what is free of it.
type Node struct {
	// Name is unique in a fleet.
	Name string
	// Model is the model of all GPUs of the node.
	Model string
	// CPU and Memory are what pods can have in all, in thousandths of a core and MiB; FreeCPU and FreeMemory what no pod has.
	CPU        int64
	FreeCPU    int64
	Memory     int64
	FreeMemory int64
	// GPUs are the node's GPUs; their position is their index.
	GPUs []GPU
	// Links are the links between the physical GPUs, or nil where they are not known.
	Links *shared.Topology
	// Spread is true where the node takes a device from the GPU that is used least; otherwise from the one that is used most.
	Spread bool

	index      int
	generation uint64
}

// Empty returns a node on which no pod runs: cpu in thousandths of a core, memory in MiB.
func Empty(name, model string, cpu, memory int64, gpus int) Node {
	n := Node{Name: name, Model: model, CPU: cpu, FreeCPU: cpu, Memory: memory, FreeMemory: memory, GPUs: make([]GPU, gpus)}
	for i := range n.GPUs {
		n.GPUs[i] = GPU{Free: Whole, Physical: uint8(i)}
	}
	return n
}

// Index is the position of the node in its fleet: 0 is the node that a tie goes to first.
func (n *Node) Index() int { return n.index }

// Generation changes with each operation on the node, and comes back with a rollback. Equal generations of a node of one fleet
// are equal states.
func (n *Node) Generation() uint64 { return n.generation }

// Idle returns what pods could still be given of the node's GPUs, in thousandths, degraded ones included.
func (n *Node) Idle() int64 {
	var idle int64
	for _, g := range n.GPUs {
		if g.State.allocatable() {
			idle += int64(g.Free)
		}
	}
	return idle
}

// validate returns an error for a node that cannot be.
func (n *Node) validate() error {
	switch {
	case len(n.GPUs) > MaxGPUs:
		return fmt.Errorf("node %s: %d GPUs; want at most %d", n.Name, len(n.GPUs), MaxGPUs)
	case n.CPU < 0 || n.CPU > MaxAmount || n.FreeCPU < 0 || n.FreeCPU > n.CPU:
		return fmt.Errorf("node %s: %d of %d thousandths of a core are free; want 0 <= free <= all <= %d", n.Name, n.FreeCPU, n.CPU, int64(MaxAmount))
	case n.Memory < 0 || n.Memory > MaxAmount || n.FreeMemory < 0 || n.FreeMemory > n.Memory:
		return fmt.Errorf("node %s: %d of %d MiB are free; want 0 <= free <= all <= %d", n.Name, n.FreeMemory, n.Memory, int64(MaxAmount))
	}
	for i := range n.GPUs {
		if err := n.GPUs[i].validate(); err != nil {
			return fmt.Errorf("node %s, GPU %d: %w", n.Name, i, err)
		}
	}
	return nil
}

func (g *GPU) validate() error {
	switch {
	case g.Size < 0 || g.Size > Whole || g.Free < 0 || g.Free > g.Total() || g.State > Gone:
		return fmt.Errorf("%d of %d thousandths are free, %v; want 0 to %d, and a known state", g.Free, g.Total(), g.State, Whole)
	case (g.Resource == "") != (g.Unit == 0) || g.Unit < 0 || g.Unit > g.Total():
		return fmt.Errorf("devices of the resource %q are %d thousandths each; want 1 to %d with a resource, 0 without", g.Resource, g.Unit, g.Total())
	case g.Physical >= MaxGPUs:
		return fmt.Errorf("it is part of GPU %d; want 0 to %d", g.Physical, MaxGPUs-1)
	}
	return nil
}

// GPUSet is a set of GPUs of a node: bit i is GPU i.
type GPUSet uint64

// Has tells whether GPU i is in the set.
func (s GPUSet) Has(i int) bool { return i < MaxGPUs && s>>uint(i)&1 == 1 }

// With returns the set with GPU i.
func (s GPUSet) With(i int) GPUSet { return s | 1<<uint(i) }

// Len returns how many GPUs are in the set.
func (s GPUSet) Len() int { return bits.OnesCount64(uint64(s)) }

// All lists the GPUs of the set, ascending.
func (s GPUSet) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for left := uint64(s); left != 0; left &= left - 1 {
			if !yield(bits.TrailingZeros64(left)) {
				return
			}
		}
	}
}
