package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Explanation says why a pod fits on no node, or on how many it does.
type Explanation struct {
	Shape Shape
	// Nodes is how many there are, Fits on how many of them the pod fits.
	Nodes int
	Fits  int
	// Lacks are the reasons of the others, that of most nodes first.
	Lacks []LackCount
}

// LackCount is a reason with its nodes.
type LackCount struct {
	Lack  Lack
	Nodes int
	// Nearest is the node that lacks least, the first in the order of names among equals, and Reason what it lacks.
	Nearest string
	Reason  Reason
}

// Explain says for all nodes why a pod of shape s does not fit on them.
func (f *Fleet) Explain(s Shape) Explanation {
	result := Explanation{Shape: s, Nodes: len(f.nodes)}
	counts := map[Lack]*LackCount{}
	for i := range f.nodes {
		n := &f.nodes[i]
		reason := Fit(n, s)
		if reason.Lack == None {
			result.Fits++
			continue
		}
		count := counts[reason.Lack]
		if count == nil {
			count = &LackCount{Lack: reason.Lack, Nearest: n.Name, Reason: reason}
			counts[reason.Lack] = count
		}
		count.Nodes++
		if nearer := reason.Have - count.Reason.Have; nearer > 0 || nearer == 0 && n.Name < count.Nearest {
			count.Nearest, count.Reason = n.Name, reason
		}
	}
	for _, count := range counts {
		result.Lacks = append(result.Lacks, *count)
	}
	slices.SortFunc(result.Lacks, func(a, b LackCount) int {
		return cmp.Or(-cmp.Compare(a.Nodes, b.Nodes), cmp.Compare(a.Lack, b.Lack))
	})
	return result
}

// String returns the explanation as one line.
func (e Explanation) String() string {
	if e.Nodes == 0 {
		return "there are no nodes"
	}
	var text strings.Builder
	fmt.Fprintf(&text, "fits on %d of %d nodes", e.Fits, e.Nodes)
	for i, lack := range e.Lacks {
		separator := "; "
		if i == 0 {
			separator = ": "
		}
		fmt.Fprintf(&text, "%s%d lack %s (nearest %s: %s)", separator, lack.Nodes, lack.Lack, lack.Nearest, lack.Reason)
	}
	return text.String()
}
