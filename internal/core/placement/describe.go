package placement

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// Describe returns a text for people and transcripts: the matrix with nvidia-smi's letters, the definition of fully
// linked, and the best set of each size with its score and with what remains.
func (n *Node) Describe() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%d GPUs, %d NUMA nodes\n", n.count, len(n.numaGroups))
	if n.count == 0 {
		return text.String()
	}
	n.describeMatrix(&text)
	text.WriteString("fully linked sets")
	for k, size := range packingSizes {
		separator := ", "
		if k == 0 {
			separator = " "
		}
		fmt.Fprintf(&text, "%sof %d: %s", separator, size, n.linkedText(k))
	}
	text.WriteByte('\n')
	n.describeBest(&text)
	return text.String()
}

func (n *Node) describeMatrix(text *strings.Builder) {
	table := tabwriter.NewWriter(text, 0, 0, 2, ' ', tabwriter.AlignRight)
	for j := range n.count {
		fmt.Fprintf(table, "\t%d", j)
	}
	fmt.Fprint(table, "\tNUMA\t\n")
	for i := range n.count {
		fmt.Fprintf(table, "%d", i)
		for j := range n.count {
			letters := "X"
			if i != j {
				letters = n.topology[i][j].Letters()
			}
			fmt.Fprintf(table, "\t%s", letters)
		}
		fmt.Fprintf(table, "\t%d\t\n", n.numa[i])
	}
	table.Flush()
}

func (n *Node) describeBest(text *strings.Builder) {
	table := tabwriter.NewWriter(text, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "size\tbest set\tbottleneck\tNVLinks\tPCIe\tNUMA nodes\tleaves\n")
	for size := 1; size <= n.count; size++ {
		best, err := n.Choose(n.All(), 0, size)
		if err != nil {
			fmt.Fprintf(table, "%d\t%v\n", size, err)
			continue
		}
		score := n.Score(best)
		fmt.Fprintf(table, "%d\t%v\t%v\t%d\t%d\t%d\t%v\n", size, best,
			score.Bottleneck, score.NVLinks, score.PCIe, score.NUMANodes, n.Packing(n.All()&^best))
	}
	table.Flush()
}
