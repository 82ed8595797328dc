package gpu_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// kept returns what the letters of a matrix keep: the number of NVLinks, or the path where there are none.
func kept(topology gpu.Topology) gpu.Topology {
	out := gpu.NewTopology(len(topology))
	for i, row := range topology {
		for j, link := range row {
			switch {
			case i == j:
			case link.Kind == gpu.LinkNVLink && link.Count > 0:
				out[i][j] = gpu.Link{Kind: gpu.LinkNVLink, Count: link.Count}
			case link.Path >= gpu.PathUnknown && link.Path <= gpu.PathSystem:
				out[i][j] = gpu.Link{Path: link.Path}
			}
		}
	}
	return out
}

// TestParseTopologyInvertsLetters draws matrices, also with links that NVML does not report today.
func TestParseTopologyInvertsLetters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		topology := drawTopology(t)
		rows := topology.Letters()
		parsed, err := gpu.ParseTopology(rows)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(kept(topology), parsed); diff != "" {
			t.Fatalf("%q (-want +got):\n%s", rows, diff)
		}
		if again := parsed.Letters(); !slices.Equal(rows, again) {
			t.Fatalf("%q became %q", rows, again)
		}
	})
}

func TestParseTopologyRefuses(t *testing.T) {
	many := make([]string, gpu.MaxParsedGPUs+1)
	for name, test := range map[string]struct {
		rows []string
		want string
	}{
		"too many GPUs":       {many, "it has 129 rows, want one for each of at most 128 GPUs"},
		"a missing row":       {[]string{"X NV1 NV1", "NV1 X NV1"}, "row 0: it has 3 links, want 2, one for each row"},
		"a missing link":      {[]string{"X NV1", "NV1"}, "row 1: it has 1 links, want 2, one for each row"},
		"an empty row":        {[]string{""}, "row 0: it has 0 links, want 1, one for each row"},
		"a long row":          {[]string{"X" + strings.Repeat(" ", 40)}, "row 0: it is 41 bytes long, want at most 16 for 1 links"},
		"unknown letters":     {[]string{"X QPI", "QPI X"}, `row 0: link 1: unknown letters "QPI", want NV#, PSB, PIX, PXB, PHB, NODE, SYS or ?`},
		"lower case":          {[]string{"X sys", "sys X"}, `row 0: link 1: unknown letters "sys", want NV#, PSB, PIX, PXB, PHB, NODE, SYS or ?`},
		"no NVLinks":          {[]string{"X NV0", "NV0 X"}, `row 0: link 1: "NV0" is no number of NVLinks, want NV1 to NV255`},
		"NVLinks without #":   {[]string{"X NV", "NV X"}, `row 0: link 1: "NV" is no number of NVLinks, want NV1 to NV255`},
		"too many NVLinks":    {[]string{"X NV256", "NV256 X"}, `row 0: link 1: "NV256" is no number of NVLinks, want NV1 to NV255`},
		"another form":        {[]string{"X NV+1", "NV+1 X"}, `row 0: link 1: "NV+1" is no number of NVLinks, want NV1 to NV255`},
		"a leading zero":      {[]string{"X NV01", "NV1 X"}, `row 0: link 1: "NV01" is no number of NVLinks, want NV1 to NV255`},
		"X at another place":  {[]string{"X X", "X X"}, `row 0: link 1 is "X", want X at position 0 and nowhere else`},
		"a link to itself":    {[]string{"X NV1", "NV1 NV1"}, `row 1: link 1 is "NV1", want X at position 1 and nowhere else`},
		"different NVLinks":   {[]string{"X NV2", "NV4 X"}, "row 1: the link to GPU 0 is NV4, but row 0 has NV2 for the same link, want the same in both"},
		"NVLinks and no more": {[]string{"X NV2", "? X"}, "row 1: the link to GPU 0 is ?, but row 0 has NV2 for the same link, want the same in both"},
	} {
		t.Run(name, func(t *testing.T) {
			topology, err := gpu.ParseTopology(test.rows)
			if want := "parse topology: " + test.want; err == nil || err.Error() != want {
				t.Errorf("got %v, %v\nwant %s", topology, err, want)
			}
		})
	}
}

// TestParseTopologyAccepts has no errors: no rows, several spaces, and the largest matrix of the longest letters.
func TestParseTopologyAccepts(t *testing.T) {
	if topology, err := gpu.ParseTopology(nil); err != nil || len(topology) != 0 || topology.Letters() != nil {
		t.Errorf("no rows: got %v, %v", topology, err)
	}
	spaced, err := gpu.ParseTopology([]string{" X   NODE ", "NODE X"})
	if err != nil || spaced[0][1].Path != gpu.PathSameNUMA {
		t.Errorf("several spaces: got %v, %v", spaced, err)
	}
	largest := gpu.NewTopology(gpu.MaxParsedGPUs)
	for i := range largest {
		for j := range i {
			largest.Set(i, j, gpu.Link{Kind: gpu.LinkNVLink, Count: gpu.MaxNVLinks})
		}
	}
	parsed, err := gpu.ParseTopology(largest.Letters())
	if diff := cmp.Diff(largest, parsed); err != nil || diff != "" {
		t.Errorf("the largest: %v (-want +got):\n%s", err, diff)
	}
}

// FuzzParseTopology parses arbitrary rows: none may panic, and what is accepted is symmetric and survives printing.
func FuzzParseTopology(f *testing.F) {
	f.Add("")
	f.Add("X")
	f.Add("X NV12\nNV12 X")
	f.Add("X PIX SYS\nPIX X ?\nSYS ? X")
	f.Add("X NV0\nNV99999999999999999999 X")
	f.Add(strings.Repeat("X\n", 200))
	f.Fuzz(func(t *testing.T, text string) {
		topology, err := gpu.ParseTopology(strings.Split(text, "\n"))
		if err != nil {
			if topology != nil {
				t.Fatalf("%v, and %v", topology, err)
			}
			return
		}
		for i, row := range topology {
			for j, link := range row {
				if link != topology[j][i] || i == j && link != (gpu.Link{}) {
					t.Fatalf("link %d of row %d is %+v", j, i, link)
				}
			}
		}
		rows := topology.Letters()
		again, err := gpu.ParseTopology(rows)
		if err != nil {
			t.Fatalf("%q: %v", rows, err)
		}
		if diff := cmp.Diff(topology, again); diff != "" {
			t.Fatal(diff)
		}
	})
}

// keptOfBoth returns what both matrices keep: that it is NVLinks, their number, and the path.
func keptOfBoth(topology gpu.Topology) gpu.Topology {
	out := kept(topology)
	for i, row := range topology {
		for j, link := range row {
			if i != j && link.Path >= gpu.PathUnknown && link.Path <= gpu.PathSystem {
				out[i][j].Path = link.Path
			}
		}
	}
	return out
}

// drawTopology draws a matrix, also with links that NVML does not report today.
func drawTopology(t *rapid.T) gpu.Topology {
	n := rapid.IntRange(0, 20).Draw(t, "gpus")
	kinds := rapid.SampledFrom([][]gpu.LinkKind{{""}, {gpu.LinkNVLink, gpu.LinkNVLink, ""}}).Draw(t, "kinds")
	topology := gpu.NewTopology(n)
	for i := range n {
		for j := range i {
			topology.Set(i, j, gpu.Link{
				Kind:     rapid.SampledFrom(kinds).Draw(t, "kind"),
				Count:    rapid.SampledFrom([]int{0, 0, 1, 2, 12, 18, gpu.MaxNVLinks}).Draw(t, "nvlinks"),
				Switched: rapid.Bool().Draw(t, "switched"),
				Path:     gpu.PCIPath(rapid.IntRange(-1, int(gpu.PathSystem)+1).Draw(t, "path")),
			})
		}
	}
	return topology
}

// TestParseTopologiesInvertsBoth draws matrices: both together keep all but whether the links go through switches, and the matrix of
// paths is there only where some pair has NVLinks.
func TestParseTopologiesInvertsBoth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		topology := drawTopology(t)
		rows, paths := topology.Letters(), topology.PathLetters()
		parsed, err := gpu.ParseTopologies(len(topology), rows, paths)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(keptOfBoth(topology), parsed); diff != "" {
			t.Fatalf("%q %q (-want +got):\n%s", rows, paths, diff)
		}
		if linked := strings.Contains(strings.Join(rows, " "), "NV"); linked != (paths != nil) || linked != topology.HasNVLinks() {
			t.Fatalf("%q have the paths %q", rows, paths)
		}
		alone, err := gpu.ParseTopologies(len(topology), rows, nil)
		if diff := cmp.Diff(kept(topology), alone); err != nil || diff != "" {
			t.Fatalf("%q without paths: %v (-want +got):\n%s", rows, err, diff)
		}
	})
}

func TestParseTopologiesRefuses(t *testing.T) {
	two := []string{"X NV4", "NV4 X"}
	for name, test := range map[string]struct {
		gpus  int
		rows  []string
		paths []string
		want  string
	}{
		"a row too few":         {3, two, nil, "parse topology: it has 2 rows for 3 GPUs, want one for each"},
		"a row too many":        {1, two, nil, "parse topology: it has 2 rows for 1 GPUs, want one for each"},
		"a bad topology":        {2, []string{"X NV4", "NV2 X"}, two, "parse topology: row 1: the link to GPU 0 is NV2, but row 0 has NV4 for the same link, want the same in both"},
		"a path too few":        {2, two, []string{"X"}, "parse PCIe topology: it has 1 rows, but the topology has 2, want the same number"},
		"paths alone":           {2, nil, []string{"X PIX", "PIX X"}, "parse PCIe topology: it has 2 rows, but the topology has 0, want the same number"},
		"too many paths":        {2, two, make([]string, 1000), "parse PCIe topology: it has 1000 rows, but the topology has 2, want the same number"},
		"an empty row of paths": {2, two, []string{"", ""}, "parse PCIe topology: row 0: it has 0 links, want 2, one for each row"},
		"unknown letters":       {2, two, []string{"X QPI", "QPI X"}, `parse PCIe topology: row 0: link 1: unknown letters "QPI", want NV#, PSB, PIX, PXB, PHB, NODE, SYS or ?`},
		"NVLinks for a path":    {2, two, two, "parse PCIe topology: row 0: link 1 is NV4, want the letters of a PCIe path"},
		"one-way paths":         {2, two, []string{"X PIX", "SYS X"}, "parse PCIe topology: row 1: the link to GPU 0 is SYS, but row 0 has PIX for the same link, want the same in both"},
		"no X":                  {2, two, []string{"PIX PIX", "PIX X"}, `parse PCIe topology: row 0: link 0 is "PIX", want X at position 0 and nowhere else`},
		"another path": {3, []string{"X NV4 SYS", "NV4 X SYS", "SYS SYS X"}, []string{"X PIX SYS", "PIX X NODE", "SYS NODE X"},
			"parse PCIe topology: row 1: link 2 is NODE, but the topology has SYS for the same link, want the same in both"},
	} {
		t.Run(name, func(t *testing.T) {
			topology, err := gpu.ParseTopologies(test.gpus, test.rows, test.paths)
			if err == nil || err.Error() != test.want || topology != nil {
				t.Errorf("got %v, %v\nwant %s", topology, err, test.want)
			}
		})
	}
}

// TestParseTopologiesAccepts: no rows are no error whatever the number of GPUs, and paths may be there where they say nothing more.
func TestParseTopologiesAccepts(t *testing.T) {
	if topology, err := gpu.ParseTopologies(8, nil, nil); err != nil || len(topology) != 0 {
		t.Errorf("no rows: got %v, %v", topology, err)
	}
	rows := []string{"X PIX", "PIX X"}
	if topology, err := gpu.ParseTopologies(2, rows, rows); err != nil || topology[0][1] != (gpu.Link{Path: gpu.PathSingleSwitch}) {
		t.Errorf("without NVLinks: got %v, %v", topology, err)
	}
}

// FuzzParseTopologies parses arbitrary rows: none may panic, and what is accepted is symmetric and survives printing.
func FuzzParseTopologies(f *testing.F) {
	f.Add(0, "", "")
	f.Add(2, "X NV12\nNV12 X", "X PIX\nPIX X")
	f.Add(3, "X NV4 SYS\nNV4 X SYS\nSYS SYS X", "X PIX SYS\nPIX X SYS\nSYS SYS X")
	f.Add(2, "X PIX\nPIX X", "X NV1\nNV1 X")
	f.Add(-1, "X", "X")
	f.Fuzz(func(t *testing.T, gpus int, rows, paths string) {
		split := func(text string) []string {
			if text == "" {
				return nil
			}
			return strings.Split(text, "\n")
		}
		topology, err := gpu.ParseTopologies(gpus, split(rows), split(paths))
		if err != nil {
			if topology != nil {
				t.Fatalf("%v, and %v", topology, err)
			}
			return
		}
		for i, row := range topology {
			for j, link := range row {
				if link != topology[j][i] || i == j && link != (gpu.Link{}) {
					t.Fatalf("link %d of row %d is %+v", j, i, link)
				}
			}
		}
		again, err := gpu.ParseTopologies(len(topology), topology.Letters(), topology.PathLetters())
		if diff := cmp.Diff(topology, again); err != nil || diff != "" {
			t.Fatalf("%q %q: %v (-want +got):\n%s", topology.Letters(), topology.PathLetters(), err, diff)
		}
	})
}

// BenchmarkParseTopology reads what a GPUNode says of 8 and 16 GPUs on one fabric.
func BenchmarkParseTopology(b *testing.B) {
	for _, n := range []int{8, 16} {
		topology := gpu.NewTopology(n)
		for i := range n {
			for j := range i {
				topology.Set(i, j, gpu.Link{Kind: gpu.LinkNVLink, Count: 18})
			}
		}
		rows := topology.Letters()
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := gpu.ParseTopology(rows); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
