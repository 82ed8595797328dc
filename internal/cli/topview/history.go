package topview

import (
	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/term"
)

// historyColumns is how many samples are kept and drawn.
const historyColumns = 10

// History has the last utilizations of the devices, or of the nodes where there are several. The zero value is empty.
type History struct {
	of map[string][]float64
}

// Remember adds samples to the history. What they do not have any more is forgotten.
func (v *View) Remember(nodes []*v1alpha1.GPUSamples) { v.History.add(nodes, v.ofNodes(nodes)) }

// add adds samples, of nodes or of the devices of one.
func (h *History) add(nodes []*v1alpha1.GPUSamples, several bool) {
	next := map[string][]float64{}
	add := func(key string, busy *float64) {
		ratio := -1.0
		if busy != nil {
			ratio = *busy
		}
		line := append(h.of[key], ratio)
		next[key] = line[max(0, len(line)-historyColumns):]
	}
	for _, node := range nodes {
		if several {
			add(node.Node, factsOf(node).busy)
			continue
		}
		for i := range node.Items {
			s := &node.Items[i]
			add(s.UUID, busyShare(s))
			for k := range s.Devices {
				add(s.Devices[k].UUID, s.Devices[k].Active)
			}
		}
	}
	h.of = next
}

// line draws the utilizations of a device or node; it is empty for what has none, such as a pod.
func (h *History) line(key string) string {
	if len(h.of[key]) == 0 {
		return ""
	}
	return term.Spark(h.of[key], historyColumns)
}
