package pool

import (
	"cmp"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// group is an island with published GPUs, or a GPU without NVLinks.
type group struct {
	members  []*published
	linked   bool
	degraded bool
	dynamic  bool
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
		g.degraded = g.degraded || p.degraded()
		g.dynamic = g.dynamic || p.dynamic
	}
	for _, g := range groups {
		slices.SortFunc(g.members, comparePublished)
	}
	slices.SortFunc(groups, func(a, b *group) int {
		return cmp.Or(compareBool(a.linked, b.linked), compareBool(a.degraded, b.degraded), compareBool(a.dynamic, b.dynamic),
			comparePCI(first(a), first(b)))
	})
	list := make([]*published, 0, len(gpus))
	for _, g := range groups {
		list = append(list, g.members...)
	}
	slices.SortStableFunc(list, func(a, b *published) int { return compareBool(a.degraded(), b.degraded()) })
	return list
}

// degraded is true for a GPU of which a device is allocated although it is not healthy.
func (p *published) degraded() bool {
	return slices.ContainsFunc(p.devices, func(d resourceapi.Device) bool { return text(&d, AttributeHealth) == string(gpu.Degraded) })
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
