// Package migtest tells tests which MIG devices a GPU can have at the same time, by the planner of internal/core/mig.
//
// Only tests may import it; it must not import anything of Berth but internal/core.
package migtest

import (
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
)

// Possible reports whether a GPU can have exactly these devices: the planner would then leave them as they are. The zero value of
// mig.Placed stands for the whole GPU, beside which there is no device.
func Possible(g *gpu.GPU, placements []mig.Placed) bool {
	if slices.Contains(placements, mig.Placed{}) {
		return len(placements) == 1
	}
	planned := mig.GPU{UUID: g.UUID, Capable: true, Enabled: true, Geometry: g.MIG.Geometry}
	wanted := mig.Wanted{Enabled: true, Devices: map[string]int{}}
	for i, p := range placements {
		planned.Instances = append(planned.Instances, mig.Instance{
			UUID: gpu.UUID(fmt.Sprint("MIG-", i)), GI: i, Profile: p.Profile, Start: p.Start, Size: p.Size,
		})
		wanted.Devices[p.Profile]++
	}
	return mig.Matches(planned, wanted)
}
