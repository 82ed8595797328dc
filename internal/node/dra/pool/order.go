package pool

import (
	"cmp"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// group is an island with published GPUs, or a GPU without NVLinks.
type group struct {
	members []*published
	linked  bool
	dynamic bool
}

// ordered returns the GPUs in the order of the package comment. island is the name of each GPU's island.
func ordered(gpus []published, island map[gpu.UUID]string) []*published {
	var groups []*group
	byIsland := map[string]*group{}
	for i := range gpus {
		p := &gpus[i]
		name := island[p.UUID]
		g := byIsland[name]
		if name == "" || g == nil {
			g = &group{linked: name != ""}
			groups = append(groups, g)
			byIsland[name] = g
		}
		g.members = append(g.members, p)
		g.dynamic = g.dynamic || p.dynamic
	}
	for _, g := range groups {
		slices.SortFunc(g.members, comparePublished)
	}
	slices.SortFunc(groups, func(a, b *group) int {
		return cmp.Or(compareBool(a.linked, b.linked), compareBool(a.dynamic, b.dynamic), comparePCI(first(a), first(b)))
	})
	list := make([]*published, 0, len(gpus))
	for _, g := range groups {
		list = append(list, g.members...)
	}
	return list
}

// first returns the member of a group with the lowest PCI bus ID.
func first(g *group) *published { return slices.MinFunc(g.members, comparePCI) }

func comparePublished(a, b *published) int {
	return cmp.Or(compareBool(a.dynamic, b.dynamic), comparePCI(a, b))
}

func comparePCI(a, b *published) int {
	return cmp.Or(cmp.Compare(a.PCI.Domain, b.PCI.Domain), cmp.Compare(a.PCI.Bus, b.PCI.Bus), cmp.Compare(a.PCI.Device, b.PCI.Device),
		cmp.Compare(a.PCI.Function, b.PCI.Function), cmp.Compare(a.UUID, b.UUID))
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
