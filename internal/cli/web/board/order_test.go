package board

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestOrder(t *testing.T) {
	tests := map[string]struct {
		topology []string
		numa     []int
		want     string
	}{
		"none":        {want: ""},
		"no links":    {topology: []string{"X PIX", "PIX X"}, numa: []int{0, 0}, want: "0 1"},
		"no topology": {numa: []int{0, 0, 1}, want: "0 1 | 2"},
		"pairs that are not next to one another": {
			topology: []string{"X PHB NV4 PHB", "PHB X PHB NV4", "NV4 PHB X PHB", "PHB NV4 PHB X"},
			numa:     []int{0, 0, 0, 0}, want: "0-2 1-3",
		},
		"the most links first": {topology: []string{"X NV1 NV2", "NV1 X NV2", "NV2 NV2 X"}, numa: []int{0, 0, 0}, want: "0-2-1"},
		"linked over the border": {
			topology: []string{"X NV12 NV12 NV12", "NV12 X NV12 NV12", "NV12 NV12 X NV12", "NV12 NV12 NV12 X"},
			numa:     []int{1, 0, 1, 0}, want: "1-3-|0-2",
		},
		"a topology with fewer rows, cells that are none": {topology: []string{"X NVx NV-3 NV2 NV9 NV9 NV9"}, numa: []int{0, 0, 0, 0}, want: "0-3 1 2"},
		"NUMA nodes that are not known":                   {numa: []int{-1, 0, -1}, want: "0 2 | 1"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var got strings.Builder
			for i, p := range order(test.topology, test.numa) {
				switch {
				case i == 0:
				case p.linked && p.border:
					got.WriteString("-|")
				case p.linked:
					got.WriteString("-")
				case p.border:
					got.WriteString(" | ")
				default:
					got.WriteString(" ")
				}
				fmt.Fprint(&got, p.at)
			}
			if got.String() != test.want {
				t.Errorf("got %q, want %q", got.String(), test.want)
			}
		})
	}
}

// TestOrderHasEach checks that each GPU is in the row once, and those of a NUMA node in one piece.
func TestOrderHasEach(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for range 1000 {
		count := random.IntN(17)
		topology, numa := make([]string, random.IntN(count+2)), make([]int, count)
		for i := range numa {
			numa[i] = random.IntN(4) - 1
		}
		for i := range topology {
			cells := make([]string, random.IntN(count+3))
			for k := range cells {
				cells[k] = []string{"X", "NV1", "NV18", "SYS", "?", "NV"}[random.IntN(6)]
			}
			topology[i] = strings.Join(cells, " ")
		}
		row := order(topology, numa)
		var at, pieces []int
		for _, p := range row {
			at = append(at, p.at)
			if len(pieces) == 0 || pieces[len(pieces)-1] != numa[p.at] {
				pieces = append(pieces, numa[p.at])
			}
		}
		slices.Sort(at)
		for i := range count {
			if len(at) != count || at[i] != i {
				t.Fatalf("topology %q, NUMA nodes %v: got positions %v", topology, numa, at)
			}
		}
		if !slices.IsSorted(pieces) || len(slices.Compact(slices.Clone(pieces))) != len(pieces) {
			t.Fatalf("topology %q, NUMA nodes %v: got pieces %v", topology, numa, pieces)
		}
	}
}
