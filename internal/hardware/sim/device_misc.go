package sim

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// A card with default settings: what metrics and labels read besides identity and health.

func (d *device) GetPowerUsage() (uint32, nvml.Return) {
	return fact(d, "GetPowerUsage", func(c condition) uint32 { return c.milliwatts() })
}

func (d *device) GetEnforcedPowerLimit() (uint32, nvml.Return) {
	return fact(d, "GetEnforcedPowerLimit", condition.powerLimit)
}

func (d *device) GetPowerManagementLimit() (uint32, nvml.Return) {
	return fact(d, "GetPowerManagementLimit", condition.powerLimit)
}

func (d *device) GetPowerManagementDefaultLimit() (uint32, nvml.Return) {
	return fact(d, "GetPowerManagementDefaultLimit", condition.powerLimit)
}

func (c condition) powerLimit() uint32 { return c.card.Model.PowerLimit * 1000 }

// busyPID is the process of Fault.Busy; no kernel gives out so high a number.
const busyPID = 1 << 22

// noInstance is what NVML says for a process that uses no MIG instance.
const noInstance = ^uint32(0)

// GetComputeRunningProcesses lists who keeps the card busy, and its MIG instances.
func (d *device) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return fact(d, "GetComputeRunningProcesses", func(c condition) []nvml.ProcessInfo {
		var processes []nvml.ProcessInfo
		if c.state.Busy {
			processes = append(processes, nvml.ProcessInfo{Pid: busyPID, GpuInstanceId: noInstance, ComputeInstanceId: noInstance})
		}
		for _, gi := range c.state.Instances {
			if gi.Busy {
				processes = append(processes, nvml.ProcessInfo{Pid: busyPID + 1 + uint32(gi.ID), GpuInstanceId: uint32(gi.ID)})
			}
		}
		return append(processes, c.workers(false)...)
	})
}

func (d *device) GetGraphicsRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return fact(d, "GetGraphicsRunningProcesses", noProcesses)
}

func (d *device) GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return fact(d, "GetMPSComputeRunningProcesses", func(c condition) []nvml.ProcessInfo { return c.workers(true) })
}

func noProcesses(condition) []nvml.ProcessInfo { return nil }

func (d *device) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	return fact(d, "GetComputeMode", func(c condition) nvml.ComputeMode { return nvml.ComputeMode(c.state.ComputeMode) })
}

// SetComputeMode: the exclusive mode by thread is gone since CUDA 8.
func (d *device) SetComputeMode(mode nvml.ComputeMode) nvml.Return {
	if _, ret := d.enter("SetComputeMode"); ret != nvml.SUCCESS {
		return ret
	}
	switch mode {
	case nvml.COMPUTEMODE_DEFAULT, nvml.COMPUTEMODE_PROHIBITED, nvml.COMPUTEMODE_EXCLUSIVE_PROCESS:
	case nvml.COMPUTEMODE_EXCLUSIVE_THREAD:
		return nvml.ERROR_NOT_SUPPORTED
	default:
		return nvml.ERROR_INVALID_ARGUMENT
	}
	return d.change(event{Type: eventSetting, Note: "compute mode " + computeModeName(mode)}, func(c *cardState) nvml.Return {
		c.ComputeMode = int32(mode)
		return nvml.SUCCESS
	})
}

// computeModeName is the word of nvidia-smi -c.
func computeModeName(mode nvml.ComputeMode) string {
	switch mode {
	case nvml.COMPUTEMODE_EXCLUSIVE_PROCESS:
		return "EXCLUSIVE_PROCESS"
	case nvml.COMPUTEMODE_PROHIBITED:
		return "PROHIBITED"
	}
	return "DEFAULT"
}

func (d *device) GetPersistenceMode() (nvml.EnableState, nvml.Return) {
	return fact(d, "GetPersistenceMode", func(condition) nvml.EnableState { return nvml.FEATURE_ENABLED })
}

func (d *device) GetPerformanceState() (nvml.Pstates, nvml.Return) {
	return fact(d, "GetPerformanceState", func(condition) nvml.Pstates { return nvml.PSTATE_0 })
}

func (d *device) GetDisplayActive() (nvml.EnableState, nvml.Return) {
	return fact(d, "GetDisplayActive", func(condition) nvml.EnableState { return nvml.FEATURE_DISABLED })
}

func (d *device) GetDisplayMode() (nvml.EnableState, nvml.Return) {
	return fact(d, "GetDisplayMode", func(condition) nvml.EnableState { return nvml.FEATURE_DISABLED })
}

func (d *device) GetVirtualizationMode() (nvml.GpuVirtualizationMode, nvml.Return) {
	return fact(d, "GetVirtualizationMode", func(condition) nvml.GpuVirtualizationMode { return nvml.GPU_VIRTUALIZATION_MODE_NONE })
}

func (d *device) GetVbiosVersion() (string, nvml.Return) {
	return fact(d, "GetVbiosVersion", func(c condition) string { return c.card.Model.VBIOS })
}

func (d *device) GetGspFirmwareVersion() (string, nvml.Return) {
	return fact(d, "GetGspFirmwareVersion", func(c condition) string { return c.view.hw.Driver })
}

func (d *device) GetNumGpuCores() (int, nvml.Return) {
	return fact(d, "GetNumGpuCores", func(c condition) int { return c.card.Model.Cores })
}

func (d *device) GetMemoryBusWidth() (uint32, nvml.Return) {
	return fact(d, "GetMemoryBusWidth", func(c condition) uint32 { return c.card.Model.BusWidth })
}

func (d *device) GetCurrPcieLinkGeneration() (int, nvml.Return) {
	return fact(d, "GetCurrPcieLinkGeneration", condition.pcieGeneration)
}

func (d *device) GetMaxPcieLinkGeneration() (int, nvml.Return) {
	return fact(d, "GetMaxPcieLinkGeneration", condition.pcieGeneration)
}

func (d *device) GetGpuMaxPcieLinkGeneration() (int, nvml.Return) {
	return fact(d, "GetGpuMaxPcieLinkGeneration", condition.pcieGeneration)
}

func (c condition) pcieGeneration() int { return c.card.Model.PCIeGeneration }

func (d *device) GetCurrPcieLinkWidth() (int, nvml.Return) {
	return fact(d, "GetCurrPcieLinkWidth", pcieWidth)
}

func (d *device) GetMaxPcieLinkWidth() (int, nvml.Return) {
	return fact(d, "GetMaxPcieLinkWidth", pcieWidth)
}

func pcieWidth(condition) int { return 16 }

func (d *device) GetPcieReplayCounter() (int, nvml.Return) {
	return fact(d, "GetPcieReplayCounter", func(c condition) int { return int(c.work().PCIeReplays) })
}
