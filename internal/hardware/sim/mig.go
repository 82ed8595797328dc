package sim

import (
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/hardware/sim/profile"
)

// This file has the rules of MIG as pure functions over a GPU and its state: which instances fit at which place.

// migDevice is a GPU instance with one of its compute instances.
type migDevice struct {
	uuid    string
	gi      gpuInstance
	ci      computeInstance
	profile *profile.GIProfile
}

// migDevices returns the MIG devices of a GPU, ordered by GPU instance and compute instance.
func migDevices(gpu *gpuHardware, st *gpuState) []migDevice {
	var devices []migDevice
	for _, gi := range st.Instances {
		for _, ci := range gi.Compute {
			devices = append(devices, migDevice{uuid: migUUID(gpu, gi.ID, ci.ID), gi: gi, ci: ci, profile: giProfile(gpu, gi.Profile)})
		}
	}
	return devices
}

// migUUID derives the UUID from the GPU and the instance IDs, so that recreating a layout restores its UUIDs.
func migUUID(gpu *gpuHardware, gi, ci int) string {
	return "MIG-" + uuidOf(gpu.UUID, "mig", fmt.Sprint(gi), fmt.Sprint(ci))
}

// giProfile returns the profile with that ID.
func giProfile(gpu *gpuHardware, id uint32) *profile.GIProfile {
	if gpu.Geometry == nil {
		return nil
	}
	for i := range gpu.Geometry.Profiles {
		if gpu.Geometry.Profiles[i].ID == id {
			return &gpu.Geometry.Profiles[i]
		}
	}
	return nil
}

// giFits reports whether an instance of the profile can start at that memory slice, given the existing instances.
func giFits(gpu *gpuHardware, st *gpuState, p *profile.GIProfile, start int) bool {
	if !slices.Contains(p.Starts, start) {
		return false
	}
	same, compute := 0, p.ComputeSlices
	engines := p.Media()
	for _, gi := range st.Instances {
		if start < gi.Start+gi.Size && gi.Start < start+p.Size {
			return false
		}
		if gi.Profile == p.ID {
			same++
		}
		if other := giProfile(gpu, gi.Profile); other != nil {
			compute += other.ComputeSlices
			engines = engines.Add(other.Media())
		}
	}
	return same < p.Max && compute <= gpu.Geometry.ComputeSlices && engines.Within(gpu.Geometry.Media())
}

// giPlacement returns where the driver places an instance by default: at the highest free place, which keeps the low
// places free for the profiles that fit nowhere else.
func giPlacement(gpu *gpuHardware, st *gpuState, p *profile.GIProfile) (start int, ok bool) {
	for _, start := range slices.Backward(p.Starts) {
		if giFits(gpu, st, p, start) {
			return start, true
		}
	}
	return 0, false
}

// giRemaining returns how many more instances of the profile fit.
func giRemaining(gpu *gpuHardware, st *gpuState, p *profile.GIProfile) int {
	trial := &gpuState{Instances: slices.Clone(st.Instances)}
	for n := 0; ; n++ {
		start, ok := giPlacement(gpu, trial, p)
		if !ok {
			return n
		}
		trial.Instances = append(trial.Instances, gpuInstance{Profile: p.ID, Start: start, Size: p.Size})
	}
}

// giID returns the ID that the driver assigns: the instance's node in the binary tree of memory slices. The whole GPU
// is 0, its halves are 1 and 2, its quarters 3 to 6, and so on.
func giID(gpu *gpuHardware, start, size int) int {
	first, span := 0, gpu.Geometry.MemorySlices
	for span > size {
		first, span = 2*first+1, span/2
	}
	return first + start/span
}

// createGI adds an instance to the state.
func createGI(gpu *gpuHardware, st *gpuState, p *profile.GIProfile, placement *nvml.GpuInstancePlacement) (gpuInstance, nvml.Return) {
	start, ok := 0, false
	if placement != nil {
		start = int(placement.Start)
		if int(placement.Size) != p.Size || !slices.Contains(p.Starts, start) {
			return gpuInstance{}, nvml.ERROR_INVALID_ARGUMENT
		}
		ok = giFits(gpu, st, p, start)
	} else {
		start, ok = giPlacement(gpu, st, p)
	}
	if !ok {
		return gpuInstance{}, nvml.ERROR_INSUFFICIENT_RESOURCES
	}
	gi := gpuInstance{ID: giID(gpu, start, p.Size), Profile: p.ID, Start: start, Size: p.Size}
	st.Instances = append(st.Instances, gi)
	slices.SortFunc(st.Instances, func(a, b gpuInstance) int { return a.ID - b.ID })
	return gi, nvml.SUCCESS
}

// ciSizes maps NVML_COMPUTE_INSTANCE_PROFILE_* to the number of compute slices. Instances refer to their profile by the
// same number.
func ciSizes() map[uint32]int {
	return map[uint32]int{
		nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE: 1, nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE: 2, nvml.COMPUTE_INSTANCE_PROFILE_3_SLICE: 3,
		nvml.COMPUTE_INSTANCE_PROFILE_4_SLICE: 4, nvml.COMPUTE_INSTANCE_PROFILE_7_SLICE: 7,
	}
}

// ciProfile returns a compute instance profile within a GPU instance of profile p.
func ciProfile(p *profile.GIProfile, id uint32) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
	if id >= nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		return nvml.ComputeInstanceProfileInfo{}, nvml.ERROR_INVALID_ARGUMENT
	}
	size, ok := ciSizes()[id]
	if !ok || size > p.ComputeSlices {
		return nvml.ComputeInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
	}
	return nvml.ComputeInstanceProfileInfo{
		Id: id, SliceCount: uint32(size), InstanceCount: uint32(p.ComputeSlices / size),
		MultiprocessorCount:   p.SMs * uint32(size) / uint32(p.ComputeSlices),
		SharedCopyEngineCount: p.Copy, SharedDecoderCount: p.Decoder, SharedJpegCount: p.JPEG, SharedOfaCount: p.OFA,
	}, nvml.SUCCESS
}

// ciFits reports whether a compute instance of that size can start at that compute slice.
func ciFits(gi *gpuInstance, p *profile.GIProfile, size, start int) bool {
	if start < 0 || start%size != 0 || start+size > p.ComputeSlices {
		return false
	}
	for _, ci := range gi.Compute {
		if start < ci.Start+ci.Size && ci.Start < start+size {
			return false
		}
	}
	return true
}

// createCI adds a compute instance. With start < 0 it uses the lowest free slice, as the driver does.
func createCI(gi *gpuInstance, p *profile.GIProfile, id uint32, start int) (computeInstance, nvml.Return) {
	info, ret := ciProfile(p, id)
	if ret != nvml.SUCCESS {
		return computeInstance{}, ret
	}
	size := int(info.SliceCount)
	for at := 0; start < 0 && at < p.ComputeSlices; at++ {
		if ciFits(gi, p, size, at) {
			start = at
		}
	}
	if start < 0 || !ciFits(gi, p, size, start) {
		return computeInstance{}, nvml.ERROR_INSUFFICIENT_RESOURCES
	}
	number := 0
	for slices.ContainsFunc(gi.Compute, func(ci computeInstance) bool { return ci.ID == number }) {
		number++
	}
	ci := computeInstance{ID: number, Profile: id, Start: start, Size: size}
	gi.Compute = append(gi.Compute, ci)
	slices.SortFunc(gi.Compute, func(a, b computeInstance) int { return a.ID - b.ID })
	return ci, nvml.SUCCESS
}
