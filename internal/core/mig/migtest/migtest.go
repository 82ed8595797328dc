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

// TwoGPUs are two H100, GPU-0 and GPU-1, not partitioned and with two profiles.
func TwoGPUs() *gpu.Snapshot {
	geometry := gpu.MIGGeometry{MemorySlices: 8, ComputeSlices: 7, Profiles: []gpu.MIGProfile{
		{Name: "1g.10gb", ID: 19, ComputeSlices: 1, Size: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}, Max: 7},
		{Name: "3g.40gb", Number: 2, ID: 9, ComputeSlices: 3, Size: 4, Starts: []int{0, 4}, Max: 2},
	}}
	snapshot := &gpu.Snapshot{Vendors: []gpu.VendorState{{Name: gpu.NVIDIA, Driver: gpu.Driver{Version: "580.65.06"}}}}
	for i, id := range []gpu.UUID{"GPU-0", "GPU-1"} {
		snapshot.GPUs = append(snapshot.GPUs, gpu.GPU{
			UUID: id, Vendor: gpu.NVIDIA, Index: i, Product: "NVIDIA H100 80GB HBM3", DeviceID: 0x233010de, MIG: gpu.MIG{Capable: true, Geometry: geometry},
		})
	}
	return snapshot
}
