package placement

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// drawMachine creates a random topology. Few kinds of links cause many ties, which the later criteria decide; many
// kinds cause many levels.
func drawMachine(t *rapid.T, smallest, largest int) machine {
	n := rapid.IntRange(smallest, largest).Draw(t, "gpus")
	kinds := rapid.SliceOfN(rapid.Custom(drawLink), 1, 5).Draw(t, "kinds")
	m := machine{topology: gpu.NewTopology(n), numa: make([]int, n)}
	for i := range n {
		m.numa[i] = rapid.IntRange(gpu.NoNUMANode, 2).Draw(t, "numa")
		for j := range i {
			m.topology.Set(i, j, rapid.SampledFrom(kinds).Draw(t, "link"))
		}
	}
	return m
}

func drawLink(t *rapid.T) gpu.Link {
	return gpu.Link{
		Kind: gpu.LinkNVLink, Count: rapid.SampledFrom([]int{0, 0, 0, 1, 2, 12}).Draw(t, "nvlinks"),
		Path: gpu.PCIPath(rapid.IntRange(0, int(gpu.PathSystem)).Draw(t, "path")),
	}
}

func checkAgainstTwin(t rapid.TB, node *Node, w *twin, available, must Set, size int) {
	t.Helper()
	got, err := node.Choose(available, must, size)
	if err != nil {
		t.Fatalf("Choose(%v, %v, %d): %v", available, must, size, err)
	}
	if diff := cmp.Diff(w.choose(members(available), members(must), size), members(got)); diff != "" {
		t.Fatalf("Choose(%v, %v, %d): (-twin +got)\n%s\n%s", available, must, size, diff, node.Describe())
	}
	packing := node.Packing(available &^ got)
	want := w.remainder(members(available &^ got))
	if have := []int{packing.Eights, packing.Fours, packing.Twos}; !slices.Equal(have, want) {
		t.Fatalf("Packing(%v) = %v, want %v", available&^got, have, want)
	}
}

func TestChooseAgainstTwin(t *testing.T) {
	for gpus := 1; gpus <= 9; gpus++ {
		t.Run(strconv.Itoa(gpus), rapid.MakeCheck(func(t *rapid.T) {
			m := drawMachine(t, gpus, gpus)
			node, err := NewNode(m.topology, m.numa)
			if err != nil {
				t.Fatal(err)
			}
			w := newTwin(m.topology, m.numa)
			for range 5 {
				missing := Set(rapid.Uint32().Draw(t, "missing")) & Set(rapid.Uint32().Draw(t, "missing too"))
				available := node.All() &^ missing
				if available == 0 {
					available = node.All()
				}
				must := available & Set(rapid.Uint32().Draw(t, "must")) & Set(rapid.Uint32().Draw(t, "must too"))
				size := rapid.IntRange(max(1, must.Len()), available.Len()).Draw(t, "size")
				checkAgainstTwin(t, node, w, available, must, size)
			}
		}))
	}
}

// TestChooseEveryRequest makes every possible request to small nodes.
func TestChooseEveryRequest(t *testing.T) {
	for gpus := 1; gpus <= 5; gpus++ {
		t.Run(strconv.Itoa(gpus), rapid.MakeCheck(func(t *rapid.T) {
			m := drawMachine(t, gpus, gpus)
			node, err := NewNode(m.topology, m.numa)
			if err != nil {
				t.Fatal(err)
			}
			w := newTwin(m.topology, m.numa)
			for available := Set(1); available <= node.All(); available++ {
				for must := available; ; must = (must - 1) & available {
					for size := max(1, must.Len()); size <= available.Len(); size++ {
						checkAgainstTwin(t, node, w, available, must, size)
					}
					if must == 0 {
						break
					}
				}
			}
		}))
	}
}

// TestChooseOnMachinesAgainstTwin requests every size from each known machine, with all GPUs available and with each
// one missing or included.
func TestChooseOnMachinesAgainstTwin(t *testing.T) {
	for _, m := range allMachines(t) {
		t.Run(m.name, func(t *testing.T) {
			node, w := m.node(t), newTwin(m.topology, m.numa)
			if node.count > 8 && testing.Short() {
				t.Skip("the twin takes seconds at 16 GPUs")
			}
			for size := 1; size < node.count; size++ {
				checkAgainstTwin(t, node, w, node.All(), 0, size)
				if node.count > 8 {
					continue
				}
				for i := range node.count {
					checkAgainstTwin(t, node, w, node.All()&^(1<<i), 0, size)
					checkAgainstTwin(t, node, w, node.All(), 1<<i, size)
				}
			}
		})
	}
}

// TestChooseOnLargeNode compares the search without tables with the one that uses them, on machines that differ only in
// GPUs that are not available.
func TestChooseOnLargeNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMachine(t, 3, 12)
		small, err := NewNode(m.topology, m.numa)
		if err != nil {
			t.Fatal(err)
		}
		large, err := NewNode(padded(m))
		if err != nil {
			t.Fatal(err)
		}
		size := rapid.IntRange(1, small.count-1).Draw(t, "size")
		want, err1 := small.Choose(small.All(), 0, size)
		got, err2 := large.Choose(small.All(), 0, size)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(small.Score(want), large.Score(got)); diff != "" {
			t.Fatalf("%d GPUs: with tables %v, without %v\n%s", size, want, got, diff)
		}
	})
}

// padded adds GPUs without links, up to 20.
func padded(m machine) (gpu.Topology, []int) {
	topology := gpu.NewTopology(20)
	numa := append(slices.Clone(m.numa), make([]int, 20-len(m.numa))...)
	for i := range topology {
		for j := range i {
			link := gpu.Link{Path: gpu.PathUnknown}
			if i < len(m.topology) {
				link = m.topology[i][j]
			}
			topology.Set(i, j, link)
		}
	}
	return topology, numa
}

// TestImproveOnMachines compares the heuristic for large nodes with the exact search: on known machines it may miss the
// nearest PCIe paths, but no NVLink.
func TestImproveOnMachines(t *testing.T) {
	for _, m := range allMachines(t) {
		node := m.node(t)
		for available := node.All(); available.Len() > 1; available &= available - 1 {
			for size := 1; size < available.Len(); size++ {
				want, err := node.Choose(available, 0, size)
				if err != nil {
					t.Fatal(err)
				}
				got := node.improve(available, 0, size)
				have, best := node.Score(got), node.Score(want)
				if have.Bottleneck != best.Bottleneck || have.NVLinks != best.NVLinks {
					t.Errorf("%s: %d of %v: %v (%v), best is %v (%v)", m.name, size, available, got, have, want, best)
				}
			}
		}
	}
}

// TestImproveEndsAtABest checks that no exchange of one GPU improves the result of improve.
func TestImproveEndsAtABest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMachine(t, 10, 20)
		node, err := NewNode(m.topology, m.numa)
		if err != nil {
			t.Fatal(err)
		}
		must := rapid.SampledFrom([]Set{0, 1 << 7}).Draw(t, "must")
		size := rapid.IntRange(3, node.count-1).Draw(t, "size")
		got := node.improve(node.All(), must, size)
		for leave := range (got &^ must).Positions() {
			for enter := range (node.All() &^ got).Positions() {
				other := got&^(1<<leave) | 1<<enter
				order := compareScore(node.Score(other), node.Score(got))
				if order == 0 {
					order = comparePacking(node.Packing(node.All()&^other), node.Packing(node.All()&^got))
				}
				if order > 0 || order == 0 && other.before(got) {
					t.Fatalf("%d with %v: %v (%v), but %v is better (%v)\n%s", size, must, got, node.Score(got),
						other, node.Score(other), node.Describe())
				}
			}
		}
	})
}

func comparePacking(a, b Packing) int {
	return slices.Compare([]int{a.Eights, a.Fours, a.Twos}, []int{b.Eights, b.Fours, b.Twos})
}

// TestChooseAmongMany requests more sets than can be compared: the result must still be valid and deterministic, and
// optimal where all GPUs are alike.
func TestChooseAmongMany(t *testing.T) {
	t.Run("alike", func(t *testing.T) {
		node := mustNode(t, switchFabricOf(t, 32), nil)
		for size := 1; size <= 32; size++ {
			got, err := node.Choose(node.All(), 0, size)
			if want := Set(uint64(1)<<size - 1); err != nil || got != want {
				t.Errorf("%d of 32 alike: %v, %v; want %v", size, got, err, want)
			}
		}
		if diff := cmp.Diff(Packing{4, 8, 16}, node.Packing(node.All())); diff != "" {
			t.Errorf("Packing (-want +got)\n%s", diff)
		}
	})
	t.Run("islands", func(t *testing.T) {
		// Four fabrics of eight GPUs; the members of each are at every fourth position.
		topology := gpu.NewTopology(32)
		for i := range topology {
			for j := range i {
				link := gpu.Link{Path: gpu.PathSystem}
				if i%4 == j%4 {
					link.Kind, link.Count = gpu.LinkNVLink, 18
				}
				topology.Set(i, j, link)
			}
		}
		node := mustNode(t, topology, nil)
		left := node.All()
		for island := range 4 {
			got, err := node.Choose(left, 0, 8)
			if want := Set(0x11111111) << island; err != nil || got != want {
				t.Fatalf("island %d: %v, %v; want %v", island, got, err, want)
			}
			left &^= got
		}
		got, err := node.Choose(node.All(), SetOf(6, 30), 8)
		if want := Set(0x11111111) << 2; err != nil || got != want {
			t.Errorf("with 6 and 30: %v, %v; want %v", got, err, want)
		}
	})
	t.Run("random", rapid.MakeCheck(func(t *rapid.T) {
		m := drawMachine(t, 17, 24)
		node, err := NewNode(m.topology, m.numa)
		if err != nil {
			t.Fatal(err)
		}
		must := Set(1<<rapid.IntRange(0, node.count-1).Draw(t, "must")) &^ 1
		size := rapid.IntRange(1, node.count).Draw(t, "size")
		first, err := node.Choose(node.All(), must, size)
		if err != nil {
			t.Fatal(err)
		}
		if first.Len() != size || must&^first != 0 || first&^node.All() != 0 {
			t.Fatalf("asked for %d with %v, got %v", size, must, first)
		}
		if again, _ := node.Choose(node.All(), must, size); again != first {
			t.Fatalf("first %v, then %v", first, again)
		}
	}))
}

func switchFabricOf(t testing.TB, n int) gpu.Topology {
	t.Helper()
	topology, _ := switchFabric(n, 18)
	return topology
}

// TestServeFullyLinked allocates GPUs to one container after another until the node is full: each must get the best
// possible link for its size.
func TestServeFullyLinked(t *testing.T) {
	tests := map[string]struct {
		machine string
		sizes   []int
		want    []string // the weakest pair that each container may get
	}{
		"cube mesh 4+4":             {"v100x8-hybrid-mesh", []int{4, 4}, []string{"NV1", "NV1"}},
		"cube mesh 2+2+2+2":         {"v100x8-hybrid-mesh", []int{2, 2, 2, 2}, []string{"NV2", "NV2", "NV2", "NV2"}},
		"cube mesh 2+4":             {"v100x8-hybrid-mesh", []int{2, 4, 2}, []string{"NV2", "NV1", "NV1"}},
		"cube mesh 1+1+2+4":         {"v100x8-hybrid-mesh", []int{1, 1, 2, 4}, []string{"-", "-", "NV2", "NV1"}},
		"switches 4+4":              {"h100x8", []int{4, 4}, []string{"NV18", "NV18"}},
		"switches 2+2+2+2":          {"h100x8", []int{2, 2, 2, 2}, []string{"NV18", "NV18", "NV18", "NV18"}},
		"switches 3+3+2":            {"h100x8", []int{3, 3, 2}, []string{"NV18", "NV18", "NV18"}},
		"DGX A100 2+2+2+2":          {"a100x8", []int{2, 2, 2, 2}, []string{"NV12", "NV12", "NV12", "NV12"}},
		"16 on switches 8+8":        {"a100x16", []int{8, 8}, []string{"NV12", "NV12"}},
		"16 on switches 4+4+4+4":    {"a100x16", []int{4, 4, 4, 4}, []string{"NV12", "NV12", "NV12", "NV12"}},
		"16 on switches 1+8+4+2":    {"a100x16", []int{1, 8, 4, 2}, []string{"-", "NV12", "NV12", "NV12"}},
		"PCIe 4+4 by socket":        {"l40sx8", []int{4, 4}, []string{"NODE", "NODE"}},
		"PCIe 2+2+2+2 by switch":    {"l40sx8", []int{2, 2, 2, 2}, []string{"PIX", "PIX", "PIX", "PIX"}},
		"PCIe 1+1+2+4":              {"l40sx8", []int{1, 1, 2, 4}, []string{"-", "-", "PIX", "NODE"}},
		"PCIe 2+1+1+4":              {"l40sx8", []int{2, 1, 1, 4}, []string{"PIX", "-", "-", "NODE"}},
		"bridges 2+2":               {"a30x4", []int{2, 2}, []string{"NV4", "NV4"}},
		"bridges 1+2":               {"a30x4", []int{1, 2}, []string{"-", "NV4"}},
		"mixed 1+4+2":               {"mixed", []int{1, 4, 2}, []string{"-", "NV12", "NV12"}},
		"mixed 2+2+2+1":             {"mixed", []int{2, 2, 2, 1}, []string{"NV12", "NV12", "NV12", "-"}},
		"mixed: the T4 is left out": {"mixed", []int{7}, []string{"NV12"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := loadMachine(t, test.machine)
			node := m.node(t)
			var got []string
			left := node.All()
			for _, size := range test.sizes {
				s, err := node.Choose(left, 0, size)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, weakest(m.topology, s))
				left &^= s
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("weakest pairs (-want +got)\n%s\n%s", diff, node.Describe())
			}
		})
	}
}

func weakest(topology gpu.Topology, s Set) string {
	level := levelNone
	for i := range s.Positions() {
		for j := range s.Positions() {
			if i != j && (level == levelNone || levelOf(topology[i][j]) < level) {
				level = levelOf(topology[i][j])
			}
		}
	}
	return level.String()
}

// TestServeAnyMixFullyLinked serves every sequence of 1, 2 and 4 that fills eight GPUs on one fabric: every container
// must get NVLinks, and no GPU may be left over.
func TestServeAnyMixFullyLinked(t *testing.T) {
	m := loadMachine(t, "h100x8")
	node := m.node(t)
	var serve func(left Set, served []int)
	serve = func(left Set, served []int) {
		for _, size := range []int{1, 2, 4} {
			if size > left.Len() {
				continue
			}
			s, err := node.Choose(left, 0, size)
			if err != nil || !allNVLinked(m.topology, s) {
				t.Fatalf("after %v, %d GPUs: %v, %v", served, size, s, err)
			}
			serve(left&^s, append(served, size))
		}
	}
	serve(node.All(), nil)
}

func TestChooseErrors(t *testing.T) {
	node := loadMachine(t, "t4x4").node(t)
	tests := map[string]struct {
		available Set
		must      Set
		size      int
		want      string
	}{
		"none":                   {SetOf(0, 1), 0, 0, "choose 0 GPUs: the number must be positive"},
		"negative":               {SetOf(0, 1), 0, -2, "choose -2 GPUs: the number must be positive"},
		"too many":               {SetOf(0, 3), 0, 3, "choose 3 GPUs: only 2 are available: {0,3}"},
		"nothing available":      {0, 0, 1, "choose 1 GPUs: only 0 are available: {}"},
		"must not available":     {SetOf(0, 1), SetOf(1, 2), 2, "choose 2 GPUs: {2} must be included but are not available: {0,1}"},
		"must larger than size":  {SetOf(0, 1, 2), SetOf(0, 1), 1, "choose 1 GPUs: 2 must be included: {0,1}"},
		"GPUs that do not exist": {SetOf(0, 4, 31), 0, 1, "choose 1 GPUs: available has {4,31}, but the node has 4 GPUs, numbered from 0"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := node.Choose(test.available, test.must, test.size)
			if err == nil {
				t.Fatalf("got %v, want an error", got)
			}
			if diff := cmp.Diff(test.want, err.Error()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestNewNodeErrors(t *testing.T) {
	lopsided := gpu.NewTopology(2)
	lopsided[0][1].Count = 1
	links := gpu.NewTopology(2)
	links.Set(0, 1, gpu.Link{Kind: gpu.LinkNVLink, Count: 256})
	path := gpu.NewTopology(2)
	path.Set(0, 1, gpu.Link{Path: 7})
	tests := map[string]struct {
		topology gpu.Topology
		numa     []int
		want     string
	}{
		"too many GPUs":  {gpu.NewTopology(33), nil, "33 GPUs, at most 32"},
		"too few nodes":  {gpu.NewTopology(3), []int{0}, "3 GPUs, but 1 NUMA nodes"},
		"not square":     {gpu.Topology{{{}, {}}, {{}}}, nil, "row 1 of the topology has 1 links"},
		"not symmetric":  {lopsided, nil, "from GPU 1 to 0"},
		"too many links": {links, nil, "GPUs 0 and 1 have 256 NVLinks"},
		"unknown path":   {path, nil, "unknown PCIe path 7"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := NewNode(test.topology, test.numa)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

// TestNodeKeepsItsOwnCopy changes the slices that a node was created from.
func TestNodeKeepsItsOwnCopy(t *testing.T) {
	m := loadMachine(t, "v100x8-hybrid-mesh")
	node := m.node(t)
	before := node.Describe()
	m.topology.Set(0, 1, gpu.Link{Kind: gpu.LinkNVLink, Count: 6})
	m.numa[0] = 7
	if diff := cmp.Diff(before, node.Describe()); diff != "" {
		t.Errorf("(-before +after)\n%s", diff)
	}
}

// TestChooseIsDeterministic makes the same requests to two nodes of the same inventory, in opposite order.
func TestChooseIsDeterministic(t *testing.T) {
	for _, m := range allMachines(t) {
		first, second := m.node(t), m.node(t)
		var got, again []Set
		for available := Set(1); available <= first.All(); available += 7 {
			size := (available.Len() + 1) / 2
			s, err := first.Choose(available, available&-available, size)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, s)
		}
		last := (first.All()-1)/7*7 + 1
		for available := last; available > 0 && available <= last; available -= 7 {
			s, err := second.Choose(available, available&-available, (available.Len()+1)/2)
			if err != nil {
				t.Fatal(err)
			}
			again = append(again, s)
		}
		slices.Reverse(again)
		if diff := cmp.Diff(got, again); diff != "" {
			t.Errorf("%s: (-first +second)\n%s", m.name, diff)
		}
	}
}

func TestSet(t *testing.T) {
	tests := map[string]struct {
		set  Set
		want string
		size int
	}{
		"empty":   {0, "{}", 0},
		"one":     {SetOf(5), "{5}", 1},
		"several": {SetOf(31, 0, 7, 7), "{0,7,31}", 3},
		"outside": {SetOf(-1, 32, 2), "{2}", 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.set.String() != test.want || test.set.Len() != test.size {
				t.Errorf("%s with %d, want %s with %d", test.set, test.set.Len(), test.want, test.size)
			}
			if back := SetOf(members(test.set)...); back != test.set {
				t.Errorf("there and back: %v, want %v", back, test.set)
			}
		})
	}
}

// compareScore returns a positive number when a is the better score, and a negative one when b is.
func compareScore(a, b Score) int {
	return slices.Compare([]int{int(a.Bottleneck), a.NVLinks, a.PCIe, -a.NUMANodes}, []int{int(b.Bottleneck), b.NVLinks, b.PCIe, -b.NUMANodes})
}
