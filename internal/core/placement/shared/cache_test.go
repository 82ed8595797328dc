package shared

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
)

// TestAnswersAsPlacementDoes asks a cache that has space for one topology and four answers, and one with the defaults, about several
// machines in turn, with and without GPUs that must be part of the answer; the answers and errors are those of placement.NewNode.
func TestAnswersAsPlacementDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		caches := []*Cache{NewCache(Options{Bytes: 1, Answers: 4}), NewCache(Options{})}
		var nodes []*placement.Node
		var topologies [][]*Topology
		for range rapid.IntRange(1, 3).Draw(t, "machines") {
			m := drawMachine(t, 0, 11)
			if rapid.IntRange(0, 9).Draw(t, "large") == 0 {
				m = drawMachine(t, 17, 20)
			}
			node, err := placement.NewNode(m.topology, m.numa)
			if err != nil {
				t.Fatal(err)
			}
			var of []*Topology
			for _, c := range caches {
				topology, err := c.Topology(m.topology, m.numa)
				if err != nil || topology.GPUs() != len(m.topology) {
					t.Fatalf("%d GPUs instead of %d: %v", topology.GPUs(), len(m.topology), err)
				}
				of = append(of, topology)
			}
			nodes, topologies = append(nodes, node), append(topologies, of)
		}
		for range rapid.IntRange(1, 40).Draw(t, "questions") {
			k := rapid.IntRange(0, len(nodes)-1).Draw(t, "machine")
			missing := placement.Set(rapid.Uint32().Draw(t, "missing")) & placement.Set(rapid.Uint32().Draw(t, "missing too"))
			available := nodes[k].All() &^ missing
			must := available & placement.Set(rapid.Uint32().Draw(t, "must")) & placement.Set(rapid.Uint32().Draw(t, "must too"))
			if rapid.IntRange(0, 9).Draw(t, "invalid") == 0 {
				must |= placement.Set(rapid.Uint32().Draw(t, "more"))
			}
			size := rapid.IntRange(-1, available.Len()+1).Draw(t, "size")
			for range 2 {
				check(t, nodes[k], topologies[k], available, must, size)
			}
		}
	})
}

func check(t *rapid.T, node *placement.Node, topologies []*Topology, available, must placement.Set, size int) {
	want, err := direct(node, available, must, size)
	for i, topology := range topologies {
		got, err2 := topology.Choose(available, must, size)
		if got != want || text(err) != text(err2) {
			t.Fatalf("cache %d, %d of %v with %v: got %+v, %v; want %+v, %v", i, size, available, must, got, err2, want, err)
		}
	}
}

// TestThousandNodes gives a thousand nodes three topologies: three are prepared, and a question is computed once for all of its nodes.
func TestThousandNodes(t *testing.T) {
	c := NewCache(Options{})
	counts := count(c)
	var nodes []*Topology
	distinct := map[*Topology]bool{}
	for i := range 1000 {
		m := []machine{islands(8, 12), islands(8, 18), islands(12, 18)}[i%3]
		for k := range m.numa {
			m.numa[k] += i // only which GPUs share a NUMA node matters
		}
		nodes = append(nodes, mustTopology(t, c, m))
		distinct[nodes[i]] = true
	}
	if len(distinct) != 3 || len(counts.prepared) != 3 {
		t.Fatalf("%d topologies, %d prepared; want 3", len(distinct), len(counts.prepared))
	}
	for form, times := range counts.prepared {
		if times != 1 {
			t.Errorf("%d GPUs: prepared %d times", form.GPUs(), times)
		}
	}
	ask := func() {
		for _, topology := range nodes {
			answer, err := topology.Choose(0xff, 0, 4)
			if err != nil || answer.GPUs.Len() != 4 {
				t.Fatal(answer, err)
			}
		}
	}
	ask()
	stats, calls := c.Stats(), counts.calls.Load()
	if stats.Choices != 3 || stats.Preparations != 3 || stats.Prepared != 3 || stats.Topologies != 3 {
		t.Errorf("%+v, want 3 of each", stats)
	}
	if ask(); counts.calls.Load() != calls || c.Stats() != stats {
		t.Errorf("asked again: %d calls after %d; %+v after %+v", counts.calls.Load(), calls, c.Stats(), stats)
	}
	runtime.KeepAlive(nodes)
}

// TestEveryQuestionIsRemembered asks all questions about a node of 6 GPUs; each is another one.
func TestEveryQuestionIsRemembered(t *testing.T) {
	c := NewCache(Options{Answers: 1 << 16})
	topology := mustTopology(t, c, islands(6, 18))
	p, err := topology.prepared()
	if err != nil {
		t.Fatal(err)
	}
	p.answers = newMemo(20, 1<<16) // also for questions with must
	ask := func() {
		for available := placement.Set(1); available < 64; available++ {
			for must := available; ; must = (must - 1) & available {
				for size := max(1, must.Len()); size <= available.Len(); size++ {
					if _, err := topology.Choose(available, must, size); err != nil {
						t.Fatal(err)
					}
				}
				if must == 0 {
					break
				}
			}
		}
	}
	ask()
	stats := c.Stats()
	if ask(); c.Stats() != stats {
		t.Errorf("asked again: %+v after %+v", c.Stats(), stats)
	}
}

// TestMemoryIsBounded prepares more topologies than fit: the estimate stays below the limit, what is asked about stays prepared, and an
// evicted topology is prepared again when it is asked, with the same answer.
func TestMemoryIsBounded(t *testing.T) {
	one := NewCache(Options{})
	mustTopology(t, one, islands(8, 1))
	each := one.Stats().Bytes
	c := NewCache(Options{Bytes: 5*each + each/2})
	counts := count(c)
	busy := mustTopology(t, c, islands(8, 1))
	var all []*Topology
	for nvlinks := 2; nvlinks <= 100; nvlinks++ {
		if _, err := busy.Choose(0xff, 0, 2); err != nil {
			t.Fatal(err)
		}
		all = append(all, mustTopology(t, c, islands(8, nvlinks)))
		if stats := c.Stats(); stats.Bytes > 5*each+each/2 || stats.Prepared > 5 || stats.Bytes != stats.Prepared*each {
			t.Fatalf("%+v with %d bytes each", stats, each)
		}
	}
	for _, topology := range all[:94] {
		if topology.state.Load() != nil {
			t.Errorf("a topology is still prepared that was not asked while %d others were prepared", len(all))
		}
	}
	if counts.prepared[busy.form] != 1 {
		t.Errorf("the busy topology was prepared %d times", counts.prepared[busy.form])
	}
	answer, err := all[0].Choose(0xff, 0, 2)
	want := placement.Score{Bottleneck: answer.Score.Bottleneck, NVLinks: 2, PCIe: 2, NUMANodes: 1}
	if err != nil || answer.Score != want || counts.prepared[all[0].form] != 2 {
		t.Errorf("%+v, %v, prepared %d times", answer, err, counts.prepared[all[0].form])
	}
	if same := mustTopology(t, c, islands(8, 2)); same != all[0] {
		t.Error("an evicted topology that is in use is not shared any more")
	}
	runtime.KeepAlive(all)
}

// TestLargestStays keeps one topology even when the limit is below its size.
func TestLargestStays(t *testing.T) {
	c := NewCache(Options{Bytes: 1})
	for nvlinks := 1; nvlinks <= 3; nvlinks++ {
		topology := mustTopology(t, c, islands(8, nvlinks))
		for range 2 {
			if _, err := topology.Choose(0xff, 0, 3); err != nil {
				t.Fatal(err)
			}
		}
	}
	if stats := c.Stats(); stats.Prepared != 1 || stats.Preparations != 3 || stats.Choices != 3 {
		t.Errorf("%+v", stats)
	}
}

// TestForgetsUnused drops nodes: their topologies are removed once they are evicted and collected, those of remaining nodes are not.
func TestForgetsUnused(t *testing.T) {
	c := NewCache(Options{Bytes: 1})
	remaining := mustTopology(t, c, islands(4, 1))
	for nvlinks := 2; nvlinks <= 50; nvlinks++ {
		mustTopology(t, c, islands(4, nvlinks))
	}
	for range 1000 {
		runtime.GC() // cleanups run in a goroutine of the runtime
		if c.Stats().Topologies == 2 {
			break
		}
		runtime.Gosched()
	}
	if stats := c.Stats(); stats.Topologies != 2 {
		t.Errorf("%+v, want the one in use and the one that was prepared last", stats)
	}
	c.known.remove(remaining.form) // as when the cleanup of an earlier topology of this form comes late
	if mustTopology(t, c, islands(4, 1)) != remaining {
		t.Error("the topology in use is not shared any more")
	}
	runtime.KeepAlive(remaining)
}

// TestConcurrentUse asks from several goroutines while topologies are evicted; run it with the race detector.
func TestConcurrentUse(t *testing.T) {
	one := NewCache(Options{Answers: 16})
	mustTopology(t, one, islands(8, 1))
	c := NewCache(Options{Bytes: 2 * one.Stats().Bytes, Answers: 16})
	var machines []machine
	var nodes []*placement.Node
	for k := range 4 {
		m := islands(8, k+1)
		node, err := placement.NewNode(m.topology, m.numa)
		if err != nil {
			t.Fatal(err)
		}
		machines, nodes = append(machines, m), append(nodes, node)
	}
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for i := range 2000 {
				k := (i*7 + worker) % len(machines)
				available := placement.Set(i*37%255 + 1)
				size := 1 + i%available.Len()
				topology, err := c.Topology(machines[k].topology, machines[k].numa)
				if err != nil {
					t.Error(err)
					return
				}
				got, err := topology.Choose(available, 0, size)
				want, err2 := direct(nodes[k], available, 0, size)
				if err != nil || err2 != nil || got != want {
					t.Errorf("%d of %v: got %+v, %v; want %+v, %v", size, available, got, err, want, err2)
					return
				}
			}
		})
	}
	group.Wait()
	if stats := c.Stats(); stats.Prepared > 2 || stats.Bytes > c.bytes {
		t.Errorf("%+v", stats)
	}
}

// TestPreparedOnce lets many nodes of one topology arrive at the same time.
func TestPreparedOnce(t *testing.T) {
	c := NewCache(Options{})
	var group sync.WaitGroup
	topologies := make([]*Topology, 16)
	for i := range topologies {
		group.Go(func() {
			m := islands(10, 18)
			topologies[i], _ = c.Topology(m.topology, m.numa)
			_, _ = topologies[i].Choose(0x3ff, 0, 5)
		})
	}
	group.Wait()
	if stats := c.Stats(); stats.Preparations != 1 || len(slices.Compact(topologies)) != 1 {
		t.Errorf("%+v", stats)
	}
}

// TestRefusedTopology has the error of placement, and leaves nothing behind.
func TestRefusedTopology(t *testing.T) {
	asymmetric := gpu.NewTopology(2)
	asymmetric[0][1].Count = 1
	c := NewCache(Options{})
	_, want := placement.NewNode(asymmetric, nil)
	got, err := c.Topology(asymmetric, nil)
	if got != nil || want == nil || text(err) != text(want) || c.Stats() != (Stats{}) {
		t.Errorf("got %v, %v, %+v; want %v", got, err, c.Stats(), want)
	}
}

// TestFailedPreparation is reported by each call, and tried again.
func TestFailedPreparation(t *testing.T) {
	c := NewCache(Options{Bytes: 1})
	topology := mustTopology(t, c, islands(4, 1))
	mustTopology(t, c, islands(4, 2)) // evicts it
	prepare := c.prepare
	c.prepare = func(placement.Form) (chooser, error) { return nil, fmt.Errorf("no memory") }
	if _, err := topology.Choose(0xf, 0, 2); text(err) != "no memory" {
		t.Error(err)
	}
	c.prepare = prepare
	if answer, err := topology.Choose(0xf, 0, 2); err != nil || answer.GPUs != 3 {
		t.Error(answer, err)
	}
}
