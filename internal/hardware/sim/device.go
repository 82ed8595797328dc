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

// condition is what a call sees of its card.
type condition struct {
	view  *view
	card  *card
	state *cardState
}

// enter begins a call on the card.
func (d *device) enter(call string) (condition, nvml.Return) {
	v, ret := d.lib.enterGPU(call, d.slot)
	if v == nil {
		return condition{}, ret
	}
	return condition{view: v, card: &v.hw.GPUs[d.slot], state: &v.st.GPUs[d.slot]}, ret
}

// get is a call that reads one value.
func get[T any](d *device, call string, read func(condition) (T, nvml.Return)) (T, nvml.Return) {
	c, ret := d.enter(call)
	if ret != nvml.SUCCESS {
		var zero T
		return zero, ret
	}
	return read(c)
}

// fact is a call that reads a value that every card has.
func fact[T any](d *device, call string, read func(condition) T) (T, nvml.Return) {
	return get(d, call, func(c condition) (T, nvml.Return) { return read(c), nvml.SUCCESS })
}

// GetUUID also answers for a lost card: the library read it when the handle was opened, and
// that is how programs name the card of an XID 79.
func (d *device) GetUUID() (string, nvml.Return) {
	c, ret := d.enter("GetUUID")
	if ret == nvml.SUCCESS || (ret == nvml.ERROR_GPU_IS_LOST && c.card != nil) {
		return c.card.UUID, nvml.SUCCESS
	}
	return "", ret
}

func (d *device) GetIndex() (int, nvml.Return) {
	return get(d, "GetIndex", func(c condition) (int, nvml.Return) {
		for index, slot := range c.view.order {
			if slot == d.slot {
				return index, nvml.SUCCESS
			}
		}
		return 0, nvml.ERROR_GPU_IS_LOST
	})
}

func (d *device) GetMinorNumber() (int, nvml.Return) {
	return fact(d, "GetMinorNumber", func(c condition) int { return c.card.Minor })
}

func (d *device) GetName() (string, nvml.Return) {
	return fact(d, "GetName", func(c condition) string { return c.card.Model.Name })
}

func (d *device) GetSerial() (string, nvml.Return) {
	return fact(d, "GetSerial", func(c condition) string { return c.card.Serial })
}

func (d *device) GetBrand() (nvml.BrandType, nvml.Return) {
	return fact(d, "GetBrand", func(c condition) nvml.BrandType {
		if c.card.Model.Brand == "Tesla" {
			return nvml.BRAND_TESLA
		}
		return nvml.BRAND_NVIDIA
	})
}

func (d *device) GetArchitecture() (nvml.DeviceArchitecture, nvml.Return) {
	return get(d, "GetArchitecture", func(c condition) (nvml.DeviceArchitecture, nvml.Return) {
		switch c.card.Model.Architecture {
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
	text, ret := fact(d, "GetCudaComputeCapability", func(c condition) string { return c.card.Model.ComputeCapability })
	major, minor, _ := strings.Cut(text, ".")
	a, _ := strconv.Atoi(major) // our own data, checked by its test
	b, _ := strconv.Atoi(minor)
	return a, b, ret
}

func (d *device) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	return fact(d, "GetPciInfo", func(c condition) nvml.PciInfo {
		return pciInfo(c.card.PCI, c.card.Model.PCIDevice, c.card.Model.PCISubsystem)
	})
}

func (d *device) GetPciInfoExt() (nvml.PciInfoExt, nvml.Return) {
	return fact(d, "GetPciInfoExt", func(c condition) nvml.PciInfoExt {
		p := pciInfo(c.card.PCI, c.card.Model.PCIDevice, c.card.Model.PCISubsystem)
		return nvml.PciInfoExt{
			Domain: p.Domain, Bus: p.Bus, Device: p.Device, PciDeviceId: p.PciDeviceId, PciSubSystemId: p.PciSubSystemId,
			BaseClass: class3D >> 16, SubClass: class3D >> 8 & 0xff, BusId: p.BusId,
		}
	})
}

func (d *device) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	return fact(d, "GetMemoryInfo", func(c condition) nvml.Memory {
		total, used := c.card.Model.MemoryMiB<<20, c.card.Model.ReservedMiB<<20+c.usedBytes() // v1 counts what the driver keeps as used
		return nvml.Memory{Total: total, Used: used, Free: total - used}
	})
}

func (d *device) GetMemoryInfo_v2() (nvml.Memory_v2, nvml.Return) {
	return fact(d, "GetMemoryInfo_v2", func(c condition) nvml.Memory_v2 {
		total, reserved := c.card.Model.MemoryMiB<<20, c.card.Model.ReservedMiB<<20
		used := c.usedBytes()
		return nvml.Memory_v2{Total: total, Reserved: reserved, Used: used, Free: total - reserved - used}
	})
}

func (d *device) GetBAR1MemoryInfo() (nvml.BAR1Memory, nvml.Return) {
	return fact(d, "GetBAR1MemoryInfo", func(c condition) nvml.BAR1Memory {
		total := uint64(256 << 20)
		for total < c.card.Model.MemoryMiB<<20 { // large BAR: the next power of two
			total *= 2
		}
		return nvml.BAR1Memory{Bar1Total: total, Bar1Used: 1 << 20, Bar1Free: total - 1<<20}
	})
}

// GetNumaNodeId answers only where the card's memory is a NUMA node, as NVML does.
func (d *device) GetNumaNodeId() (int, nvml.Return) {
	return get(d, "GetNumaNodeId", func(c condition) (int, nvml.Return) {
		if c.card.MemoryNUMA < 0 {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return c.card.MemoryNUMA, nvml.SUCCESS
	})
}

func (d *device) GetMemoryAffinity(words int, _ nvml.AffinityScope) ([]uint, nvml.Return) {
	return fact(d, "GetMemoryAffinity", func(c condition) []uint { return bitmap(fmt.Sprint(c.card.NUMA), words) })
}

func (d *device) GetCpuAffinity(words int) ([]uint, nvml.Return) {
	return fact(d, "GetCpuAffinity", func(c condition) []uint { return bitmap(c.card.CPUs, words) })
}

func (d *device) GetCpuAffinityWithinScope(words int, _ nvml.AffinityScope) ([]uint, nvml.Return) {
	return fact(d, "GetCpuAffinityWithinScope", func(c condition) []uint { return bitmap(c.card.CPUs, words) })
}

func (d *device) GetAddressingMode() (nvml.DeviceAddressingMode, nvml.Return) {
	return fact(d, "GetAddressingMode", func(c condition) nvml.DeviceAddressingMode {
		mode := nvml.DEVICE_ADDRESSING_MODE_NONE
		if c.card.Model.Coherent {
			mode = nvml.DEVICE_ADDRESSING_MODE_ATS
		}
		return nvml.DeviceAddressingMode{Value: uint32(mode)}
	})
}

func (d *device) IsMigDeviceHandle() (bool, nvml.Return) {
	return fact(d, "IsMigDeviceHandle", func(condition) bool { return false })
}

// other finds the slot behind another handle, which may be wrapped by the caller's own type.
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

// pair is a call about two cards; it finds the fault of either.
func pair[T any](d *device, call string, handle nvml.Device, read func(a, b condition) T) (T, nvml.Return) {
	return get(d, call, func(a condition) (T, nvml.Return) {
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
	return pair(d, "GetTopologyCommonAncestor", handle, func(a, b condition) nvml.GpuTopologyLevel {
		if a.card == b.card {
			return nvml.TOPOLOGY_INTERNAL
		}
		return ancestor(a.card, b.card)
	})
}

func (d *device) GetTopologyNearestGpus(level nvml.GpuTopologyLevel) ([]nvml.Device, nvml.Return) {
	return fact(d, "GetTopologyNearestGpus", func(c condition) []nvml.Device {
		var near []nvml.Device
		for _, slot := range c.view.order {
			if slot != d.slot && ancestor(c.card, &c.view.hw.GPUs[slot]) == level {
				near = append(near, d.lib.device(slot))
			}
		}
		return near
	})
}

func (d *device) OnSameBoard(handle nvml.Device) (int, nvml.Return) {
	return pair(d, "OnSameBoard", handle, func(a, b condition) int {
		if a.card == b.card {
			return 1
		}
		return 0
	})
}

func (d *device) GetMultiGpuBoard() (int, nvml.Return) {
	return fact(d, "GetMultiGpuBoard", func(condition) int { return 0 })
}
