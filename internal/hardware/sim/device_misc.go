package sim

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// This file answers the calls about default settings that metrics and labels read, besides identity and health.

func (d *device) GetPowerUsage() (uint32, nvml.Return) {
	return attribute(d, "GetPowerUsage", func(c snapshot) uint32 { return c.milliwatts() })
}

func (d *device) GetEnforcedPowerLimit() (uint32, nvml.Return) {
	return attribute(d, "GetEnforcedPowerLimit", snapshot.powerLimit)
}

func (d *device) GetPowerManagementLimit() (uint32, nvml.Return) {
	return attribute(d, "GetPowerManagementLimit", snapshot.powerLimit)
}

func (d *device) GetPowerManagementDefaultLimit() (uint32, nvml.Return) {
	return attribute(d, "GetPowerManagementDefaultLimit", snapshot.powerLimit)
}

func (c snapshot) powerLimit() uint32 { return c.gpu.Model.PowerLimit * 1000 }

// busyPID is the PID of the process that Fault.Busy simulates; the kernel never assigns a PID this high.
const busyPID = 1 << 22

// noInstance is NVML's value for a process that uses no MIG instance.
const noInstance = ^uint32(0)

// GetComputeRunningProcesses lists the compute processes of the GPU and of its MIG instances.
func (d *device) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return attribute(d, "GetComputeRunningProcesses", func(c snapshot) []nvml.ProcessInfo {
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
	return attribute(d, "GetGraphicsRunningProcesses", noProcesses)
}

func (d *device) GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return attribute(d, "GetMPSComputeRunningProcesses", func(c snapshot) []nvml.ProcessInfo { return c.workers(true) })
}

func noProcesses(snapshot) []nvml.ProcessInfo { return nil }

func (d *device) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	return attribute(d, "GetComputeMode", func(c snapshot) nvml.ComputeMode { return nvml.ComputeMode(c.state.ComputeMode) })
}

// SetComputeMode does not support EXCLUSIVE_THREAD, which CUDA 8 removed.
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
	return d.change(event{Type: eventSetting, Note: "compute mode " + computeModeName(mode)}, func(c *gpuState) nvml.Return {
		c.ComputeMode = int32(mode)
		return nvml.SUCCESS
	})
}

// computeModeName returns the name of the mode as nvidia-smi -c spells it.
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
	return attribute(d, "GetPersistenceMode", func(snapshot) nvml.EnableState { return nvml.FEATURE_ENABLED })
}

func (d *device) GetPerformanceState() (nvml.Pstates, nvml.Return) {
	return attribute(d, "GetPerformanceState", func(snapshot) nvml.Pstates { return nvml.PSTATE_0 })
}

func (d *device) GetDisplayActive() (nvml.EnableState, nvml.Return) {
	return attribute(d, "GetDisplayActive", func(snapshot) nvml.EnableState { return nvml.FEATURE_DISABLED })
}

func (d *device) GetDisplayMode() (nvml.EnableState, nvml.Return) {
	return attribute(d, "GetDisplayMode", func(snapshot) nvml.EnableState { return nvml.FEATURE_DISABLED })
}

func (d *device) GetVirtualizationMode() (nvml.GpuVirtualizationMode, nvml.Return) {
	return attribute(d, "GetVirtualizationMode", func(snapshot) nvml.GpuVirtualizationMode { return nvml.GPU_VIRTUALIZATION_MODE_NONE })
}

func (d *device) GetVbiosVersion() (string, nvml.Return) {
	return attribute(d, "GetVbiosVersion", func(c snapshot) string { return c.gpu.Model.VBIOS })
}

func (d *device) GetGspFirmwareVersion() (string, nvml.Return) {
	return attribute(d, "GetGspFirmwareVersion", func(c snapshot) string { return c.view.hw.Driver })
}

func (d *device) GetNumGpuCores() (int, nvml.Return) {
	return attribute(d, "GetNumGpuCores", func(c snapshot) int { return c.gpu.Model.Cores })
}

func (d *device) GetMemoryBusWidth() (uint32, nvml.Return) {
	return attribute(d, "GetMemoryBusWidth", func(c snapshot) uint32 { return c.gpu.Model.BusWidth })
}

func (d *device) GetCurrPcieLinkGeneration() (int, nvml.Return) {
	return attribute(d, "GetCurrPcieLinkGeneration", snapshot.pcieGeneration)
}

func (d *device) GetMaxPcieLinkGeneration() (int, nvml.Return) {
	return attribute(d, "GetMaxPcieLinkGeneration", snapshot.pcieGeneration)
}

func (d *device) GetGpuMaxPcieLinkGeneration() (int, nvml.Return) {
	return attribute(d, "GetGpuMaxPcieLinkGeneration", snapshot.pcieGeneration)
}

func (c snapshot) pcieGeneration() int { return c.gpu.Model.PCIeGeneration }

func (d *device) GetCurrPcieLinkWidth() (int, nvml.Return) {
	return attribute(d, "GetCurrPcieLinkWidth", pcieWidth)
}

func (d *device) GetMaxPcieLinkWidth() (int, nvml.Return) {
	return attribute(d, "GetMaxPcieLinkWidth", pcieWidth)
}

func pcieWidth(snapshot) int { return 16 }

func (d *device) GetPcieReplayCounter() (int, nvml.Return) {
	return attribute(d, "GetPcieReplayCounter", func(c snapshot) int { return int(c.work().PCIeReplays) })
}
