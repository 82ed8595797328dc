package sim

import (
	"errors"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// migCapable starts a MIG call; it is not supported on a GPU that cannot be partitioned.
func (d *device) migCapable(call string) (snapshot, nvml.Return) {
	c, ret := d.enter(call)
	if ret == nvml.SUCCESS && c.gpu.Geometry == nil {
		ret = nvml.ERROR_NOT_SUPPORTED
	}
	return c, ret
}

// GetMigMode returns the current mode, and the mode after the next reset.
func (d *device) GetMigMode() (int, int, nvml.Return) {
	c, ret := d.migCapable("GetMigMode")
	if ret != nvml.SUCCESS {
		return 0, 0, ret
	}
	return int(bit(c.state.MIGEnabled)), int(bit(c.state.MIGEnabled != c.state.MIGPending)), nvml.SUCCESS
}

// modeNeedsReset reports whether a change of the MIG mode takes effect only at a reset, and then survives a reboot.
func (c *gpuHardware) modeNeedsReset() bool { return c.Model.Architecture == "Ampere" }

// SetMigMode takes effect at once, on Ampere at the next reset. It fails while instances exist.
func (d *device) SetMigMode(mode int) (activation, ret nvml.Return) {
	c, ret := d.migCapable("SetMigMode")
	if ret != nvml.SUCCESS {
		return ret, ret
	}
	if mode != nvml.DEVICE_MIG_DISABLE && mode != nvml.DEVICE_MIG_ENABLE {
		return nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_INVALID_ARGUMENT
	}
	waits := c.gpu.modeNeedsReset()
	ret = d.changeMIG("mode", func(st *gpuState) nvml.Return {
		change := st.MIGEnabled != (mode == nvml.DEVICE_MIG_ENABLE)
		switch {
		case change && len(st.Instances) > 0:
			return nvml.ERROR_IN_USE
		case !change || waits:
			st.MIGPending = change
			if change {
				activation = nvml.ERROR_RESET_REQUIRED
			}
		case st.Busy:
			activation = nvml.ERROR_IN_USE
		default:
			st.MIGEnabled = !st.MIGEnabled
		}
		return nvml.SUCCESS
	})
	if ret != nvml.SUCCESS {
		activation = ret
	}
	return activation, ret
}

// changeMIG changes the GPU's layout in the state file.
func (d *device) changeMIG(note string, edit func(c *gpuState) nvml.Return) nvml.Return {
	return d.change(event{Type: eventMIG, Note: "MIG " + note}, edit)
}

// change changes the state file of the machine, and logs e if edit succeeds.
func (d *device) change(e event, edit func(c *gpuState) nvml.Return) nvml.Return {
	e.GPU = d.lib.machine.hw.GPUs[d.slot].UUID
	err := d.lib.machine.change(func(st *state) ([]event, error) {
		if ret := edit(&st.GPUs[d.slot]); ret != nvml.SUCCESS {
			return nil, ret
		}
		return []event{e}, nil
	})
	var ret nvml.Return
	switch {
	case err == nil:
		return nvml.SUCCESS
	case errors.As(err, &ret):
		return ret
	}
	return nvml.ERROR_UNKNOWN
}

// GetMaxMigDeviceCount returns 0 for a GPU that cannot be partitioned.
func (d *device) GetMaxMigDeviceCount() (int, nvml.Return) {
	return attribute(d, "GetMaxMigDeviceCount", func(c snapshot) int {
		if c.gpu.Geometry == nil {
			return 0
		}
		return c.gpu.Geometry.ComputeSlices
	})
}

// GetMigDeviceHandleByIndex numbers MIG devices by GPU and compute instance, without gaps.
func (d *device) GetMigDeviceHandleByIndex(index int) (nvml.Device, nvml.Return) {
	c, ret := d.migCapable("GetMigDeviceHandleByIndex")
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	if index < 0 || index >= c.gpu.Geometry.ComputeSlices {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	devices := migDevices(c.gpu, c.state)
	if index >= len(devices) {
		return nil, nvml.ERROR_NOT_FOUND
	}
	return newMIGDevice(d.lib, d.slot, devices[index].gi.ID, devices[index].ci.ID), nvml.SUCCESS
}

func (d *device) GetGpuInstanceProfileInfo(enum int) (nvml.GpuInstanceProfileInfo, nvml.Return) {
	c, ret := d.migCapable("GetGpuInstanceProfileInfo")
	if ret != nvml.SUCCESS {
		return nvml.GpuInstanceProfileInfo{}, ret
	}
	if enum < 0 || enum >= nvml.GPU_INSTANCE_PROFILE_COUNT {
		return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_INVALID_ARGUMENT
	}
	if c.view.hw.MIGProfilesInMIGMode && !c.state.MIGEnabled {
		return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
	}
	for _, p := range c.gpu.Geometry.Profiles {
		if p.Enum == enum {
			return nvml.GpuInstanceProfileInfo{
				Id: p.ID, SliceCount: uint32(p.ComputeSlices), InstanceCount: uint32(p.Max), MultiprocessorCount: p.SMs,
				CopyEngineCount: p.Copy, DecoderCount: p.Decoder, JpegCount: p.JPEG, OfaCount: p.OFA, MemorySizeMB: p.MemoryMiB,
			}, nvml.SUCCESS
		}
	}
	return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
}

// profileCall starts a call about a GPU instance profile.
func (d *device) profileCall(call string, info *nvml.GpuInstanceProfileInfo) (snapshot, nvml.Return) {
	c, ret := d.migCapable(call)
	if ret == nvml.SUCCESS && (info == nil || giProfile(c.gpu, info.Id) == nil) {
		ret = nvml.ERROR_INVALID_ARGUMENT
	}
	return c, ret
}

// giCall is profileCall for calls that need MIG mode.
func (d *device) giCall(call string, info *nvml.GpuInstanceProfileInfo) (snapshot, nvml.Return) {
	c, ret := d.profileCall(call, info)
	if ret == nvml.SUCCESS && !c.state.MIGEnabled {
		ret = nvml.ERROR_NOT_SUPPORTED
	}
	return c, ret
}

// GetGpuInstancePossiblePlacements lists all placements of the profile, including occupied ones, whether MIG is on or
// off.
func (d *device) GetGpuInstancePossiblePlacements(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstancePlacement, nvml.Return) {
	c, ret := d.profileCall("GetGpuInstancePossiblePlacements", info)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	p := giProfile(c.gpu, info.Id)
	var placements []nvml.GpuInstancePlacement
	for _, start := range p.Starts {
		placements = append(placements, nvml.GpuInstancePlacement{Start: uint32(start), Size: uint32(p.Size)})
	}
	return placements, nvml.SUCCESS
}

func (d *device) GetGpuInstanceRemainingCapacity(info *nvml.GpuInstanceProfileInfo) (int, nvml.Return) {
	c, ret := d.giCall("GetGpuInstanceRemainingCapacity", info)
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	return giRemaining(c.gpu, c.state, giProfile(c.gpu, info.Id)), nvml.SUCCESS
}

func (d *device) CreateGpuInstance(info *nvml.GpuInstanceProfileInfo) (nvml.GpuInstance, nvml.Return) {
	return d.createInstance("CreateGpuInstance", info, nil)
}

func (d *device) CreateGpuInstanceWithPlacement(info *nvml.GpuInstanceProfileInfo,
	placement *nvml.GpuInstancePlacement) (nvml.GpuInstance, nvml.Return) {
	if placement == nil {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	return d.createInstance("CreateGpuInstanceWithPlacement", info, placement)
}

func (d *device) createInstance(call string, info *nvml.GpuInstanceProfileInfo,
	placement *nvml.GpuInstancePlacement) (nvml.GpuInstance, nvml.Return) {
	c, ret := d.giCall(call, info)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	var made gpuInstance
	ret = d.changeMIG("GPU instance created", func(st *gpuState) (ret nvml.Return) {
		if !st.MIGEnabled {
			return nvml.ERROR_NOT_SUPPORTED
		}
		made, ret = createGI(c.gpu, st, giProfile(c.gpu, info.Id), placement)
		return ret
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	return newInstance(d, made.ID), nvml.SUCCESS
}

// GetGpuInstances lists the instances of one profile.
func (d *device) GetGpuInstances(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstance, nvml.Return) {
	c, ret := d.giCall("GetGpuInstances", info)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	var instances []nvml.GpuInstance
	for _, gi := range c.state.Instances {
		if gi.Profile == info.Id {
			instances = append(instances, newInstance(d, gi.ID))
		}
	}
	return instances, nvml.SUCCESS
}

func (d *device) GetGpuInstanceById(id int) (nvml.GpuInstance, nvml.Return) {
	c, ret := d.migCapable("GetGpuInstanceById")
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	if c.state.instance(id) == nil {
		return nil, nvml.ERROR_NOT_FOUND
	}
	return newInstance(d, id), nvml.SUCCESS
}

// instance returns the GPU instance with that ID, or nil.
func (c *gpuState) instance(id int) *gpuInstance {
	for i := range c.Instances {
		if c.Instances[i].ID == id {
			return &c.Instances[i]
		}
	}
	return nil
}

// compute returns the compute instance with that ID, or nil.
func (gi *gpuInstance) compute(id int) *computeInstance {
	for i := range gi.Compute {
		if gi.Compute[i].ID == id {
			return &gi.Compute[i]
		}
	}
	return nil
}

// migHandle is the handle of a MIG device. It supports identity, size and memory calls only, as in NVML.
type migHandle struct {
	unsupportedDevice
	parent *device
	gi     int
	ci     int
}

var _ nvml.Device = (*migHandle)(nil)

func newMIGDevice(l *library, slot, gi, ci int) *migHandle {
	parent := l.device(slot)
	return handleOf(l, instanceKey{slot, gi, ci, true}, func() *migHandle {
		return &migHandle{unsupportedDevice: unsupportedDevice{answer: parent.answer}, parent: parent, gi: gi, ci: ci}
	})
}

// enter starts a call on the MIG device; it returns NOT_FOUND when the device was destroyed.
func (m *migHandle) enter(call string) (snapshot, migDevice, nvml.Return) {
	c, ret := m.parent.enter(call)
	if ret != nvml.SUCCESS {
		return c, migDevice{}, ret
	}
	for _, device := range migDevices(c.gpu, c.state) {
		if device.gi.ID == m.gi && device.ci.ID == m.ci {
			return c, device, nvml.SUCCESS
		}
	}
	return c, migDevice{}, nvml.ERROR_NOT_FOUND
}

func (m *migHandle) GetUUID() (string, nvml.Return) {
	_, device, ret := m.enter("GetUUID")
	return device.uuid, ret
}

func (m *migHandle) GetIndex() (int, nvml.Return) {
	c, ret := m.parent.enter("GetIndex")
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	for index, device := range migDevices(c.gpu, c.state) {
		if device.gi.ID == m.gi && device.ci.ID == m.ci {
			return index, nvml.SUCCESS
		}
	}
	return 0, nvml.ERROR_NOT_FOUND
}

func (m *migHandle) GetName() (string, nvml.Return) {
	c, device, ret := m.enter("GetName")
	if ret != nvml.SUCCESS {
		return "", ret
	}
	return c.gpu.Model.Name + " MIG " + device.name(), nvml.SUCCESS
}

// name returns the profile as NVIDIA's tools print it. A compute instance smaller than its GPU instance is a prefix
// ("1c.3g.20gb").
func (m *migDevice) name() string {
	if m.ci.Size < m.profile.ComputeSlices {
		return string(rune('0'+m.ci.Size)) + "c." + m.profile.Name
	}
	return m.profile.Name
}

func (m *migHandle) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	c, device, ret := m.enter("GetMemoryInfo")
	if ret != nvml.SUCCESS {
		return nvml.Memory{}, ret
	}
	total, used := device.profile.MemoryMiB<<20, c.usedBytesOf(device.gi.ID)
	return nvml.Memory{Total: total, Used: used, Free: total - used}, nvml.SUCCESS
}

func (m *migHandle) GetAttributes() (nvml.DeviceAttributes, nvml.Return) {
	_, device, ret := m.enter("GetAttributes")
	if ret != nvml.SUCCESS {
		return nvml.DeviceAttributes{}, ret
	}
	p := device.profile
	return nvml.DeviceAttributes{
		MultiprocessorCount: p.SMs * uint32(device.ci.Size) / uint32(p.ComputeSlices), SharedCopyEngineCount: p.Copy,
		SharedDecoderCount: p.Decoder, SharedJpegCount: p.JPEG, SharedOfaCount: p.OFA,
		GpuInstanceSliceCount: uint32(p.ComputeSlices), ComputeInstanceSliceCount: uint32(device.ci.Size), MemorySizeMB: p.MemoryMiB,
	}, nvml.SUCCESS
}

func (m *migHandle) GetGpuInstanceId() (int, nvml.Return) {
	_, _, ret := m.enter("GetGpuInstanceId")
	return m.gi, ret
}

func (m *migHandle) GetComputeInstanceId() (int, nvml.Return) {
	_, _, ret := m.enter("GetComputeInstanceId")
	return m.ci, ret
}

func (m *migHandle) IsMigDeviceHandle() (bool, nvml.Return) {
	_, ret := m.parent.enter("IsMigDeviceHandle")
	return true, ret
}

func (m *migHandle) GetDeviceHandleFromMigDeviceHandle() (nvml.Device, nvml.Return) {
	_, _, ret := m.enter("GetDeviceHandleFromMigDeviceHandle")
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	return m.parent, nvml.SUCCESS
}
