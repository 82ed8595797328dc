package pool

import (
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// islandsOf returns the name of the NVLink island of each GPU that is in one: the UUID of its first GPU. An island keeps the name that
// most of its members are published with, so that the loss of its first GPU changes no other. A GPU that does not respond, or whose
// links are not known, keeps its island.
func islandsOf(snapshot *gpu.Snapshot, before map[gpu.UUID]string) map[gpu.UUID]string {
	groups, known := snapshot.Islands()
	names := map[gpu.UUID]string{}
	taken := map[string]bool{}
	for _, g := range byClaim(snapshot, groups, before) {
		name := g.claims
		if name == "" || taken[name] {
			name = g.free(snapshot, taken)
		}
		taken[name] = true
		for _, at := range g.members {
			names[snapshot.GPUs[at].UUID] = name
		}
	}
	for i := range snapshot.GPUs {
		g := &snapshot.GPUs[i]
		if name := before[g.UUID]; name != "" && (!known || g.Health.State == gpu.Gone) {
			names[g.UUID] = name
		}
	}
	return names
}

// island is a group of linked GPUs, as positions, with the name that most of them are published with.
type island struct {
	members []int
	claims  string
	votes   int
}

// byClaim returns the islands, those with the most votes for their name first: of the parts of an island that was cut, the
// largest keeps the name.
func byClaim(snapshot *gpu.Snapshot, groups [][]int, before map[gpu.UUID]string) []island {
	islands := make([]island, len(groups))
	for i, members := range groups {
		islands[i].members = members
		votes := map[string]int{}
		for _, at := range members {
			name := before[snapshot.GPUs[at].UUID]
			if name == "" {
				continue
			}
			votes[name]++
			if one := &islands[i]; votes[name] > one.votes || votes[name] == one.votes && name < one.claims {
				one.claims, one.votes = name, votes[name]
			}
		}
	}
	slices.SortStableFunc(islands, func(a, b island) int { return b.votes - a.votes })
	return islands
}

// free returns the UUID of the first member that is not the name of another island.
func (i *island) free(snapshot *gpu.Snapshot, taken map[string]bool) string {
	for _, at := range i.members {
		if name := string(snapshot.GPUs[at].UUID); !taken[name] {
			return name
		}
	}
	return ""
}
