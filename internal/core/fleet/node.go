package fleet

import (
	"fmt"
	"iter"
	"math/bits"
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
	// Draining GPUs keep the pods that they have, and get no new ones.
	Draining
	// Gone GPUs do not answer.
	Gone
)

func (s State) String() string {
	switch s {
	case Usable:
		return "usable"
	case Draining:
		return "draining"
	case Gone:
		return "gone"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// GPU is a GPU of a node.
type GPU struct {
	// Free is what no pod has, in thousandths.
	Free int32
	// State says whether that can be given away.
	State State
}

// Node is a node with its capacity and what is free of it.
type Node struct {
	// Name is unique in a fleet.
	Name string
	// Model is the model of all GPUs of the node.
	Model string
	// CPU and Memory are what pods can have in all, in thousandths of a core and MiB; FreeCPU and FreeMemory what no pod has.
	CPU, FreeCPU       int64
	Memory, FreeMemory int64
	// GPUs are the node's GPUs; their position is their index.
	GPUs []GPU

	index      int
	generation uint64
}

// Empty returns a node on which no pod runs: cpu in thousandths of a core, memory in MiB.
func Empty(name, model string, cpu, memory int64, gpus int) Node {
	n := Node{Name: name, Model: model, CPU: cpu, FreeCPU: cpu, Memory: memory, FreeMemory: memory, GPUs: make([]GPU, gpus)}
	for i := range n.GPUs {
		n.GPUs[i].Free = Whole
	}
	return n
}

// Index is the position of the node in its fleet: 0 is the node that a tie goes to first.
func (n *Node) Index() int { return n.index }

// Generation changes with each operation on the node, and comes back with a rollback. Equal generations of a node of one fleet
// are equal states.
func (n *Node) Generation() uint64 { return n.generation }

// Idle returns what pods could still be given of the node's GPUs, in thousandths.
func (n *Node) Idle() int64 {
	var idle int64
	for _, g := range n.GPUs {
		if g.State == Usable {
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
	for i, g := range n.GPUs {
		if g.Free < 0 || g.Free > Whole || g.State > Gone {
			return fmt.Errorf("node %s, GPU %d: %d thousandths are free, %v; want 0 to %d, usable, draining or gone", n.Name, i, g.Free, g.State, Whole)
		}
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
