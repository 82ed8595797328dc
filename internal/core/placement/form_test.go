package placement

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

func mustForm(t rapid.TB, topology gpu.Topology, numa []int) Form {
	t.Helper()
	form, err := FormOf(topology, numa)
	if err != nil {
		t.Fatal(err)
	}
	return form
}

// TestFormKeepsAnswers compares a node with the one that is made from its form, for every set and size of small nodes and for drawn
// requests of large ones.
func TestFormKeepsAnswers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMachine(t, 0, 20)
		node, err := NewNode(m.topology, m.numa)
		if err != nil {
			t.Fatal(err)
		}
		form := mustForm(t, m.topology, m.numa)
		again, err := form.NewNode()
		if err != nil || form.GPUs() != len(m.topology) {
			t.Fatalf("%d GPUs instead of %d: %v", form.GPUs(), len(m.topology), err)
		}
		if !slices.Equal(node.keys, again.keys) || !slices.Equal(node.packing, again.packing) {
			t.Fatal("the tables differ")
		}
		for range 5 {
			available := node.All() & Set(rapid.Uint32().Draw(t, "available"))
			must := available & Set(rapid.Uint32().Draw(t, "must")) & Set(rapid.Uint32().Draw(t, "must too"))
			size := rapid.IntRange(0, node.count+1).Draw(t, "size")
			want, err1 := node.Choose(available, must, size)
			got, err2 := again.Choose(available, must, size)
			if want != got || (err1 == nil) != (err2 == nil) || err1 != nil && err1.Error() != err2.Error() {
				t.Fatalf("%d of %v with %v: got %v, %v; want %v, %v", size, available, must, got, err2, want, err1)
			}
			if node.Score(available) != again.Score(available) || node.Packing(available) != again.Packing(available) {
				t.Fatalf("%v: got %v, %v; want %v, %v", available, again.Score(available), again.Packing(available), node.Score(available),
					node.Packing(available))
			}
		}
	})
}

// TestFormsAreEqual changes one thing of a machine at a time.
func TestFormsAreEqual(t *testing.T) {
	base := func() machine { return loadMachine(t, "v100x8-hybrid-mesh") }
	link := func(change func(*gpu.Link)) func(*machine) {
		return func(m *machine) {
			changed := m.topology[2][6]
			change(&changed)
			m.topology.Set(2, 6, changed)
		}
	}
	for name, test := range map[string]struct {
		change func(*machine)
		equal  bool
	}{
		"nothing":               {func(*machine) {}, true},
		"other NUMA numbers":    {func(m *machine) { m.numa = []int{9, 9, 9, 9, -1, -1, -1, -1} }, true},
		"reversed NUMA numbers": {func(m *machine) { slices.Reverse(m.numa) }, true},
		"the diagonal":          {func(m *machine) { m.topology[3][3].Count = 7 }, true},
		"through switches":      {link(func(l *gpu.Link) { l.Switched = !l.Switched }), true},
		"another path":          {link(func(l *gpu.Link) { l.Path = gpu.PathSingleSwitch }), false},
		"another NVLink":        {link(func(l *gpu.Link) { l.Kind, l.Count = gpu.LinkNVLink, l.Count+1 }), false},
		"another NUMA node":     {func(m *machine) { m.numa[3] = m.numa[7] }, false},
		"unknown NUMA nodes":    {func(m *machine) { m.numa = nil }, false},
		"one GPU fewer": {func(m *machine) {
			m.topology, m.numa = m.topology[:7], m.numa[:7]
			for i := range m.topology {
				m.topology[i] = m.topology[i][:7]
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := base(), base()
			test.change(&after)
			equal := mustForm(t, before.topology, before.numa) == mustForm(t, after.topology, after.numa)
			if equal != test.equal {
				t.Errorf("the forms are equal: %v, want %v", equal, test.equal)
			}
		})
	}
	if unknown := slices.Repeat([]int{gpu.NoNUMANode}, 8); mustForm(t, base().topology, nil) != mustForm(t, base().topology, unknown) {
		t.Error("no NUMA nodes and unknown ones differ")
	}
}

// TestFormRefuses what NewNode refuses, with the same words.
func TestFormRefuses(t *testing.T) {
	asymmetric := gpu.NewTopology(3)
	asymmetric[1][2].Switched = true
	short := gpu.NewTopology(3)
	short[1] = short[1][:2]
	negative, farther := gpu.NewTopology(2), gpu.NewTopology(2)
	negative.Set(0, 1, gpu.Link{Count: -1})
	farther.Set(0, 1, gpu.Link{Path: gpu.PathSystem + 1})
	for name, test := range map[string]machine{
		"too many GPUs":    {topology: gpu.NewTopology(MaxGPUs + 1)},
		"other NUMA nodes": {topology: gpu.NewTopology(3), numa: []int{0}},
		"asymmetric":       {topology: asymmetric},
		"not square":       {topology: short},
		"negative":         {topology: negative},
		"no such path":     {topology: farther},
	} {
		_, want := NewNode(test.topology, test.numa)
		form, err := FormOf(test.topology, test.numa)
		if err == nil || want == nil || err.Error() != want.Error() || form != (Form{}) {
			t.Errorf("%s: got %v, %v; want %v", name, form, err, want)
		}
	}
}

// TestBothMatricesKeepEverything makes the same form of a topology and of what its two matrices of letters keep: links, and PCIe paths
// beside NVLinks.
func TestBothMatricesKeepEverything(t *testing.T) {
	check := func(t rapid.TB, m machine) {
		t.Helper()
		parsed, err := gpu.ParseTopologies(len(m.topology), m.topology.Letters(), m.topology.PathLetters())
		if err != nil {
			t.Fatal(err)
		}
		if want, got := mustForm(t, m.topology, m.numa), mustForm(t, parsed, m.numa); got != want {
			t.Fatalf("%q %q have another form", m.topology.Letters(), m.topology.PathLetters())
		}
	}
	rapid.Check(t, func(t *rapid.T) { check(t, drawMachine(t, 1, 20)) })
	for _, m := range allMachines(t) {
		check(t, m)
	}
}

// TestLettersKeepWhatMatters chooses on a topology and on what its letters keep: the choice may be another one, since letters have no
// PCIe path beside NVLinks, but it has the same bottleneck and as many NVLinks, and fully linked sets are the same.
func TestLettersKeepWhatMatters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMachine(t, 1, 12)
		parsed, err := gpu.ParseTopology(m.topology.Letters())
		if err != nil {
			t.Fatal(err)
		}
		checkLetters(t, m, parsed, func(*Node, Set, int) {})
	})
	for _, m := range allMachines(t) {
		parsed, err := gpu.ParseTopology(m.topology.Letters())
		if err != nil || len(parsed) > 8 {
			continue
		}
		questions, others := 0, 0
		node := m.node(t)
		checkLetters(t, m, parsed, func(again *Node, available Set, size int) {
			questions++
			want, _ := node.Choose(available, 0, size)
			if got, _ := again.Choose(available, 0, size); got != want {
				others++
			}
		})
		t.Logf("%s: %d of %d questions have another answer", m.name, others, questions)
	}
}

func checkLetters(t rapid.TB, m machine, parsed gpu.Topology, each func(*Node, Set, int)) {
	t.Helper()
	node, err := NewNode(m.topology, m.numa)
	if err != nil {
		t.Fatal(err)
	}
	again, err := NewNode(parsed, m.numa)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(node.packing, again.packing) {
		t.Fatalf("the fully linked sets differ: %s", strings.Join(m.topology.Letters(), "; "))
	}
	for available := Set(1); available <= node.All(); available++ {
		if node.count > 8 && available%61 != 0 {
			continue
		}
		for size := 1; size <= available.Len(); size++ {
			want, err1 := node.Choose(available, 0, size)
			got, err2 := again.Choose(available, 0, size)
			if err1 != nil || err2 != nil {
				t.Fatal(err1, err2)
			}
			w, g := node.Score(want), again.Score(got)
			if w.Bottleneck != g.Bottleneck || w.NVLinks != g.NVLinks {
				t.Fatalf("%d of %v: got %v, want %v", size, available, g, w)
			}
			each(again, available, size)
		}
	}
}
