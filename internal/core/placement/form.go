package placement

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Form is everything about a node that its answers depend on: for each pair of GPUs the number of NVLinks and the PCIe path, and which
// GPUs share a NUMA node. Nodes of equal forms answer every request alike. A Form is comparable, at most 1 KiB, and made by FormOf; the
// zero value is a node without GPUs.
type Form struct {
	// text is the number of GPUs, the NUMA node of each GPU (as the first GPU on it), then the number of NVLinks and the path of each
	// pair (1,0), (2,0), (2,1), (3,0) and so on: one byte each.
	text string
}

// FormOf returns the form of a node. Its arguments and errors are those of NewNode.
func FormOf(topology gpu.Topology, numa []int) (Form, error) {
	if err := validate(topology, numa); err != nil {
		return Form{}, fmt.Errorf("prepare placement: %w", err)
	}
	count := len(topology)
	if count == 0 {
		return Form{}, nil
	}
	text := make([]byte, 1, 1+count+count*(count-1))
	text[0] = byte(count)
	for i := range count {
		first := 0 // all are unknown, and count as one NUMA node
		if numa != nil {
			first = slices.Index(numa, numa[i])
		}
		text = append(text, byte(first))
	}
	for i, row := range topology {
		for _, link := range row[:i] {
			text = append(text, byte(link.Count), byte(link.Path))
		}
	}
	return Form{text: string(text)}, nil
}

// GPUs returns the number of GPUs.
func (f Form) GPUs() int {
	if f.text == "" {
		return 0
	}
	return int(f.text[0])
}

// NewNode returns a node of the form. It takes as long as the function NewNode.
func (f Form) NewNode() (*Node, error) {
	count := f.GPUs()
	topology, numa := gpu.NewTopology(count), make([]int, count)
	for i := range numa {
		numa[i] = int(f.text[1+i])
	}
	at := 1 + count
	for i := range count {
		for j := range i {
			link := gpu.Link{Count: int(f.text[at]), Path: gpu.PCIPath(f.text[at+1])}
			if link.Count > 0 {
				link.Kind = gpu.LinkNVLink
			}
			topology.Set(i, j, link)
			at += 2
		}
	}
	return NewNode(topology, numa)
}

// Bytes returns about how much memory the node occupies.
func (n *Node) Bytes() int {
	bytes := int(unsafe.Sizeof(*n))
	bytes += n.count * n.count * int(unsafe.Sizeof(gpu.Link{}))
	bytes += len(n.pair) * int(unsafe.Sizeof(n.pair[0]))
	bytes += len(n.near) * int(unsafe.Sizeof(n.near[0]))
	return bytes + len(n.keys)*int(unsafe.Sizeof(key(0))) + len(n.packing)*int(unsafe.Sizeof(uint16(0)))
}
