package nvidia

import (
	"fmt"
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// geometry is what a card can be partitioned into, and what it was read under.
type geometry struct {
	gpu.MIGGeometry
	// names and suffixes are by the number that instances carry, for every profile of the card, also
	// where its placements are not to be had.
	names, suffixes map[uint32]string
	// driver and enabled are the version and the MIG mode at that time.
	driver  string
	enabled bool
}

// profile is one kind of GPU instance that a card has.
type profile struct {
	gpu.MIGProfile
	suffix string
	info   nvml.GpuInstanceProfileInfo
}

// readGeometry asks once for each card and version of the driver, or until every answer came. Old drivers
// answer in MIG mode only, so a card without answers is asked again when its mode changes.
func (a *work) readGeometry(q *question, who found, parent facts, enabled bool) (*geometry, *failure) {
	version := a.session.driver.Version
	have := a.geometries[who.uuid]
	if have != nil && have.driver == version && (len(have.Profiles) > 0 || have.enabled == enabled) {
		return have, nil
	}
	read := &geometry{driver: version, enabled: enabled, names: map[uint32]string{}, suffixes: map[uint32]string{}}
	if !a.exports("nvmlDeviceGetGpuInstanceProfileInfo") || !a.exports("nvmlDeviceGetGpuInstancePossiblePlacements") {
		a.geometries[who.uuid] = read
		return read, nil
	}
	profiles, missing := section(q, func() []profile { return readProfiles(q, who.device, who.deviceID, parent.memory) })
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
		a.geometries[who.uuid] = read
	}
	return read, missing
}

// readProfiles asks a card for its profiles, in the order of NVML's numbers, and where instances of them may begin.
// A profile whose placements are not to be had, for lack of rights or on an old driver, has no Starts.
func readProfiles(q *question, d nvml.Device, deviceID uint32, memory uint64) []profile {
	var profiles []profile
	for number := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ok := ask(q, "nvmlDeviceGetGpuInstanceProfileInfo", func() (nvml.GpuInstanceProfileInfo, nvml.Return) {
			return d.GetGpuInstanceProfileInfo(number)
		})
		if !ok {
			continue
		}
		p := profile{suffix: suffixOf(number), info: info}
		p.MIGProfile = gpu.MIGProfile{
			Name: profileName(info.SliceCount, info.MemorySizeMB, p.suffix, memory), Number: number, ID: info.Id,
			ComputeSlices: int(info.SliceCount), MemoryBytes: info.MemorySizeMB << 20,
		}
		placements, _ := ask(q, "nvmlDeviceGetGpuInstancePossiblePlacements", func() ([]nvml.GpuInstancePlacement, nvml.Return) {
			placements, ret := d.GetGpuInstancePossiblePlacements(&info)
			if ret == nvml.ERROR_NO_PERMISSION { // asking again would not help
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
		p.Max = most(&p, deviceID)
		profiles = append(profiles, p)
	}
	return profiles
}

// deviceA30 is the PCI device of the A30.
const deviceA30 = 0x20b7

// most is how many instances of a profile a card can have. NVML's count is believed as far as so many
// find a place side by side. The A30's is wrong: there the places decide, and of the profiles with
// media engines there is one.
func most(p *profile, deviceID uint32) int {
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

// profileName composes a profile's name the way NVIDIA's tools do: the memory is the card's share
// in eighths, rounded up, of its size in whole GiB.
func profileName(slices uint32, memoryMiB uint64, suffix string, total uint64) string {
	if total == 0 {
		return ""
	}
	const eighths, gib = 8, 1 << 30
	share := math.Ceil(eighths*float64(memoryMiB<<20)/float64(total)) / eighths
	gb := math.Round(share * math.Ceil(float64(total)/gib))
	return fmt.Sprintf("%dg.%.0fgb%s", slices, gb, suffix)
}

// suffixOf is the attribute in the name of a profile, by NVML's number of the profile.
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

// ampere tells whether the card is of the generation whose MIG mode changes at a reset and outlasts a reboot.
func (f facts) ampere() bool {
	const major = 8 // of the compute capability; the later 8.9 cannot be partitioned
	return f.architecture == "Ampere" || f.architecture == "" && f.capability.Major == major
}
