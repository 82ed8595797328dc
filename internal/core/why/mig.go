package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/spelling"
)

// migPrefix begins the names of resources of MIG devices.
const migPrefix = "nvidia.com/mig-"

// resources lists the names under which the nodes have devices, sorted.
func (w *world) resources() []string {
	var names []string
	for i := range w.nodes {
		for k := range w.nodes[i].GPUs {
			if name := w.nodes[i].GPUs[k].Resource; !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

func (w *world) offers(resource string) bool {
	return slices.ContainsFunc(w.nodes, func(n Node) bool {
		for i := range n.GPUs {
			if n.GPUs[i].Resource == resource {
				return true
			}
		}
		return false
	})
}

// profile is the size of a MIG device: compute slices and GB of memory.
type profile struct {
	slices int
	memory int
}

// parseProfile reads a profile out of the name of a resource, such as nvidia.com/mig-3g.20gb.
func parseProfile(resource string) (p profile, ok bool) {
	name, ok := strings.CutPrefix(resource, migPrefix)
	if !ok {
		return p, false
	}
	name, _, _ = strings.Cut(name, ".me")
	n, err := fmt.Sscanf(name, "%dg.%dgb", &p.slices, &p.memory)
	return p, err == nil && n == 2 && p.slices > 0 && p.memory > 0
}

// nearResources lists resources that could be used instead of one, the nearest first: of MIG devices those that are at least as large,
// the smallest first; otherwise the one whose name is the nearest.
func nearResources(resource string, names []string) []string {
	want, isMIG := parseProfile(resource)
	if !isMIG {
		if near := spelling.Nearest(resource, names); near != "" {
			return []string{near}
		}
		return nil
	}
	var list []string
	for _, name := range names {
		if p, ok := parseProfile(name); ok && name != resource && p.slices >= want.slices && p.memory >= want.memory {
			list = append(list, name)
		}
	}
	slices.SortFunc(list, func(a, b string) int {
		x, _ := parseProfile(a)
		y, _ := parseProfile(b)
		return cmp.Or(cmp.Compare(x.slices, y.slices), cmp.Compare(x.memory, y.memory), cmp.Compare(a, b))
	})
	return list
}
