package placement

import (
	"fmt"
	"slices"
	"testing"
)

// BenchmarkChoose requests every size while all GPUs are available, which compares the most sets. The slowest size is
// the relevant one; sets/op is the number of sets that were compared.
func BenchmarkChoose(b *testing.B) {
	for _, name := range []string{"h100x8", "v100x8-hybrid-mesh", "l40sx8", "a100x16"} {
		node := loadMachine(b, name).node(b)
		for size := 1; size < node.count; size++ {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				benchmarkChoose(b, node, node.All(), size)
			})
		}
	}
}

// BenchmarkChooseWorst covers the most sets to compare: all alike (the remainder of each is looked up) and hardly any
// alike.
func BenchmarkChooseWorst(b *testing.B) {
	topology, _ := switchFabric(16, 18)
	alike, unlike := mustNode(b, topology, nil), ragged(16).node(b)
	b.Run("alike/8of16", func(b *testing.B) { benchmarkChoose(b, alike, alike.All(), 8) })
	b.Run("unlike/8of16", func(b *testing.B) { benchmarkChoose(b, unlike, unlike.All(), 8) })
}

// BenchmarkChooseLarge measures nodes without tables: 16 available of 32, which is exact, and 32 available, which is
// not.
func BenchmarkChooseLarge(b *testing.B) {
	topology, _ := switchFabric(32, 18)
	alike, unlike := mustNode(b, topology, nil), ragged(32).node(b)
	b.Run("alike/8of16", func(b *testing.B) { benchmarkChoose(b, alike, 0xffff, 8) })
	b.Run("alike/16of32", func(b *testing.B) { benchmarkChoose(b, alike, alike.All(), 16) })
	b.Run("unlike/8of16", func(b *testing.B) { benchmarkChoose(b, unlike, 0xffff, 8) })
	b.Run("unlike/16of32", func(b *testing.B) { benchmarkChoose(b, unlike, unlike.All(), 16) })
}

func benchmarkChoose(b *testing.B, node *Node, available Set, size int) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := node.Choose(available, 0, size); err != nil {
			b.Fatal(err)
		}
	}
	if sets := choices(available.Len(), size); sets <= searchLimit {
		b.ReportMetric(float64(sets), "sets/op")
	}
}

// BenchmarkNewNode measures the cost of an inventory change. KiB/node is the memory that a node occupies.
func BenchmarkNewNode(b *testing.B) {
	for _, name := range []string{"h100x8", "v100x8-hybrid-mesh", "a100x16"} {
		m := loadMachine(b, name)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var node *Node
			for b.Loop() {
				node = mustNode(b, m.topology, m.numa)
			}
			b.ReportMetric(float64(len(node.keys)*8+len(node.packing)*2)/1024, "KiB/node")
		})
	}
	b.Run("random16", func(b *testing.B) {
		m := ragged(16)
		for b.Loop() {
			mustNode(b, m.topology, m.numa)
		}
	})
}

func BenchmarkChooseDevices(b *testing.B) {
	for _, policy := range []Policy{Distributed, Packed} {
		for _, size := range []int{1, 8, 32} {
			b.Run(fmt.Sprintf("%s/%dof800", policy, size), func(b *testing.B) {
				request := deviceRequest(policy, size)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := ChooseDevices(request); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// deviceRequest requests replicas of eight GPUs with a hundred replicas each, in scrambled order.
func deviceRequest(policy Policy, size int) DeviceRequest {
	devices, all := replicas(8, 100)
	slices.Reverse(all)
	return DeviceRequest{
		Devices: devices, Available: all, Must: []int{350},
		Load: []int{4, 0, 7, 3, 3, 9, 1, 0}, Size: size, Policy: policy, Buffer: &DeviceBuffer{},
	}
}

// TestNoAllocations checks that the hot paths do not allocate.
func TestNoAllocations(t *testing.T) {
	for _, name := range []string{"h100x8", "v100x8-hybrid-mesh", "a100x16"} {
		node := loadMachine(t, name).node(t)
		for size := 1; size <= node.count; size++ {
			expectNoAllocations(t, fmt.Sprintf("%s, %d GPUs", name, size), func() {
				_, _ = node.Choose(node.All(), SetOf(1), size)
			})
		}
		expectNoAllocations(t, name+", score", func() {
			_ = node.Score(node.All())
			_ = node.Packing(node.All())
		})
	}
	topology, numa := switchFabric(20, 18)
	large := mustNode(t, topology, numa)
	expectNoAllocations(t, "8 of 20", func() { _, _ = large.Choose(large.All(), SetOf(1), 8) })
	for _, policy := range []Policy{Distributed, Packed} {
		request := deviceRequest(policy, 32)
		expectNoAllocations(t, string(policy), func() { _, _ = ChooseDevices(request) })
	}
}

func expectNoAllocations(t *testing.T, what string, call func()) {
	t.Helper()
	if got := testing.AllocsPerRun(3, call); got != 0 {
		t.Errorf("%s: %v allocations, want none", what, got)
	}
}
