package fleet

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
)

// Op is a pod on a node: what Place adds and Remove takes away.
type Op struct {
	// Node is the index of the node.
	Node int
	// GPUs are those of which the pod has its share.
	GPUs  GPUSet
	Shape Shape
}

// Totals are sums over a fleet: CPU in thousandths of a core, memory in MiB, GPUs in thousandths.
type Totals struct {
	CPU    int64
	Memory int64
	GPU    int64
}

// Fleet is a set of nodes with what is free on them, and a log of operations that can be undone.
type Fleet struct {
	nodes       []Node
	generations []uint64 // of the nodes, one after another, for the Decider
	byName      map[string]int
	free        Totals // of GPUs what is free on usable ones
	counter     uint64
	log         []entry
	open        int
}

// entry undoes an operation.
type entry struct {
	node       int
	generation uint64
	kind       kind
	op         Op
	old        *Node
}

type kind uint8

const (
	placed kind = iota
	removed
	overridden
)

// order is the place of a node among equals: it depends on its name and the seed alone.
func order(name string, seed uint64) uint64 {
	hash := fnv.New64a()
	hash.Write([]byte(name)) // never fails
	// FNV leaves similar names close to each other; these steps (SplitMix64) spread them.
	x := hash.Sum64() + seed*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// New returns a fleet of copies of the nodes, in the order in which ties go to them. That order depends on the names and the
// seed, not on the order of the list.
func New(nodes []Node, seed uint64) (*Fleet, error) {
	f := &Fleet{nodes: slices.Clone(nodes), byName: make(map[string]int, len(nodes)), generations: make([]uint64, len(nodes)), counter: 1}
	slices.SortFunc(f.nodes, func(a, b Node) int {
		return cmp.Or(cmp.Compare(order(a.Name, seed), order(b.Name, seed)), cmp.Compare(a.Name, b.Name))
	})
	for i := range f.nodes {
		n := &f.nodes[i]
		if err := n.validate(); err != nil {
			return nil, err
		}
		if _, double := f.byName[n.Name]; double {
			return nil, fmt.Errorf("node %s is listed twice; want each name once", n.Name)
		}
		n.GPUs = slices.Clone(n.GPUs)
		n.index, n.generation = i, f.counter
		f.generations[i], f.byName[n.Name] = f.counter, i
		f.count(n, 1)
	}
	return f, nil
}

// Copy returns a fleet of the same nodes, in the same order, with what is free on them now. No checkpoint is open in it.
func (f *Fleet) Copy() *Fleet {
	c := *f
	c.nodes, c.generations, c.log, c.open = slices.Clone(f.nodes), slices.Clone(f.generations), nil, 0
	for i := range c.nodes {
		c.nodes[i].GPUs = slices.Clone(c.nodes[i].GPUs)
	}
	return &c
}

// Len returns the number of nodes.
func (f *Fleet) Len() int { return len(f.nodes) }

// Node returns node i, to read.
func (f *Fleet) Node(i int) *Node { return &f.nodes[i] }

// Find returns the index of the node with that name.
func (f *Fleet) Find(name string) (int, bool) {
	i, ok := f.byName[name]
	return i, ok
}

// Free returns what no pod has; of GPUs what is free on usable ones.
func (f *Fleet) Free() Totals { return f.free }

// Place puts a pod on a node. It returns an error, and changes nothing, if it does not fit there.
func (f *Fleet) Place(op Op) error {
	if err := f.check(op); err != nil {
		return fmt.Errorf("place a pod: %w", err)
	}
	n := &f.nodes[op.Node]
	if n.FreeCPU < op.Shape.CPU || n.FreeMemory < op.Shape.Memory || !op.Shape.Models.Allows(n.Model) && op.Shape.GPUs > 0 {
		return fmt.Errorf("place a pod on %s: %s", n.Name, Fit(n, op.Shape))
	}
	for i := range op.GPUs.All() {
		if g := &n.GPUs[i]; !g.State.allocatable() || g.Free < op.Shape.Of(g) {
			return fmt.Errorf("place a pod on %s: GPU %d is %v with %d thousandths free, the pod requests %d", n.Name, i, g.State, g.Free, op.Shape.Of(g))
		}
	}
	f.record(entry{node: op.Node, kind: placed, op: op})
	f.apply(op, -1)
	return nil
}

// Remove takes a pod from a node. It returns an error, and changes nothing, if more would be free then than the node has.
func (f *Fleet) Remove(op Op) error {
	if err := f.check(op); err != nil {
		return fmt.Errorf("remove a pod: %w", err)
	}
	n := &f.nodes[op.Node]
	if n.FreeCPU+op.Shape.CPU > n.CPU || n.FreeMemory+op.Shape.Memory > n.Memory {
		return fmt.Errorf("remove a pod from %s: %s are free, and the pod has %s; want at most what the node has", n.Name, Shape{CPU: n.FreeCPU, Memory: n.FreeMemory}, op.Shape)
	}
	for i := range op.GPUs.All() {
		if g := &n.GPUs[i]; g.Free+op.Shape.Of(g) > g.Total() {
			return fmt.Errorf("remove a pod from %s: %d of %d thousandths of GPU %d are free, and the pod has %d", n.Name, g.Free, g.Total(), i, op.Shape.Of(g))
		}
	}
	f.record(entry{node: op.Node, kind: removed, op: op})
	f.apply(op, 1)
	return nil
}

// Replace sets what is known of a node: its capacity, what is free, its GPUs. It ends what the log knows of the node: no checkpoint
// may be open.
func (f *Fleet) Replace(i int, n Node) error {
	if f.open > 0 {
		return fmt.Errorf("replace node %s: %d checkpoints are open; want none", n.Name, f.open)
	}
	return f.Override(i, n)
}

// Override sets what is known of a node, as Replace does. A checkpoint may be open, and Rollback undoes it.
func (f *Fleet) Override(i int, n Node) error {
	if err := n.validate(); err != nil {
		return fmt.Errorf("replace a node: %w", err)
	}
	if i < 0 || i >= len(f.nodes) || f.nodes[i].Name != n.Name {
		return fmt.Errorf("replace node %d by %s: no such node", i, n.Name)
	}
	e := entry{node: i, kind: overridden}
	if f.open > 0 {
		e.old = new(f.nodes[i])
	}
	f.record(e)
	n.GPUs = slices.Clone(n.GPUs)
	n.index, n.generation = i, f.generations[i]
	f.swap(n)
	return nil
}

// swap replaces a node that has the index.
func (f *Fleet) swap(n Node) {
	f.count(&f.nodes[n.index], -1)
	f.nodes[n.index] = n
	f.count(&n, 1)
}

// count adds a node, times sign, to the totals.
func (f *Fleet) count(n *Node, sign int64) {
	f.free.CPU += sign * n.FreeCPU
	f.free.Memory += sign * n.FreeMemory
	f.free.GPU += sign * n.Idle()
}

// check returns an error for an operation that no node can have.
func (f *Fleet) check(op Op) error {
	if err := op.Shape.Validate(); err != nil {
		return err
	}
	if op.Node < 0 || op.Node >= len(f.nodes) {
		return fmt.Errorf("node %d; want 0 to %d", op.Node, len(f.nodes)-1)
	}
	n := &f.nodes[op.Node]
	if op.GPUs.Len() != int(op.Shape.GPUs) || len(n.GPUs) < MaxGPUs && op.GPUs>>uint(len(n.GPUs)) != 0 {
		return fmt.Errorf("GPUs %b of the %d of %s; want %d of them", op.GPUs, len(n.GPUs), n.Name, op.Shape.GPUs)
	}
	for i := range op.GPUs.All() {
		if g := &n.GPUs[i]; !op.Shape.wants(g) {
			return fmt.Errorf("GPU %d of %s has devices of %q; want %q", i, n.Name, g.Resource, op.Shape.Resource)
		}
	}
	return nil
}

// record logs how to undo an operation that is about to be applied, and gives the node a new generation.
func (f *Fleet) record(e entry) {
	n := &f.nodes[e.node]
	e.generation = n.generation
	if f.open > 0 {
		f.log = append(f.log, e)
	}
	f.counter++
	n.generation, f.generations[e.node] = f.counter, f.counter
}

// apply adds a pod's request, times sign, to what is free.
func (f *Fleet) apply(op Op, sign int64) {
	n := &f.nodes[op.Node]
	n.FreeCPU += sign * op.Shape.CPU
	n.FreeMemory += sign * op.Shape.Memory
	f.free.CPU += sign * op.Shape.CPU
	f.free.Memory += sign * op.Shape.Memory
	for i := range op.GPUs.All() {
		g := &n.GPUs[i]
		amount := int32(sign) * op.Shape.Of(g)
		g.Free += amount
		if g.State.allocatable() {
			f.free.GPU += int64(amount)
		}
		if op.Shape.Traffic != 0 {
			n.addTraffic(g.Physical, op.Shape.Traffic, -int16(sign))
		}
	}
}

// AddTraffic counts a pod that has GPU i and needs much bandwidth. The node must not be that of a Fleet.
func (n *Node) AddTraffic(i int, traffic Traffic) { n.addTraffic(n.GPUs[i].Physical, traffic, 1) }

// addTraffic counts a pod that needs much bandwidth on all entries of a physical GPU.
func (n *Node) addTraffic(physical uint8, traffic Traffic, pods int16) {
	for i := range n.GPUs {
		g := &n.GPUs[i]
		if g.Physical != physical {
			continue
		}
		if traffic&Bandwidth != 0 {
			g.Bandwidth += pods
		}
		if traffic&HostBandwidth != 0 {
			g.HostBandwidth += pods
		}
	}
}

// Mark is a point in the log of operations.
type Mark struct {
	position int
	depth    int
}

// Checkpoint begins to log operations. Rollback or Commit must end it; checkpoints can be nested.
func (f *Fleet) Checkpoint() Mark {
	f.open++
	return Mark{len(f.log), f.open}
}

// Rollback undoes all operations since the checkpoint, and ends it and those that were made after it.
func (f *Fleet) Rollback(m Mark) {
	f.end(m)
	for len(f.log) > m.position {
		e := f.log[len(f.log)-1]
		f.log = f.log[:len(f.log)-1]
		switch e.kind {
		case placed:
			f.apply(e.op, 1)
		case removed:
			f.apply(e.op, -1)
		case overridden:
			f.swap(*e.old)
		}
		f.nodes[e.node].generation, f.generations[e.node] = e.generation, e.generation
	}
}

// Commit keeps all operations since the checkpoint, and ends it and those that were made after it. An outer checkpoint can
// still undo them.
func (f *Fleet) Commit(m Mark) {
	f.end(m)
	if f.open == 0 {
		f.log = f.log[:0]
	}
}

func (f *Fleet) end(m Mark) {
	if m.depth < 1 || m.depth > f.open {
		panic(fmt.Sprintf("fleet: the checkpoint %d has ended; %d are open", m.depth, f.open))
	}
	f.open = m.depth - 1
}
