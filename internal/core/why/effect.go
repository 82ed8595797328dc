package why

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// effect describes what the end of a pod frees of what is requested. Pods of equal effects can replace each other. Whole GPUs that are
// free in any case can; of replicas, MIG devices and GPUs with traffic it matters which ones.
func (w *world) effect(n *Node, h *Holder) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%d/%d/%t", h.CPU, h.Memory, h.Ending)
	for _, name := range w.names {
		fmt.Fprintf(&text, "/%d", h.Others[name])
	}
	if h.Claims && w.claims != nil {
		text.WriteString("/" + h.Name)
	}
	traffic := slices.ContainsFunc(w.requests, func(s fleet.Shape) bool { return s.Traffic != 0 })
	whole := 0
	for _, d := range h.Devices {
		if d.Entry < 0 || d.Entry >= len(n.GPUs) || !w.requestsOf(n.GPUs[d.Entry].Resource) {
			continue
		}
		g := &n.GPUs[d.Entry]
		if g.Unit == fleet.Whole && g.State <= fleet.Degraded && !traffic && len(w.requests) == 1 {
			whole += d.Count
			continue
		}
		fmt.Fprintf(&text, "/%d*%d", d.Entry, d.Count)
	}
	fmt.Fprintf(&text, "/%d", whole)
	return text.String()
}
