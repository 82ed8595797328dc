package shared

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
)

// fabric is a machine whose GPUs are all connected through NVSwitches, four to a NUMA node.
func fabric(n int) machine {
	m := machine{topology: gpu.NewTopology(n), numa: make([]int, n)}
	for i := range n {
		m.numa[i] = i / 4
		for j := range i {
			m.topology.Set(i, j, gpu.Link{Kind: gpu.LinkNVLink, Count: 18, Switched: true, Path: gpu.PathSystem})
		}
	}
	return m
}

// BenchmarkChoose asks questions that were asked before: of one node, and of 512 free sets in turn.
func BenchmarkChoose(b *testing.B) {
	for _, n := range []int{8, 16, 32} {
		c := NewCache(Options{})
		topology := mustTopology(b, c, fabric(n))
		all := placement.Set(uint64(1)<<n - 1)
		b.Run(fmt.Sprintf("%d/same", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := topology.Choose(all, 0, n/2); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("%d/512 free sets", n), func(b *testing.B) {
			var sets []placement.Set
			for i := range 512 {
				set := all &^ placement.Set(uint32(i)*0x9E3779B1>>20)
				if n == 8 {
					set = placement.Set(i/2) | 3
				}
				sets = append(sets, set)
				if _, err := topology.Choose(set, 0, 2); err != nil {
					b.Fatal(err)
				}
			}
			before, asked := c.Stats().Choices, 0
			b.ReportAllocs()
			for b.Loop() {
				if _, err := topology.Choose(sets[asked%len(sets)], 0, 2); err != nil {
					b.Fatal(err)
				}
				asked++
			}
			b.ReportMetric(float64(c.Stats().Choices-before)/float64(asked), "computed/op")
		})
	}
}

// BenchmarkChooseParallel asks the same questions from all cores.
func BenchmarkChooseParallel(b *testing.B) {
	topology := mustTopology(b, NewCache(Options{}), fabric(16))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if _, err := topology.Choose(0xffff&^placement.Set(i&15), 0, 4); err != nil {
				b.Error(err)
			}
		}
	})
}

// BenchmarkChooseNew computes each answer and remembers it.
func BenchmarkChooseNew(b *testing.B) {
	for _, n := range []int{8, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			topology := mustTopology(b, NewCache(Options{}), fabric(n))
			p, err := topology.prepared()
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				clear(p.answers.buckets)
				if _, err := topology.Choose(placement.Set(uint64(1)<<n-1), 0, n/2); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkNodes gives 5,000 nodes of 16 GPUs one topology, from the letters of their GPUNodes. MiB is the heap
// after it.
func BenchmarkNodes(b *testing.B) {
	const nodes = 5000
	rows := fabric(16).topology.Letters()
	numa := fabric(16).numa
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		c := NewCache(Options{})
		topologies := make([]*Topology, nodes)
		for i := range nodes {
			links, err := gpu.ParseTopology(rows)
			if err != nil {
				b.Fatal(err)
			}
			topologies[i] = mustTopology(b, c, machine{links, numa})
			// Each free set occurs, with other sizes.
			if _, err := topologies[i].Choose(0xffff&^placement.Set(i), 0, 1+i%4); err != nil {
				b.Fatal(err)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB")
		b.ReportMetric(float64(c.Stats().Bytes)/(1<<20), "MiB-estimate")
		runtime.KeepAlive(topologies)
	}
}

// TestNoAllocations checks the path of a repeated question, with and without must.
func TestNoAllocations(t *testing.T) {
	for _, n := range []int{8, 16, 20} {
		topology := mustTopology(t, NewCache(Options{}), fabric(n))
		all := placement.Set(uint64(1)<<n - 1)
		for what, call := range map[string]func(){
			"a choice":           func() { _, _ = topology.Choose(all, 0, 4) },
			"a choice with must": func() { _, _ = topology.Choose(all, 5, 4) },
		} {
			call()
			if got := testing.AllocsPerRun(10, call); got != 0 {
				t.Errorf("%d GPUs, %s: %v allocations, want none", n, what, got)
			}
		}
	}
}
