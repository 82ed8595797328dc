package sim

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// An idle card with default settings: what metrics and labels read besides identity and health.

func (d *device) GetPowerUsage() (uint32, nvml.Return) {
	return fact(d, "GetPowerUsage", func(c condition) uint32 { return c.card.Model.IdlePower * 1000 })
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

func (d *device) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	return fact(d, "GetUtilizationRates", func(condition) nvml.Utilization { return nvml.Utilization{} })
}

func (d *device) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return fact(d, "GetComputeRunningProcesses", noProcesses)
}

func (d *device) GetGraphicsRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return fact(d, "GetGraphicsRunningProcesses", noProcesses)
}

func (d *device) GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return fact(d, "GetMPSComputeRunningProcesses", noProcesses)
}

func noProcesses(condition) []nvml.ProcessInfo { return nil }

func (d *device) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	return fact(d, "GetComputeMode", func(condition) nvml.ComputeMode { return nvml.COMPUTEMODE_DEFAULT })
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
	return fact(d, "GetPcieReplayCounter", func(condition) int { return 0 })
}
