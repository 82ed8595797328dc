package nvidia

import (
	"fmt"
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// geometry is what a GPU can be partitioned into, with the conditions under which it was read.
type geometry struct {
	gpu.MIGGeometry
	// names and suffixes are by profile ID, for every profile of the GPU, also where the driver does not report its placements.
	names    map[uint32]string
	suffixes map[uint32]string
	// driver and enabled are the version and the MIG mode at that time.
	driver  string
	enabled bool
}

// profile is one kind of GPU instance that a GPU has.
type profile struct {
	gpu.MIGProfile
	suffix string
	info   nvml.GpuInstanceProfileInfo
}

// readGeometry reads the geometry once for each GPU and version of the driver, or until every call succeeded. Old drivers
// report it in MIG mode only, so that it is read again when the mode changes.
func (a *work) readGeometry(q *caller, target identity, parent facts, enabled bool) (*geometry, *failure) {
	version := a.session.driver.Version
	have := a.geometries[target.uuid]
	if have != nil && have.driver == version && (len(have.Profiles) > 0 || have.enabled == enabled) {
		return have, nil
	}
	read := &geometry{driver: version, enabled: enabled, names: map[uint32]string{}, suffixes: map[uint32]string{}}
	if !a.exports("nvmlDeviceGetGpuInstanceProfileInfo") || !a.exports("nvmlDeviceGetGpuInstancePossiblePlacements") {
		a.geometries[target.uuid] = read
		return read, nil
	}
	profiles, missing := group(q, func() []profile { return readProfiles(q, target.device, target.deviceID, parent.memory) })
	for _, p := range profiles {
		read.names[p.ID], read.suffixes[p.ID] = p.Name, p.suffix
		if len(p.Starts) == 0 {
			continue
		}
		read.Profiles = append(read.Profiles, p.MIGProfile)
		read.MemorySlices = max(read.MemorySlices, p.Starts[len(p.Starts)-1]+p.Size)
		read.ComputeSlices = max(read.ComputeSlices, p.ComputeSlices)
	}
	if missing == nil && q.lost == nil && q.broken == nil && parent.memory > 0 {
		a.geometries[target.uuid] = read
	}
	return read, missing
}

// readProfiles returns the profiles of a GPU, in the order of NVML's numbers, with the slices at which instances may begin. A
// profile has no Starts when the driver does not report its placements, for lack of privileges or because it is old.
func readProfiles(q *caller, d nvml.Device, deviceID uint32, memory uint64) []profile {
	var profiles []profile
	for number := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ok := invoke(q, "nvmlDeviceGetGpuInstanceProfileInfo", func() (nvml.GpuInstanceProfileInfo, nvml.Return) {
			return d.GetGpuInstanceProfileInfo(number)
		})
		if !ok {
			continue
		}
		p := profile{suffix: suffixOf(number), info: info}
		p.MIGProfile = gpu.MIGProfile{
			Name: profileName(info.SliceCount, info.MemorySizeMB, p.suffix, memory), Number: number, ID: info.Id,
			ComputeSlices: int(info.SliceCount), MemoryBytes: info.MemorySizeMB << 20,
			Attributes: gpu.MIGAttributes{
				Multiprocessors: int(info.MultiprocessorCount), CopyEngines: int(info.CopyEngineCount),
				Decoders: int(info.DecoderCount), Encoders: int(info.EncoderCount), JPEGs: int(info.JpegCount), OFAs: int(info.OfaCount),
			},
		}
		placements, _ := invoke(q, "nvmlDeviceGetGpuInstancePossiblePlacements", func() ([]nvml.GpuInstancePlacement, nvml.Return) {
			placements, ret := d.GetGpuInstancePossiblePlacements(&info)
			if ret == nvml.ERROR_NO_PERMISSION { // a second call would not help
				ret = nvml.ERROR_NOT_SUPPORTED
			}
			return placements, ret
		})
		for _, placement := range placements {
			p.Size = int(placement.Size)
			p.Starts = append(p.Starts, int(placement.Start))
		}
		slices.Sort(p.Starts)
		p.Starts = slices.Compact(p.Starts)
		p.Max = maxInstances(&p, deviceID)
		profiles = append(profiles, p)
	}
	return profiles
}

// deviceA30 is the PCI device of the A30.
const deviceA30 = 0x20b7

// maxInstances returns how many instances of a profile a GPU can have: NVML's count, bounded by the number of placements that
// do not overlap. NVML's count for the A30 is wrong: the placements decide there, and there is one instance of a profile with
// media engines.
func maxInstances(p *profile, deviceID uint32) int {
	places, free := 0, 0
	for _, start := range p.Starts {
		if start >= free {
			places++
			free = start + p.Size
		}
	}
	count := int(p.info.InstanceCount)
	switch {
	case deviceID>>16 == deviceA30 && p.suffix != "":
		count = 1
	case deviceID>>16 == deviceA30 || count <= 0:
		count = places
	}
	return min(count, places)
}

// profileName composes a profile's name as NVIDIA's tools do: the memory is the fraction of the GPU's memory in eighths,
// rounded up, times its size in whole GiB.
func profileName(slices uint32, memoryMiB uint64, suffix string, total uint64) string {
	if total == 0 {
		return ""
	}
	const eighths, gib = 8, 1 << 30
	share := math.Ceil(eighths*float64(memoryMiB<<20)/float64(total)) / eighths
	gb := math.Round(share * math.Ceil(float64(total)/gib))
	return fmt.Sprintf("%dg.%.0fgb%s", slices, gb, suffix)
}

// suffixOf returns the attribute in the name of a profile, by NVML's number of the profile.
func suffixOf(number int) string {
	switch number {
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, nvml.GPU_INSTANCE_PROFILE_2_SLICE_REV1:
		return "+me"
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_GFX, nvml.GPU_INSTANCE_PROFILE_2_SLICE_GFX,
		nvml.GPU_INSTANCE_PROFILE_3_SLICE_GFX, nvml.GPU_INSTANCE_PROFILE_4_SLICE_GFX:
		return "+gfx"
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_NO_ME, nvml.GPU_INSTANCE_PROFILE_2_SLICE_NO_ME:
		return "-me"
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME, nvml.GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME:
		return "+me.all"
	}
	return ""
}

// ampere reports whether the MIG mode of the GPU changes with a reset and persists over a reboot.
func (f facts) ampere() bool {
	const major = 8 // of the compute capability; GPUs of 8.9 cannot be partitioned
	return f.architecture == "Ampere" || f.architecture == "" && f.capability.Major == major
}
