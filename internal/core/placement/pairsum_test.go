package placement

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// PairSum is the objective of NVIDIA's best-effort policy, from its documented numbers: per pair 10 (across CPUs) to 60
// (one board) for PCIe and 100 per NVLink. Links to an NVSwitch add nothing there, because the remote end is not a GPU.
// Berth does not use it, because on a cube mesh a high sum can hide a slow bottleneck.
func PairSum(topology gpu.Topology, set Set) int {
	sum := 0
	for i := range set.Positions() {
		for j := range set.Positions() {
			if j <= i {
				continue
			}
			link := topology[i][j]
			if link.Path != gpu.PathUnknown {
				sum += 10 * int(gpu.PathSystem-link.Path+1)
			}
			if !link.Switched {
				sum += 100 * link.Count
			}
		}
	}
	return sum
}

func bestPairSum(topology gpu.Topology, available, must Set, size int) int {
	best := -1
	for _, positions := range combinations(members(available&^must), size-must.Len()) {
		best = max(best, PairSum(topology, must|SetOf(positions...)))
	}
	return best
}

// fullyLinked reports whether all pairs have the same number of NVLinks, and at least one.
func fullyLinked(topology gpu.Topology) bool {
	for i := range topology {
		for j := range i {
			if topology[i][j].Count == 0 || topology[i][j].Count != topology[1][0].Count {
				return false
			}
		}
	}
	return true
}

// TestPairSumOnFullFabrics checks that, where all GPUs are linked alike, no choice is worse than the best pair sum: for
// all combinations of available and included GPUs at 8 GPUs, and for a sample at 16.
func TestPairSumOnFullFabrics(t *testing.T) {
	fabrics := 0
	for _, m := range allMachines(t) {
		if !fullyLinked(m.topology) {
			continue
		}
		fabrics++
		t.Run(m.name, func(t *testing.T) {
			node := m.node(t)
			step := Set(1)
			if node.count > 8 {
				step = 6553
			}
			for available := node.All(); available > 0 && available <= node.All(); available -= step {
				for size := 1; size <= available.Len(); size++ {
					checkPairSum(t, m, node, available, 0, size)
					checkPairSum(t, m, node, available, available&-available, size)
				}
			}
		})
	}
	if fabrics < 4 {
		t.Errorf("%d fully linked machines, want at least 4", fabrics)
	}
}

func checkPairSum(t *testing.T, m machine, node *Node, available, must Set, size int) {
	t.Helper()
	got, err := node.Choose(available, must, size)
	if err != nil {
		t.Fatal(err)
	}
	if sum, best := PairSum(m.topology, got), bestPairSum(m.topology, available, must, size); sum != best {
		t.Errorf("%d of %v with %v: %v has the pair sum %d, the best is %d", size, available, must, got, sum, best)
	}
}

// TestPairSumReport prints, for every machine, the pair sum of Berth's choice beside the best one for each size, and
// how the two compare over all sets of available GPUs (a sample at 16 GPUs).
func TestPairSumReport(t *testing.T) {
	datadriven.RunTest(t, "testdata/pairsum.txt", func(t *testing.T, d *datadriven.TestData) string {
		var text strings.Builder
		for _, m := range allMachines(t) {
			node := m.node(t)
			fmt.Fprintf(&text, "%s\n  all available:", m.name)
			for size := 2; size <= node.count; size++ {
				c := comparePairSum(t, m, node, node.All(), size)
				fmt.Fprintf(&text, " %d:%d/%d", size, c.ours, c.best)
			}
			text.WriteByte('\n')
			reportRequests(t, &text, m, node)
		}
		return text.String()
	})
}

func reportRequests(t *testing.T, text *strings.Builder, m machine, node *Node) {
	t.Helper()
	step := Set(1)
	if node.count > 8 {
		step = 6553
	}
	requests, equal, faster, example := 0, 0, 0, ""
	for available := node.All(); available > 0 && available <= node.All(); available -= step {
		for size := 2; size <= available.Len(); size++ {
			c := comparePairSum(t, m, node, available, size)
			requests++
			switch ours, theirs := node.Score(c.set), node.Score(c.theirs); {
			case c.ours == c.best:
				equal++
			case ours.Bottleneck > theirs.Bottleneck:
				faster++
				fallthrough
			default:
				if example == "" {
					example = fmt.Sprintf("  such as %d of %v\n    ours   %v  sum %d, %v\n    theirs %v  sum %d, %v\n",
						size, available, c.set, c.ours, ours, c.theirs, c.best, theirs)
				}
			}
		}
	}
	fmt.Fprintf(text, "  %d requests: %d with the best sum, %d with a lower one and a faster bottleneck, %d others\n%s",
		requests, equal, faster, requests-equal-faster, example)
}

type comparison struct {
	set    Set
	theirs Set
	ours   int
	best   int
}

func comparePairSum(t *testing.T, m machine, node *Node, available Set, size int) comparison {
	t.Helper()
	set, err := node.Choose(available, 0, size)
	if err != nil {
		t.Fatal(err)
	}
	c := comparison{set: set, ours: PairSum(m.topology, set), best: bestPairSum(m.topology, available, 0, size)}
	c.theirs = pairSumChoice(m.topology, available, size, c.best)
	return c
}

func pairSumChoice(topology gpu.Topology, available Set, size, sum int) Set {
	for _, positions := range combinations(members(available), size) {
		if s := SetOf(positions...); PairSum(topology, s) == sum {
			return s
		}
	}
	return 0
}
