package shared

import (
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
)

// machine is what a node's topology is made from.
type machine struct {
	topology gpu.Topology
	numa     []int
}

// drawMachine draws a machine with few kinds of links, so that sets are often equally good.
func drawMachine(t *rapid.T, smallest, largest int) machine {
	n := rapid.IntRange(smallest, largest).Draw(t, "gpus")
	kinds := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) gpu.Link {
		return gpu.Link{
			Kind: gpu.LinkNVLink, Count: rapid.SampledFrom([]int{0, 0, 1, 2, 12}).Draw(t, "nvlinks"),
			Path: gpu.PCIPath(rapid.IntRange(0, int(gpu.PathSystem)).Draw(t, "path")),
		}
	}), 1, 5).Draw(t, "kinds")
	m := machine{topology: gpu.NewTopology(n), numa: make([]int, n)}
	for i := range n {
		m.numa[i] = rapid.IntRange(gpu.NoNUMANode, 2).Draw(t, "numa")
		for j := range i {
			m.topology.Set(i, j, rapid.SampledFrom(kinds).Draw(t, "link"))
		}
	}
	return m
}

// islands is a machine of n GPUs in two halves: NVLinks within a half, and PCIe between them.
func islands(n, nvlinks int) machine {
	m := machine{topology: gpu.NewTopology(n), numa: make([]int, n)}
	for i := range n {
		m.numa[i] = 2 * i / n
		for j := range i {
			link := gpu.Link{Path: gpu.PathSystem}
			if 2*i/n == 2*j/n {
				link = gpu.Link{Kind: gpu.LinkNVLink, Count: nvlinks, Path: gpu.PathSameNUMA}
			}
			m.topology.Set(i, j, link)
		}
	}
	return m
}

func mustTopology(t testing.TB, c *Cache, m machine) *Topology {
	t.Helper()
	topology, err := c.Topology(m.topology, m.numa)
	if err != nil {
		t.Fatal(err)
	}
	return topology
}

// counter counts what is computed, beside Stats.
type counter struct {
	mu       sync.Mutex
	prepared map[placement.Form]int
	calls    atomic.Int64 // of Choose, Score and Packing
}

// count makes a cache count.
func count(c *Cache) *counter {
	counts := &counter{prepared: map[placement.Form]int{}}
	prepare := c.prepare
	c.prepare = func(form placement.Form) (chooser, error) {
		node, err := prepare(form)
		counts.mu.Lock()
		defer counts.mu.Unlock()
		counts.prepared[form]++
		return &counted{chooser: node, calls: &counts.calls}, err
	}
	return counts
}

type counted struct {
	chooser
	calls *atomic.Int64
}

func (c *counted) Choose(available, must placement.Set, size int) (placement.Set, error) {
	c.calls.Add(1)
	return c.chooser.Choose(available, must, size)
}

func (c *counted) Score(set placement.Set) placement.Score {
	c.calls.Add(1)
	return c.chooser.Score(set)
}

func (c *counted) Packing(set placement.Set) placement.Packing {
	c.calls.Add(1)
	return c.chooser.Packing(set)
}

// direct answers without a cache.
func direct(node *placement.Node, available, must placement.Set, size int) (Answer, error) {
	chosen, err := node.Choose(available, must, size)
	if err != nil {
		return Answer{}, err
	}
	return Answer{
		GPUs: chosen, Score: node.Score(chosen), Before: node.Packing(available), After: node.Packing(available &^ chosen),
	}, nil
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
