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
		n := rapid.IntRange(0, 20).Draw(t, "gpus")
		topology := gpu.NewTopology(n)
		for i := range n {
			for j := range i {
				topology.Set(i, j, gpu.Link{
					Kind:     rapid.SampledFrom([]gpu.LinkKind{gpu.LinkNVLink, gpu.LinkNVLink, ""}).Draw(t, "kind"),
					Count:    rapid.SampledFrom([]int{0, 0, 1, 2, 12, 18, gpu.MaxNVLinks}).Draw(t, "nvlinks"),
					Switched: rapid.Bool().Draw(t, "switched"),
					Path:     gpu.PCIPath(rapid.IntRange(-1, int(gpu.PathSystem)+1).Draw(t, "path")),
				})
			}
		}
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
