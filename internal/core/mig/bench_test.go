package mig

import (
	"fmt"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// mostWays returns the layout of a kind of GPU that has the most placements, and their number.
func mostWays(k gpuKind) (devices map[string]int, ways int) {
	for _, sets := range newTwin(k.geometry).all {
		if len(sets) > ways || len(sets) == ways && devicesKey(countPlaced(sets[0])) < devicesKey(devices) {
			devices, ways = countPlaced(sets[0]), len(sets)
		}
	}
	return devices, ways
}

// BenchmarkPlanGPU plans the layout with the most placements on a GPU that is full of held instances. Ways/op is the
// number of layouts that were compared.
func BenchmarkPlanGPU(b *testing.B) {
	for _, name := range []string{"a30", "a100-40", "rtx-pro-6000"} {
		b.Run(name, func(b *testing.B) {
			k := kindOf(b, name)
			g := k.gpu(0)
			small := g.Geometry.Profiles[0]
			for i, start := range small.Starts {
				g.Instances = append(g.Instances, Instance{
					UUID: gpu.UUID(fmt.Sprintf("MIG-%d", i)), GI: i, Profile: small.Name, Start: start, Size: small.Size,
					Holders: []string{fmt.Sprintf("ns/a-%d", i), fmt.Sprintf("ns/b-%d", i), "ns/everywhere", fmt.Sprintf("ns/c-%d", i)},
				})
			}
			devices, ways := mostWays(k)
			b.ReportAllocs()
			for b.Loop() {
				PlanGPU(g, Wanted{Enabled: true, Devices: devices})
			}
			b.ReportMetric(float64(ways), "ways/op")
		})
	}
}
