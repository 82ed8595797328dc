package nvidia

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// maxMIG bounds NVML's count of MIG devices of a GPU (7 at the time of writing).
const maxMIG = 64

// readMIG reads the mode and, when it is on, the MIG devices. They are read at each scan: a MIG UUID may return for a device of
// another shape. When a call fails, the result is that of the last complete read, so that a GPU is never a mixture of two
// layouts, and never counts as unpartitioned because its mode could not be read.
func (a *work) readMIG(q *caller, c *scannedGPU, m *cache, target identity, parent facts) gpu.MIG {
	_, changed := a.migChanged.LoadAndDelete(target.uuid)
	listed := a.listedInstances(parent.minor)
	if changed || listed != m.mig.value.listed {
		m.mig.invalidate()
	}
	missingAnswers := len(c.missingAnswers)
	answers := readCached(q, c, &m.mig, true, func() migAnswers {
		mig, noGeometry := a.queryMIG(q, target, parent)
		return migAnswers{mig, listed, noGeometry}
	})
	if answers.noGeometry != nil {
		c.missingAnswers = append(c.missingAnswers, missingAnswer{why: *answers.noGeometry})
	}
	answers.mig.Unsure = len(c.missingAnswers) > missingAnswers
	answers.mig.Unknown = answers.mig.Unsure && !m.mig.have && !answers.mig.Enabled
	return answers.mig
}

// queryMIG reads the mode and the devices. A failure to read the geometry is returned apart: the devices can be allocated
// without it, but no change can be planned.
func (a *work) queryMIG(q *caller, target identity, parent facts) (_ gpu.MIG, noGeometry *failure) {
	d := target.device
	if !a.exports("nvmlDeviceGetMigMode") {
		return gpu.MIG{}, nil
	}
	type modes struct {
		current int
		pending int
	}
	mode, ok := invoke(q, "nvmlDeviceGetMigMode", func() (modes, nvml.Return) {
		current, pending, ret := d.GetMigMode()
		return modes{current, pending}, ret
	})
	if !ok {
		return gpu.MIG{}, nil
	}
	mig := gpu.MIG{
		Capable:        true,
		Enabled:        mode.current == nvml.DEVICE_MIG_ENABLE,
		PendingEnabled: mode.pending == nvml.DEVICE_MIG_ENABLE,
		ModeNeedsReset: parent.ampere(),
	}
	shape, noGeometry := a.readGeometry(q, target, parent, mig.Enabled)
	mig.Geometry = shape.MIGGeometry
	if !mig.Enabled {
		return mig, noGeometry
	}
	count, _ := invoke(q, "nvmlDeviceGetMaxMigDeviceCount", d.GetMaxMigDeviceCount)
	for index := range min(count, maxMIG) {
		// The numbers have gaps: NOT_FOUND does not mean the end.
		device, ok := invokeAt(q, "nvmlDeviceGetMigDeviceHandleByIndex", index, func() (nvml.Device, nvml.Return) {
			return d.GetMigDeviceHandleByIndex(index)
		})
		if !ok {
			continue
		}
		if one, ok := a.readMIGDevice(q, d, device, parent, shape); ok {
			one.Index = index
			mig.Devices = append(mig.Devices, one)
		}
	}
	mig.Empty = a.readEmpty(q, d, parent, shape, mig.Devices)
	return mig, noGeometry
}

// readEmpty returns the GPU instances without a compute instance. The driver's files name candidates, so that a GPU without
// any, the usual case, costs no call; NVML decides, since the files may be masked or partly read.
func (a *work) readEmpty(q *caller, d nvml.Device, parent facts, shape *geometry, devices []gpu.MIGDevice) []gpu.GPUInstance {
	dir := path.Join(capabilitiesDir, fmt.Sprintf("gpu%d/mig", parent.minor))
	var ids []int
	for _, name := range a.proc.names(dir) {
		id, ok := numbered(name, "gi")
		computes := slices.ContainsFunc(a.proc.names(path.Join(dir, name)), func(name string) bool {
			_, ok := numbered(name, "ci")
			return ok
		})
		device := slices.ContainsFunc(devices, func(one gpu.MIGDevice) bool { return one.GI == id })
		if ok && !computes && !device {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	var empty []gpu.GPUInstance
	for _, id := range ids {
		instance, ok := invoke(q, "nvmlDeviceGetGpuInstanceById", func() (nvml.GpuInstance, nvml.Return) {
			return d.GetGpuInstanceById(id)
		})
		if !ok || !withoutCompute(q, instance) {
			continue
		}
		if info, ok := invoke(q, "nvmlGpuInstanceGetInfo", instance.GetInfo); ok {
			empty = append(empty, gpu.GPUInstance{
				GI: id, Profile: shape.names[info.ProfileId], Start: int(info.Placement.Start), Size: int(info.Placement.Size),
			})
		}
	}
	return empty
}

// withoutCompute reports whether NVML returns NOT_FOUND for every compute instance. Any other code means that there may be one.
func withoutCompute(q *caller, instance nvml.GpuInstance) bool {
	for id := range maxComputeInstances {
		absent, _ := invoke(q, "nvmlGpuInstanceGetComputeInstanceById", func() (bool, nvml.Return) {
			_, ret := instance.GetComputeInstanceById(id)
			if ret == nvml.ERROR_NOT_FOUND {
				return true, nvml.SUCCESS
			}
			return false, ret
		})
		if !absent {
			return false
		}
	}
	return true
}

// numbered returns the number of a directory such as gi7.
func numbered(name, kind string) (int, bool) {
	digits, ok := strings.CutPrefix(name, kind)
	number, err := strconv.ParseUint(digits, 10, 16)
	return int(number), ok && err == nil
}

// readMIGDevice reads one MIG device; false when it no longer exists.
func (a *work) readMIGDevice(q *caller, d, device nvml.Device, parent facts, shape *geometry) (gpu.MIGDevice, bool) {
	uuid, ok1 := invoke(q, "nvmlDeviceGetUUID", device.GetUUID)
	gi, ok2 := invoke(q, "nvmlDeviceGetGpuInstanceId", device.GetGpuInstanceId)
	ci, ok3 := invoke(q, "nvmlDeviceGetComputeInstanceId", device.GetComputeInstanceId)
	if !ok1 || !ok2 || !ok3 {
		return gpu.MIGDevice{}, false
	}
	one := gpu.MIGDevice{Partition: gpu.Partition{UUID: gpu.UUID(uuid)}, GI: gi, CI: ci}
	attributes, _ := invoke(q, "nvmlDeviceGetAttributes", device.GetAttributes)
	one.MemoryBytes = attributes.MemorySizeMB << 20
	one.Attributes = gpu.MIGAttributes{
		Multiprocessors: int(attributes.MultiprocessorCount), CopyEngines: int(attributes.SharedCopyEngineCount),
		Decoders: int(attributes.SharedDecoderCount), Encoders: int(attributes.SharedEncoderCount),
		JPEGs: int(attributes.SharedJpegCount), OFAs: int(attributes.SharedOfaCount),
	}
	instance, _ := invoke(q, "nvmlDeviceGetGpuInstanceById", func() (nvml.GpuInstance, nvml.Return) {
		return d.GetGpuInstanceById(gi)
	})
	var info nvml.GpuInstanceInfo
	var placed bool
	if instance != nil {
		info, placed = invoke(q, "nvmlGpuInstanceGetInfo", instance.GetInfo)
		one.Start, one.Size = int(info.Placement.Start), int(info.Placement.Size)
	}
	name, _ := invoke(q, "nvmlDeviceGetName", device.GetName)
	one.Profile = profileInName(name)
	if one.Profile == "" && placed {
		one.Profile = profileOf(attributes, shape.suffixes[info.ProfileId], parent.memory)
	}
	one.Nodes = a.capabilityNodes(parent.minor, gi, ci)
	return one, true
}

// profileInName returns the profile in a MIG device's name, as in "NVIDIA A100-SXM4-40GB MIG 1g.5gb+me".
func profileInName(name string) string {
	_, profile, ok := strings.Cut(name, " MIG ")
	if profile = strings.TrimSpace(profile); ok && strings.Contains(profile, "g.") && !strings.ContainsAny(profile, " \t\n") {
		return profile
	}
	return ""
}

// profileOf composes the name of a MIG device's profile.
func profileOf(attributes nvml.DeviceAttributes, suffix string, total uint64) string {
	if attributes.GpuInstanceSliceCount == 0 || total == 0 {
		return ""
	}
	name := profileName(attributes.GpuInstanceSliceCount, attributes.MemorySizeMB, suffix, total)
	if c := attributes.ComputeInstanceSliceCount; c != 0 && c != attributes.GpuInstanceSliceCount {
		name = fmt.Sprintf("%dc.%s", c, name)
	}
	return name
}
