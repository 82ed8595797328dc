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

// maxMIG bounds NVML's count of MIG devices of a card (7 at the time of writing).
const maxMIG = 64

// readMIG reads the mode and, when it is on, the MIG devices. They are read again at
// each scan: a MIG UUID may come back for a device of another shape. When an answer is missing, all of it is what the last
// complete answers were, so that a GPU is never half of one layout and half of another, and never whole because its
// mode was not told.
func (a *work) readMIG(q *question, c *card, m *memories, who found, parent facts) gpu.MIG {
	_, changed := a.migChanged.LoadAndDelete(who.uuid)
	listed := a.listedInstances(parent.minor)
	if changed || listed != m.mig.value.listed {
		m.mig.void()
	}
	doubts := len(c.doubts)
	answers := settled(q, c, &m.mig, true, func() migAnswers {
		mig, shapeless := a.askMIG(q, who, parent)
		return migAnswers{mig, listed, shapeless}
	})
	if answers.shapeless != nil {
		c.doubts = append(c.doubts, doubt{why: *answers.shapeless})
	}
	answers.mig.Unsure = len(c.doubts) > doubts
	answers.mig.Unknown = answers.mig.Unsure && !m.mig.have && !answers.mig.Enabled
	return answers.mig
}

// askMIG asks for the mode and the devices. What the GPU can be partitioned into is another matter: without it nobody can plan,
// and what is there can be given out.
func (a *work) askMIG(q *question, who found, parent facts) (_ gpu.MIG, shapeless *failure) {
	d := who.device
	if !a.exports("nvmlDeviceGetMigMode") {
		return gpu.MIG{}, nil
	}
	type modes struct{ current, pending int }
	mode, ok := ask(q, "nvmlDeviceGetMigMode", func() (modes, nvml.Return) {
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
	shape, shapeless := a.readGeometry(q, who, parent, mig.Enabled)
	mig.Geometry = shape.MIGGeometry
	if !mig.Enabled {
		return mig, shapeless
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
		if one, ok := a.readMIGDevice(q, d, device, parent, shape); ok {
			one.Index = index
			mig.Devices = append(mig.Devices, one)
		}
	}
	mig.Empty = a.readEmpty(q, d, parent, shape, mig.Devices)
	return mig, shapeless
}

// readEmpty finds the GPU instances without a compute instance. The driver's files only name candidates, so that a GPU
// without any, the usual case, costs no call: they may be masked or half read. NVML decides.
func (a *work) readEmpty(q *question, d nvml.Device, parent facts, shape *geometry, devices []gpu.MIGDevice) []gpu.GPUInstance {
	folder := path.Join(capabilitiesDir, fmt.Sprintf("gpu%d/mig", parent.minor))
	var ids []int
	for _, name := range a.proc.names(folder) {
		id, ok := numbered(name, "gi")
		computes := slices.ContainsFunc(a.proc.names(path.Join(folder, name)), func(name string) bool {
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
		instance, ok := ask(q, "nvmlDeviceGetGpuInstanceById", func() (nvml.GpuInstance, nvml.Return) {
			return d.GetGpuInstanceById(id)
		})
		if !ok || !withoutCompute(q, instance) {
			continue
		}
		if info, ok := ask(q, "nvmlGpuInstanceGetInfo", instance.GetInfo); ok {
			empty = append(empty, gpu.GPUInstance{
				GI: id, Profile: shape.names[info.ProfileId], Start: int(info.Placement.Start), Size: int(info.Placement.Size),
			})
		}
	}
	return empty
}

// withoutCompute tells whether NVML says of every compute instance that it is not there. Any other answer, an error
// included, means that there may be one.
func withoutCompute(q *question, instance nvml.GpuInstance) bool {
	for id := range maxComputeInstances {
		absent, _ := ask(q, "nvmlGpuInstanceGetComputeInstanceById", func() (bool, nvml.Return) {
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

// numbered reads the number of a folder such as gi7.
func numbered(name, kind string) (int, bool) {
	digits, ok := strings.CutPrefix(name, kind)
	number, err := strconv.ParseUint(digits, 10, 16)
	return int(number), ok && err == nil
}

// readMIGDevice reads one MIG device; false when it vanished meanwhile.
func (a *work) readMIGDevice(q *question, d, device nvml.Device, parent facts, shape *geometry) (gpu.MIGDevice, bool) {
	uuid, ok1 := ask(q, "nvmlDeviceGetUUID", device.GetUUID)
	gi, ok2 := ask(q, "nvmlDeviceGetGpuInstanceId", device.GetGpuInstanceId)
	ci, ok3 := ask(q, "nvmlDeviceGetComputeInstanceId", device.GetComputeInstanceId)
	if !ok1 || !ok2 || !ok3 {
		return gpu.MIGDevice{}, false
	}
	one := gpu.MIGDevice{Partition: gpu.Partition{UUID: gpu.UUID(uuid)}, GI: gi, CI: ci}
	attributes, _ := ask(q, "nvmlDeviceGetAttributes", device.GetAttributes)
	one.MemoryBytes = attributes.MemorySizeMB << 20
	one.Attributes = gpu.MIGAttributes{
		Multiprocessors: int(attributes.MultiprocessorCount), CopyEngines: int(attributes.SharedCopyEngineCount),
		Decoders: int(attributes.SharedDecoderCount), Encoders: int(attributes.SharedEncoderCount),
		JPEGs: int(attributes.SharedJpegCount), OFAs: int(attributes.SharedOfaCount),
	}
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
		one.Profile = profileOf(attributes, shape.suffixes[info.ProfileId], parent.memory)
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
