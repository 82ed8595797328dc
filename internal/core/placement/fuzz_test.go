package placement

import (
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// ragged is a machine on which hardly two links are alike.
func ragged(n int) machine {
	m := machine{topology: gpu.NewTopology(n), numa: make([]int, n)}
	state := uint32(1)
	for i := range n {
		m.numa[i] = i % 3
		for j := range i {
			state = state*1664525 + 1013904223
			m.topology.Set(i, j, gpu.Link{Kind: gpu.LinkNVLink, Count: int(state >> 24 % 20), Path: gpu.PCIPath(state >> 16 % 7)})
		}
	}
	return m
}

// FuzzChoose creates nodes from arbitrary data and makes arbitrary requests: none may panic, and every result without
// an error must satisfy its request.
func FuzzChoose(f *testing.F) {
	f.Add([]byte{8, 1, 2, 3, 4, 5, 6}, uint32(0xff), uint32(1), 4)
	f.Add([]byte{16, 0x52, 0x31}, uint32(0xffff), uint32(0), 8)
	f.Add([]byte{20, 0x52, 0x31}, uint32(0xfffff), uint32(3), 9)
	f.Add([]byte{0}, uint32(0), uint32(0), 0)
	f.Add([]byte{3}, uint32(0xffffffff), uint32(0xf0), -1)
	f.Fuzz(func(t *testing.T, links []byte, available, must uint32, size int) {
		if len(links) == 0 {
			return
		}
		n := int(links[0] % 22)
		m := machine{topology: gpu.NewTopology(n), numa: make([]int, n)}
		for i := range n {
			m.numa[i] = int(links[i%len(links)]) - 2
			for j := range i {
				b := links[(i*7+j)%len(links)]
				m.topology.Set(i, j, gpu.Link{Kind: gpu.LinkNVLink, Count: int(b>>3) - 1, Path: gpu.PCIPath(b & 7)})
			}
		}
		node, err := NewNode(m.topology, m.numa)
		if err != nil {
			return
		}
		got, err := node.Choose(Set(available), Set(must), size)
		if err != nil {
			return
		}
		if got.Len() != size || Set(must)&^got != 0 || got&^Set(available) != 0 || got&^node.All() != 0 {
			t.Fatalf("asked for %d of %v with %v, got %v", size, Set(available), Set(must), got)
		}
		if score := node.Score(got); size > 1 && score.Bottleneck == levelNone {
			t.Fatalf("%v: %v", got, score)
		}
	})
}
