package nvidia

import (
	"fmt"
	"math"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/gpu"
)

// maxMIG bounds NVML's count of MIG devices of a card (7 at the time of writing).
const maxMIG = 64

// readMIG reads the mode and, when it is on, the MIG devices. They are read anew at
// each scan: a MIG UUID may come back for a device of another shape.
func (a *Adapter) readMIG(q *question, d nvml.Device, parent facts) gpu.MIG {
	if !a.exports("nvmlDeviceGetMigMode") {
		return gpu.MIG{}
	}
	type modes struct{ current, pending int }
	mode, ok := ask(q, "nvmlDeviceGetMigMode", func() (modes, nvml.Return) {
		current, pending, ret := d.GetMigMode()
		return modes{current, pending}, ret
	})
	if !ok {
		return gpu.MIG{}
	}
	mig := gpu.MIG{
		Capable:        true,
		Enabled:        mode.current == nvml.DEVICE_MIG_ENABLE,
		PendingEnabled: mode.pending == nvml.DEVICE_MIG_ENABLE,
	}
	if !mig.Enabled {
		return mig
	}
	count, _ := ask(q, "nvmlDeviceGetMaxMigDeviceCount", d.GetMaxMigDeviceCount)
	for index := range min(count, maxMIG) {
		// The numbering has holes: NOT_FOUND does not mean the end.
		device, ok := ask(q, "nvmlDeviceGetMigDeviceHandleByIndex", func() (nvml.Device, nvml.Return) {
			return d.GetMigDeviceHandleByIndex(index)
		})
		if !ok {
			continue
		}
		if one, ok := a.readMIGDevice(q, d, device, parent); ok {
			one.Index = index
			mig.Devices = append(mig.Devices, one)
		}
	}
	return mig
}

// readMIGDevice reads one MIG device; false when it vanished meanwhile.
func (a *Adapter) readMIGDevice(q *question, d, device nvml.Device, parent facts) (gpu.MIGDevice, bool) {
	uuid, ok1 := ask(q, "nvmlDeviceGetUUID", device.GetUUID)
	gi, ok2 := ask(q, "nvmlDeviceGetGpuInstanceId", device.GetGpuInstanceId)
	ci, ok3 := ask(q, "nvmlDeviceGetComputeInstanceId", device.GetComputeInstanceId)
	if !ok1 || !ok2 || !ok3 {
		return gpu.MIGDevice{}, false
	}
	one := gpu.MIGDevice{UUID: gpu.UUID(uuid), GI: gi, CI: ci}
	attributes, _ := ask(q, "nvmlDeviceGetAttributes", device.GetAttributes)
	one.MemoryBytes = attributes.MemorySizeMB << 20
	instance, _ := ask(q, "nvmlDeviceGetGpuInstanceById", func() (nvml.GpuInstance, nvml.Return) {
		return d.GetGpuInstanceById(gi)
	})
	var info nvml.GpuInstanceInfo
	var placed bool
	if instance != nil {
		info, placed = ask(q, "nvmlGpuInstanceGetInfo", instance.GetInfo)
		one.Start, one.Size = int(info.Placement.Start), int(info.Placement.Size)
	}
	name, _ := ask(q, "nvmlDeviceGetName", device.GetName)
	one.Profile = profileInName(name)
	if one.Profile == "" && placed {
		one.Profile = profileOf(attributes, mediaSuffix(q, d, info.ProfileId), parent.memory)
	}
	one.Nodes = a.capabilityNodes(parent.minor, gi, ci)
	return one, true
}

// profileInName takes the profile out of a MIG device's name, as in
// "NVIDIA A100-SXM4-40GB MIG 1g.5gb+me".
func profileInName(name string) string {
	_, profile, ok := strings.Cut(name, " MIG ")
	if profile = strings.TrimSpace(profile); ok && strings.Contains(profile, "g.") && !strings.ContainsAny(profile, " \t\n") {
		return profile
	}
	return ""
}

// profileOf composes a profile's name the way NVIDIA's tools do: the memory is the
// card's share in eighths, rounded up, of its size in whole GiB.
func profileOf(attributes nvml.DeviceAttributes, suffix string, total uint64) string {
	if attributes.GpuInstanceSliceCount == 0 || total == 0 {
		return ""
	}
	const eighths, gib = 8, 1 << 30
	share := math.Ceil(eighths*float64(attributes.MemorySizeMB<<20)/float64(total)) / eighths
	gb := math.Round(share * math.Ceil(float64(total)/gib))
	name := fmt.Sprintf("%dg.%.0fgb%s", attributes.GpuInstanceSliceCount, gb, suffix)
	if c := attributes.ComputeInstanceSliceCount; c != 0 && c != attributes.GpuInstanceSliceCount {
		name = fmt.Sprintf("%dc.%s", c, name)
	}
	return name
}

// mediaSuffix is the attribute in the name of a GPU instance's profile. NVML gives an
// instance the id of its profile, not its kind, so the kinds that carry an attribute
// are asked for theirs.
func mediaSuffix(q *question, d nvml.Device, profileID uint32) string {
	for _, kind := range []struct {
		profile int
		suffix  string
	}{
		{nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, "+me"},
		{nvml.GPU_INSTANCE_PROFILE_2_SLICE_REV1, "+me"},
		{nvml.GPU_INSTANCE_PROFILE_1_SLICE_GFX, "+gfx"},
		{nvml.GPU_INSTANCE_PROFILE_2_SLICE_GFX, "+gfx"},
		{nvml.GPU_INSTANCE_PROFILE_3_SLICE_GFX, "+gfx"},
		{nvml.GPU_INSTANCE_PROFILE_4_SLICE_GFX, "+gfx"},
		{nvml.GPU_INSTANCE_PROFILE_1_SLICE_NO_ME, "-me"},
		{nvml.GPU_INSTANCE_PROFILE_2_SLICE_NO_ME, "-me"},
		{nvml.GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME, "+me.all"},
		{nvml.GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME, "+me.all"},
	} {
		info, ok := ask(q, "nvmlDeviceGetGpuInstanceProfileInfo", func() (nvml.GpuInstanceProfileInfo, nvml.Return) {
			return d.GetGpuInstanceProfileInfo(kind.profile)
		})
		if ok && info.Id == profileID {
			return kind.suffix
		}
	}
	return ""
}
