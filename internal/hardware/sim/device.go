package sim

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// device is the handle of a GPU.
type device struct {
	unsupportedDevice
	lib  *library
	slot int
}

var _ nvml.Device = (*device)(nil)

func newDevice(l *library, slot int) *device {
	d := &device{lib: l, slot: slot}
	d.answer = func(call string) nvml.Return {
		_, ret := l.enterGPU(call, slot)
		return orUnsupported(ret)
	}
	return d
}

// snapshot is the state of one GPU that a call reads.
type snapshot struct {
	view  *view
	gpu   *gpuHardware
	state *gpuState
}

// enter starts a call on the GPU: it applies hangs and transient errors and returns the state to read.
func (d *device) enter(call string) (snapshot, nvml.Return) {
	v, ret := d.lib.enterGPU(call, d.slot)
	if v == nil {
		return snapshot{}, ret
	}
	return snapshot{view: v, gpu: &v.hw.GPUs[d.slot], state: &v.st.GPUs[d.slot]}, ret
}

// get runs a call that reads one value.
func get[T any](d *device, call string, read func(snapshot) (T, nvml.Return)) (T, nvml.Return) {
	c, ret := d.enter(call)
	if ret != nvml.SUCCESS {
		var zero T
		return zero, ret
	}
	return read(c)
}

// attribute runs a call that reads a value which every GPU has.
func attribute[T any](d *device, call string, read func(snapshot) T) (T, nvml.Return) {
	return get(d, call, func(c snapshot) (T, nvml.Return) { return read(c), nvml.SUCCESS })
}

// GetUUID also succeeds for a lost GPU: NVML reads the UUID when the handle is opened, and programs need it to name the
// GPU of an XID 79.
func (d *device) GetUUID() (string, nvml.Return) {
	c, ret := d.enter("GetUUID")
	if ret == nvml.SUCCESS || (ret == nvml.ERROR_GPU_IS_LOST && c.gpu != nil) {
		return c.gpu.UUID, nvml.SUCCESS
	}
	return "", ret
}

func (d *device) GetIndex() (int, nvml.Return) {
	return get(d, "GetIndex", func(c snapshot) (int, nvml.Return) {
		for index, slot := range c.view.order {
			if slot == d.slot {
				return index, nvml.SUCCESS
			}
		}
		return 0, nvml.ERROR_GPU_IS_LOST
	})
}

func (d *device) GetMinorNumber() (int, nvml.Return) {
	return attribute(d, "GetMinorNumber", func(c snapshot) int { return c.gpu.Minor })
}

func (d *device) GetName() (string, nvml.Return) {
	return attribute(d, "GetName", func(c snapshot) string { return c.gpu.Model.Name })
}

func (d *device) GetSerial() (string, nvml.Return) {
	return attribute(d, "GetSerial", func(c snapshot) string { return c.gpu.Serial })
}

func (d *device) GetBrand() (nvml.BrandType, nvml.Return) {
	return attribute(d, "GetBrand", func(c snapshot) nvml.BrandType {
		if c.gpu.Model.Brand == "Tesla" {
			return nvml.BRAND_TESLA
		}
		return nvml.BRAND_NVIDIA
	})
}

func (d *device) GetArchitecture() (nvml.DeviceArchitecture, nvml.Return) {
	return get(d, "GetArchitecture", func(c snapshot) (nvml.DeviceArchitecture, nvml.Return) {
		switch c.gpu.Model.Architecture {
		case "Volta":
			return nvml.DEVICE_ARCH_VOLTA, nvml.SUCCESS
		case "Turing":
			return nvml.DEVICE_ARCH_TURING, nvml.SUCCESS
		case "Ampere":
			return nvml.DEVICE_ARCH_AMPERE, nvml.SUCCESS
		case "Ada":
			return nvml.DEVICE_ARCH_ADA, nvml.SUCCESS
		case "Hopper":
			return nvml.DEVICE_ARCH_HOPPER, nvml.SUCCESS
		case "Blackwell":
			return nvml.DEVICE_ARCH_BLACKWELL, nvml.SUCCESS
		}
		return nvml.DEVICE_ARCH_UNKNOWN, nvml.SUCCESS
	})
}

func (d *device) GetCudaComputeCapability() (int, int, nvml.Return) {
	text, ret := attribute(d, "GetCudaComputeCapability", func(c snapshot) string { return c.gpu.Model.ComputeCapability })
	major, minor, _ := strings.Cut(text, ".")
	a, _ := strconv.Atoi(major) // the profile tests check this format
	b, _ := strconv.Atoi(minor)
	return a, b, ret
}

func (d *device) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	return attribute(d, "GetPciInfo", func(c snapshot) nvml.PciInfo {
		return pciInfo(c.gpu.PCI, c.gpu.Model.PCIDevice, c.gpu.Model.PCISubsystem)
	})
}

func (d *device) GetPciInfoExt() (nvml.PciInfoExt, nvml.Return) {
	return attribute(d, "GetPciInfoExt", func(c snapshot) nvml.PciInfoExt {
		p := pciInfo(c.gpu.PCI, c.gpu.Model.PCIDevice, c.gpu.Model.PCISubsystem)
		return nvml.PciInfoExt{
			Domain: p.Domain, Bus: p.Bus, Device: p.Device, PciDeviceId: p.PciDeviceId, PciSubSystemId: p.PciSubSystemId,
			BaseClass: class3D >> 16, SubClass: class3D >> 8 & 0xff, BusId: p.BusId,
		}
	})
}

func (d *device) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	return memory(d, "GetMemoryInfo", func(c snapshot) nvml.Memory {
		total, used := c.gpu.Model.MemoryMiB<<20, c.gpu.Model.ReservedMiB<<20+c.usedBytes() // version 1 counts the driver's reserve as used
		return nvml.Memory{Total: total, Used: used, Free: total - used}
	})
}

func (d *device) GetMemoryInfo_v2() (nvml.Memory_v2, nvml.Return) {
	return memory(d, "GetMemoryInfo_v2", func(c snapshot) nvml.Memory_v2 {
		total, reserved := c.gpu.Model.MemoryMiB<<20, c.gpu.Model.ReservedMiB<<20
		used := c.usedBytes()
		return nvml.Memory_v2{Total: total, Reserved: reserved, Used: used, Free: total - reserved - used}
	})
}

// memory runs a call that reads a GPU's own memory, which one that uses the host's does not have.
func memory[T any](d *device, call string, read func(snapshot) T) (T, nvml.Return) {
	return get(d, call, func(c snapshot) (T, nvml.Return) {
		if c.gpu.Model.HostMemory {
			var none T
			return none, nvml.ERROR_NOT_SUPPORTED
		}
		return read(c), nvml.SUCCESS
	})
}

func (d *device) GetBAR1MemoryInfo() (nvml.BAR1Memory, nvml.Return) {
	return attribute(d, "GetBAR1MemoryInfo", func(c snapshot) nvml.BAR1Memory {
		total := uint64(256 << 20)
		for total < c.gpu.Model.MemoryMiB<<20 { // a large BAR covers the memory, rounded up to a power of two
			total *= 2
		}
		return nvml.BAR1Memory{Bar1Total: total, Bar1Used: 1 << 20, Bar1Free: total - 1<<20}
	})
}

// GetNumaNodeId is supported only where the GPU's memory is a NUMA node, as in NVML.
func (d *device) GetNumaNodeId() (int, nvml.Return) {
	return get(d, "GetNumaNodeId", func(c snapshot) (int, nvml.Return) {
		if c.gpu.MemoryNUMA < 0 {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return c.gpu.MemoryNUMA, nvml.SUCCESS
	})
}

func (d *device) GetMemoryAffinity(words int, _ nvml.AffinityScope) ([]uint, nvml.Return) {
	return attribute(d, "GetMemoryAffinity", func(c snapshot) []uint { return bitmap(fmt.Sprint(c.gpu.NUMA), words) })
}

func (d *device) GetCpuAffinity(words int) ([]uint, nvml.Return) {
	return attribute(d, "GetCpuAffinity", func(c snapshot) []uint { return bitmap(c.gpu.CPUs, words) })
}

func (d *device) GetCpuAffinityWithinScope(words int, _ nvml.AffinityScope) ([]uint, nvml.Return) {
	return attribute(d, "GetCpuAffinityWithinScope", func(c snapshot) []uint { return bitmap(c.gpu.CPUs, words) })
}

func (d *device) GetAddressingMode() (nvml.DeviceAddressingMode, nvml.Return) {
	return attribute(d, "GetAddressingMode", func(c snapshot) nvml.DeviceAddressingMode {
		mode := nvml.DEVICE_ADDRESSING_MODE_NONE
		if c.gpu.Model.Coherent {
			mode = nvml.DEVICE_ADDRESSING_MODE_ATS
		}
		return nvml.DeviceAddressingMode{Value: uint32(mode)}
	})
}

func (d *device) IsMigDeviceHandle() (bool, nvml.Return) {
	return attribute(d, "IsMigDeviceHandle", func(snapshot) bool { return false })
}

// other returns the slot of another handle, which may be wrapped by the caller's own type.
func (d *device) other(handle nvml.Device) (int, nvml.Return) {
	if handle == nil {
		return 0, nvml.ERROR_INVALID_ARGUMENT
	}
	if own, ok := handle.(*device); ok {
		return own.slot, nvml.SUCCESS
	}
	uuid, ret := handle.GetUUID()
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	for slot := range d.lib.machine.hw.GPUs {
		if d.lib.machine.hw.GPUs[slot].UUID == uuid {
			return slot, nvml.SUCCESS
		}
	}
	return 0, nvml.ERROR_INVALID_ARGUMENT
}

// pair runs a call that concerns two GPUs; a fault of either makes it fail.
func pair[T any](d *device, call string, handle nvml.Device, read func(a, b snapshot) T) (T, nvml.Return) {
	return get(d, call, func(a snapshot) (T, nvml.Return) {
		var zero T
		slot, ret := d.other(handle)
		if ret != nvml.SUCCESS {
			return zero, ret
		}
		b, ret := d.lib.device(slot).enter(call)
		if ret != nvml.SUCCESS {
			return zero, ret
		}
		return read(a, b), nvml.SUCCESS
	})
}

func (d *device) GetTopologyCommonAncestor(handle nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) {
	return pair(d, "GetTopologyCommonAncestor", handle, func(a, b snapshot) nvml.GpuTopologyLevel {
		if a.gpu == b.gpu {
			return nvml.TOPOLOGY_INTERNAL
		}
		return ancestor(a.gpu, b.gpu)
	})
}

func (d *device) GetTopologyNearestGpus(level nvml.GpuTopologyLevel) ([]nvml.Device, nvml.Return) {
	return attribute(d, "GetTopologyNearestGpus", func(c snapshot) []nvml.Device {
		var near []nvml.Device
		for _, slot := range c.view.order {
			if slot != d.slot && ancestor(c.gpu, &c.view.hw.GPUs[slot]) == level {
				near = append(near, d.lib.device(slot))
			}
		}
		return near
	})
}

func (d *device) OnSameBoard(handle nvml.Device) (int, nvml.Return) {
	return pair(d, "OnSameBoard", handle, func(a, b snapshot) int {
		if a.gpu == b.gpu {
			return 1
		}
		return 0
	})
}

func (d *device) GetMultiGpuBoard() (int, nvml.Return) {
	return attribute(d, "GetMultiGpuBoard", func(snapshot) int { return 0 })
}
