package fleetview

import (
	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Geometry derives the shape of a GPU from its profiles: the largest profile uses all of it.
func Geometry(profiles []v1alpha1.MIGProfile) gpu.MIGGeometry {
	var geometry gpu.MIGGeometry
	for i, profile := range profiles {
		geometry.Profiles = append(geometry.Profiles, gpu.MIGProfile{
			Name: profile.Name, Number: i, ComputeSlices: profile.ComputeSlices, Size: profile.Size,
			Starts: profile.Starts, Max: profile.Max,
		})
		geometry.ComputeSlices = max(geometry.ComputeSlices, profile.ComputeSlices)
		for _, start := range profile.Starts {
			geometry.MemorySlices = max(geometry.MemorySlices, start+profile.Size)
		}
	}
	return geometry
}
