package pool

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
)

// memorySlice is how the counter of a memory slice is called; its number follows.
const memorySlice = "memory-slice-"

type counters = map[string]resourceapi.Counter

// counterSet returns the counters of a GPU: one per memory slice, since a placement takes certain ones, and those of the limits of
// MIG. The whole GPU takes all of it.
func counterSet(g *gpu.GPU) resourceapi.CounterSet {
	set := resourceapi.CounterSet{Name: gpuName(g.UUID), Counters: counters{}}
	for i := range g.MIG.Geometry.MemorySlices {
		set.Counters[fmt.Sprint(memorySlice, i)] = resourceapi.Counter{Value: count(1)}
	}
	for _, limit := range mig.Limits(&g.MIG.Geometry) {
		if limit.Capacity > 0 {
			set.Counters[counterName(&limit)] = resourceapi.Counter{Value: count(limit.Capacity)}
		}
	}
	return set
}

// counterName returns the name of the counter of a limit.
func counterName(limit *mig.Limit) string {
	if limit.Profile == "" {
		return limit.Name
	}
	return limit.Name + "-" + label(limit.Profile)
}

// takes returns what a MIG device takes of its GPU's counters.
func takes(set string, limits []mig.Limit, placed mig.Placed) []resourceapi.DeviceCounterConsumption {
	taken := counters{}
	for i := placed.Start; i < placed.Start+placed.Size; i++ {
		taken[fmt.Sprint(memorySlice, i)] = resourceapi.Counter{Value: count(1)}
	}
	for _, limit := range limits {
		if n := limit.Take[placed.Profile]; n > 0 {
			taken[counterName(&limit)] = resourceapi.Counter{Value: count(n)}
		}
	}
	return []resourceapi.DeviceCounterConsumption{{CounterSet: set, Counters: taken}}
}
