package metrics

import (
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// meter is a metric that is read from the hardware: one series for each GPU and each of its parts.
type meter struct {
	name string
	kind kind
	help string
	// mig is true when MIG devices have it too, as berth_gpu_mig_….
	mig   bool
	parts []part
}

// part is a measure, with the label that distinguishes it from the others of its meter.
type part struct {
	measure gpu.Measure
	label   string
}

// labels returns the names of the labels that distinguish the parts.
func (m meter) labels() []string {
	var names []string
	for pair := range strings.SplitSeq(m.parts[0].label, ",") {
		if name, _, ok := strings.Cut(pair, "="); ok {
			names = append(names, name)
		}
	}
	return names
}

func one(m gpu.Measure) []part { return []part{{measure: m}} }

func parts(label string, each ...any) []part {
	var out []part
	for i := 0; i+1 < len(each); i += 2 {
		out = append(out, part{measure: each[i].(gpu.Measure), label: labels(label, each[i+1].(string))})
	}
	return out
}

// meters returns all metrics that are measured, without berth_gpu_ or berth_gpu_mig_ before the name.
func meters() []meter {
	return []meter{
		{name: "sm_clock_hertz", kind: gauge, help: "Clock of the streaming multiprocessors.", parts: one(gpu.ClockSM)},
		{name: "memory_clock_hertz", kind: gauge, help: "Clock of the memory.", parts: one(gpu.ClockMemory)},
		{name: "video_clock_hertz", kind: gauge, help: "Clock of the video engines.", parts: one(gpu.ClockVideo)},
		{name: "temperature_celsius", kind: gauge, help: "Temperature of the GPU.", parts: one(gpu.TemperatureGPU)},
		{name: "memory_temperature_celsius", kind: gauge, help: "Temperature of the memory.", parts: one(gpu.TemperatureMemory)},
		{name: "power_usage_watts", kind: gauge, help: "Power that the board draws.", parts: one(gpu.PowerUsage)},
		{name: "power_limit_watts", kind: gauge, help: "Power limit in force.", parts: one(gpu.PowerLimit)},
		{name: "energy_joules_total", kind: counter, help: "Energy used since the driver was loaded.", parts: one(gpu.EnergyTotal)},
		{name: "utilization_ratio", kind: gauge, help: "Fraction of the time in which a kernel ran.", parts: one(gpu.UtilizationGPU)},
		{name: "memory_utilization_ratio", kind: gauge, help: "Fraction of the time in which memory was read or written.", parts: one(gpu.UtilizationMemory)},
		{name: "encoder_utilization_ratio", kind: gauge, help: "Use of the video encoder.", parts: one(gpu.UtilizationEncoder)},
		{name: "decoder_utilization_ratio", kind: gauge, help: "Use of the video decoder.", parts: one(gpu.UtilizationDecoder)},
		{name: "memory_size_bytes", kind: gauge, mig: true, help: "Size of the memory.", parts: one(gpu.MemorySize)},
		{name: "memory_free_bytes", kind: gauge, mig: true, help: "Memory that is free.", parts: one(gpu.MemoryFree)},
		{name: "memory_used_bytes", kind: gauge, mig: true, help: "Memory that programs use.", parts: one(gpu.MemoryUsed)},
		{name: "memory_reserved_bytes", kind: gauge, help: "Memory that the driver keeps for itself.", parts: one(gpu.MemoryReserved)},
		{name: "pcie_replays_total", kind: counter, help: "Packets sent again over PCIe.", parts: one(gpu.PCIeReplays)},
		{name: "pcie_transmit_bytes_per_second", kind: gauge, help: "Traffic from the GPU over PCIe.", parts: one(gpu.PCIeTransmit)},
		{name: "pcie_receive_bytes_per_second", kind: gauge, help: "Traffic to the GPU over PCIe.", parts: one(gpu.PCIeReceive)},
		{name: "ecc_errors_total", kind: counter, help: "Memory errors, since the driver was loaded (volatile) and over the life of the GPU (aggregate).", parts: []part{
			{gpu.ECCCorrectedVolatile, labels("type", "corrected", "since", "volatile")},
			{gpu.ECCUncorrectedVolatile, labels("type", "uncorrected", "since", "volatile")},
			{gpu.ECCCorrectedAggregate, labels("type", "corrected", "since", "aggregate")},
			{gpu.ECCUncorrectedAggregate, labels("type", "uncorrected", "since", "aggregate")},
		}},
		{name: "retired_pages_total", kind: counter, help: "Retired memory pages.", parts: parts("cause",
			gpu.RetiredSingleBit, "single_bit", gpu.RetiredDoubleBit, "double_bit")},
		{name: "retired_pages_pending", kind: gauge, help: "1 while pages wait for a reboot to be retired.", parts: one(gpu.RetiredPending)},
		{name: "remapped_rows_total", kind: counter, help: "Memory rows that were replaced by spare ones.", parts: parts("type",
			gpu.RemappedCorrectable, "correctable", gpu.RemappedUncorrectable, "uncorrectable")},
		{name: "row_remap_pending", kind: gauge, help: "1 while rows wait for a reset to be remapped.", parts: one(gpu.RemapPending)},
		{name: "row_remap_failed", kind: gauge, help: "1 once a row could not be remapped.", parts: one(gpu.RemapFailure)},
		{name: "throttled_seconds_total", kind: counter, help: "Time in which a limit lowered the clocks.", parts: parts("limit",
			gpu.ViolationPower, "power", gpu.ViolationThermal, "thermal", gpu.ViolationSyncBoost, "sync_boost",
			gpu.ViolationBoardLimit, "board", gpu.ViolationLowUtilization, "low_utilization", gpu.ViolationReliability, "reliability")},
		{name: "nvlink_transmit_bytes_total", kind: counter, help: "Data sent over all NVLinks.", parts: one(gpu.NVLinkTransmitTotal)},
		{name: "nvlink_receive_bytes_total", kind: counter, help: "Data received over all NVLinks.", parts: one(gpu.NVLinkReceiveTotal)},
		{name: "nvlink_errors_total", kind: counter, help: "Errors of all NVLinks.", parts: parts("type",
			gpu.NVLinkCRCFlitErrors, "crc_flit", gpu.NVLinkCRCDataErrors, "crc_data", gpu.NVLinkReplayErrors, "replay", gpu.NVLinkRecoveryErrors, "recovery")},
		{name: "nvlinks", kind: gauge, help: "NVLinks by state.", parts: parts("state", gpu.NVLinksUp, "up", gpu.NVLinksDown, "down")},
		{name: "vgpu_licensed", kind: gauge, help: "1 while a vGPU licence is held.", parts: one(gpu.VGPULicensed)},
		{name: "graphics_engine_active_ratio", kind: gauge, mig: true, help: "Fraction of the time in which the compute or graphics engine was active.", parts: one(gpu.GraphicsActive)},
		{name: "sm_active_ratio", kind: gauge, mig: true, help: "Fraction of the multiprocessors' time in which a warp was resident.", parts: one(gpu.SMActive)},
		{name: "sm_occupancy_ratio", kind: gauge, mig: true, help: "Resident warps against the largest number.", parts: one(gpu.SMOccupancy)},
		{name: "tensor_active_ratio", kind: gauge, mig: true, help: "Use of the tensor cores.", parts: one(gpu.TensorActive)},
		{name: "fp64_active_ratio", kind: gauge, mig: true, help: "Use of the double precision pipe.", parts: one(gpu.FP64Active)},
		{name: "fp32_active_ratio", kind: gauge, mig: true, help: "Use of the single precision pipe.", parts: one(gpu.FP32Active)},
		{name: "fp16_active_ratio", kind: gauge, mig: true, help: "Use of the half precision pipe.", parts: one(gpu.FP16Active)},
		{name: "dram_active_ratio", kind: gauge, mig: true, help: "Fraction of the time in which memory was transferred.", parts: one(gpu.DRAMActive)},
	}
}

// reasons returns the bits of nvmlClocksEventReasons with the name of what lowers the clocks.
func reasons() []struct {
	bit  uint64
	name string
} {
	return []struct {
		bit  uint64
		name string
	}{
		{1, "idle"}, {2, "application_setting"}, {4, "software_power_cap"}, {8, "hardware_slowdown"}, {16, "sync_boost"},
		{32, "software_thermal"}, {64, "hardware_thermal"}, {128, "power_brake"}, {256, "display_setting"},
	}
}

// states returns the health states of a GPU, from best to worst.
func states() []gpu.State {
	return []gpu.State{gpu.Healthy, gpu.Degraded, gpu.Draining, gpu.Unhealthy, gpu.NeedsReset, gpu.NeedsReboot, gpu.Gone}
}
