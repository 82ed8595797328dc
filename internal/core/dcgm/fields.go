package dcgm

import (
	"math"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

const mebibyte = 1.0 / (1 << 20)

// The fields that count XIDs, which have labels of their own.
const (
	LastXID  = "DCGM_FI_DEV_XID_ERRORS"
	XIDCount = "DCGM_EXP_XID_ERRORS_COUNT"
)

// MemoryUsed is the field in whose ratio the others of a GPU's memory are divided among its holders.
const MemoryUsed = "DCGM_FI_DEV_FB_USED"

// Fields returns the table: first the fields that are exported without a list, then the others that have a value, then those that have
// none.
func Fields() []Field {
	return slices.Concat(defaultFields(), clockFields(), powerFields(), memoryFields(), linkFields(), profilingFields(), labelFields(), withoutValue())
}

func gaugeOf(name, help, source string) Field {
	return Field{Name: name, Type: Gauge, Help: help, Source: source}
}

func counterOf(name, help, source string) Field {
	return Field{Name: name, Type: Counter, Help: help, Source: source}
}

// gpm is the source of profiling values.
const gpm = "nvmlGpmMetricsGet (Hopper and later)"

// defaultFields are the active lines of dcgm-exporter's default-counters.csv and dcp-metrics-included.csv.
func defaultFields() []Field {
	list := []Field{
		gaugeOf("DCGM_FI_DEV_SM_CLOCK", "SM clock (MHz).", "nvmlDeviceGetClockInfo").whole(gpu.ClockSM, 1e-6),
		gaugeOf("DCGM_FI_DEV_MEM_CLOCK", "Memory clock (MHz).", "nvmlDeviceGetClockInfo").whole(gpu.ClockMemory, 1e-6),
		gaugeOf("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (C).", "NVML field 82 (GPUs with HBM)").as(gpu.TemperatureMemory),
		gaugeOf("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (C).", "nvmlDeviceGetTemperature").as(gpu.TemperatureGPU),
		gaugeOf("DCGM_FI_DEV_POWER_USAGE", "Power draw (W).", "nvmlDeviceGetPowerUsage").as(gpu.PowerUsage),
		counterOf("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Energy since the driver was loaded (mJ).", "nvmlDeviceGetTotalEnergyConsumption").whole(gpu.EnergyTotal, 1000),
		counterOf("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "PCIe retries.", "nvmlDeviceGetPcieReplayCounter").as(gpu.PCIeReplays),
		gaugeOf("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (%).", "nvmlDeviceGetUtilizationRates (not with MIG)").whole(gpu.UtilizationGPU, 100),
		gaugeOf("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (%).", "nvmlDeviceGetUtilizationRates (not with MIG)").whole(gpu.UtilizationMemory, 100),
		gaugeOf("DCGM_FI_DEV_ENC_UTIL", "Encoder utilization (%).", "nvmlDeviceGetEncoderUtilization (not with MIG)").whole(gpu.UtilizationEncoder, 100),
		gaugeOf("DCGM_FI_DEV_DEC_UTIL", "Decoder utilization (%).", "nvmlDeviceGetDecoderUtilization (not with MIG)").whole(gpu.UtilizationDecoder, 100),
		gaugeOf("DCGM_FI_DEV_FB_FREE", "Free memory (MiB).", "nvmlDeviceGetMemoryInfo_v2").whole(gpu.MemoryFree, mebibyte).divided(),
		gaugeOf(MemoryUsed, "Used memory (MiB).", "nvmlDeviceGetMemoryInfo_v2").whole(gpu.MemoryUsed, mebibyte).divided(),
		gaugeOf("DCGM_FI_DEV_FB_RESERVED", "Memory kept by the driver (MiB).", "nvmlDeviceGetMemoryInfo_v2").whole(gpu.MemoryReserved, mebibyte).divided(),
		counterOf("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Rows remapped for uncorrectable errors.", remapped).as(gpu.RemappedUncorrectable),
		counterOf("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Rows remapped for correctable errors.", remapped).as(gpu.RemappedCorrectable),
		gaugeOf("DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether remapping of rows has failed.", remapped).as(gpu.RemapFailure),
		// The sum of NVML's counters, as the type says and as rate() needs it. dcgm-exporter's value is a rate under this type: DCGM
		// divides the difference of two readings by the time and by 1000 (ReadAndCacheNvLinkBandwidth in its DcgmCacheManager.cpp;
		// dcgm-exporter issue 417).
		counterOf("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "Data sent and received over all NVLinks (KiB).", "NVML fields 138 and 139 (GPUs with NVLink)").
			sum(gpu.NVLinkTransmitTotal, gpu.NVLinkReceiveTotal, 1.0/1024),
		gaugeOf("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "vGPU licence status.", "nvmlDeviceGetGridLicensableFeatures").as(gpu.VGPULicensed),
		gaugeOf("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active.", gpm).as(gpu.GraphicsActive).ofInstances(),
		gaugeOf("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor pipe is active.", gpm).as(gpu.TensorActive).ofInstances(),
		gaugeOf("DCGM_FI_PROF_DRAM_ACTIVE", "Ratio of cycles the memory interface is active.", gpm).as(gpu.DRAMActive).ofInstances(),
		gaugeOf("DCGM_FI_PROF_PCIE_TX_BYTES", "Data sent over PCIe (bytes/s).", pcie).whole(gpu.PCIeTransmit, 1),
		gaugeOf("DCGM_FI_PROF_PCIE_RX_BYTES", "Data received over PCIe (bytes/s).", pcie).whole(gpu.PCIeReceive, 1),
		gaugeOf(LastXID, "Last XID that was reported.", "nvmlEventSetWait and the kernel log"),
	}
	for i := range list {
		list[i].Default = true
	}
	return list
}

const (
	remapped  = "nvmlDeviceGetRemappedRows (Ampere and later)"
	pcie      = "nvmlGpmMetricsGet, before Hopper nvmlDeviceGetPcieThroughput"
	eventBits = "nvmlDeviceGetCurrentClocksEventReasons"
)

// clockFields are fields of clocks, temperatures and the link to the host.
func clockFields() []Field {
	const most, threshold = "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetTemperatureThreshold"
	return []Field{
		gaugeOf("DCGM_FI_DEV_VIDEO_CLOCK", "Video clock (MHz).", "nvmlDeviceGetClockInfo").whole(gpu.ClockVideo, 1e-6),
		gaugeOf("DCGM_FI_DEV_MAX_SM_CLOCK", "Highest SM clock (MHz).", most).whole(gpu.ClockSMMost, 1e-6),
		gaugeOf("DCGM_FI_DEV_MAX_MEM_CLOCK", "Highest memory clock (MHz).", most).whole(gpu.ClockMemoryMost, 1e-6),
		gaugeOf("DCGM_FI_DEV_MAX_VIDEO_CLOCK", "Highest video clock (MHz).", most).whole(gpu.ClockVideoMost, 1e-6),
		gaugeOf("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "Reasons that lower the clocks, as bits.", eventBits).as(gpu.ClockReasons),
		gaugeOf("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "Reasons that lower the clocks, as bits.", eventBits).as(gpu.ClockReasons),
		gaugeOf("DCGM_FI_DEV_PSTATE", "Performance state, 0 is the fastest.", "nvmlDeviceGetPerformanceState").as(gpu.PerformanceState),
		gaugeOf("DCGM_FI_DEV_FAN_SPEED", "Fan speed (%).", "nvmlDeviceGetFanSpeed (GPUs with a fan)").whole(gpu.FanSpeed, 100),
		gaugeOf("DCGM_FI_DEV_SLOWDOWN_TEMP", "Temperature at which the clocks are lowered (C).", threshold).as(gpu.TemperatureSlowdown),
		gaugeOf("DCGM_FI_DEV_SHUTDOWN_TEMP", "Temperature at which the GPU switches itself off (C).", threshold).as(gpu.TemperatureShutdown),
		gaugeOf("DCGM_FI_DEV_GPU_MAX_OP_TEMP", "Highest temperature for normal work (C).", threshold).as(gpu.TemperatureMost),
		gaugeOf("DCGM_FI_DEV_MEM_MAX_OP_TEMP", "Highest memory temperature for normal work (C).", threshold).as(gpu.TemperatureMemoryMost),
		gaugeOf("DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "Data sent over PCIe (KB/s).", pcie).whole(gpu.PCIeTransmit, 1e-3),
		gaugeOf("DCGM_FI_DEV_PCIE_RX_THROUGHPUT", "Data received over PCIe (KB/s).", pcie).whole(gpu.PCIeReceive, 1e-3),
		gaugeOf("DCGM_FI_DEV_PCIE_LINK_GEN", "PCIe generation of the link.", "nvmlDeviceGetCurrPcieLinkGeneration").as(gpu.PCIeGeneration),
		gaugeOf("DCGM_FI_DEV_PCIE_LINK_WIDTH", "PCIe lanes of the link.", "nvmlDeviceGetCurrPcieLinkWidth").as(gpu.PCIeWidth),
		gaugeOf("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", "Highest PCIe generation of GPU and slot.", "nvmlDeviceGetMaxPcieLinkGeneration").as(gpu.PCIeGenerationMost),
		gaugeOf("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", "Most PCIe lanes of GPU and slot.", "nvmlDeviceGetMaxPcieLinkWidth").as(gpu.PCIeWidthMost),
		gaugeOf("DCGM_FI_DEV_PERSISTENCE_MODE", "Whether persistence mode is on.", "nvmlDeviceGetPersistenceMode").as(gpu.PersistenceMode),
	}
}

// powerFields are fields of power limits and of what lowers the clocks.
func powerFields() []Field {
	const limits = "nvmlDeviceGetPowerManagementLimitConstraints"
	violation := func(name, what, field string, m gpu.Measure) Field {
		return counterOf("DCGM_FI_DEV_"+name+"_VIOLATION", "Time in which "+what+" lowered the clocks (ns).", "NVML field "+field).whole(m, 1e9)
	}
	return []Field{
		gaugeOf("DCGM_FI_DEV_POWER_USAGE_INSTANT", "Power draw without averaging (W).", "NVML field 186").as(gpu.PowerInstant),
		gaugeOf("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "Power limit in force (W).", "nvmlDeviceGetEnforcedPowerLimit").as(gpu.PowerLimit),
		gaugeOf("DCGM_FI_DEV_POWER_MGMT_LIMIT", "Power limit that was set (W).", "nvmlDeviceGetPowerManagementLimit").as(gpu.PowerLimitSet),
		gaugeOf("DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN", "Lowest power limit (W).", limits).as(gpu.PowerLimitLeast),
		gaugeOf("DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX", "Highest power limit (W).", limits).as(gpu.PowerLimitMost),
		gaugeOf("DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF", "Default power limit (W).", "nvmlDeviceGetPowerManagementDefaultLimit").as(gpu.PowerLimitDefault),
		violation("POWER", "the power limit", "74", gpu.ViolationPower),
		violation("THERMAL", "the temperature", "75", gpu.ViolationThermal),
		violation("SYNC_BOOST", "sync boost", "76", gpu.ViolationSyncBoost),
		violation("BOARD_LIMIT", "the limit of the board", "77", gpu.ViolationBoardLimit),
		violation("LOW_UTIL", "low utilization", "78", gpu.ViolationLowUtilization),
		violation("RELIABILITY", "the reliability limit", "79", gpu.ViolationReliability),
		gaugeOf(XIDCount, "XIDs of the last five minutes, by XID.", "nvmlEventSetWait and the kernel log"),
	}
}

// memoryFields are fields of memory and of its errors.
func memoryFields() []Field {
	const ecc, retired, bar1 = "nvmlDeviceGetTotalEccErrors (GPUs with ECC)", "nvmlDeviceGetRetiredPages (before Ampere)", "nvmlDeviceGetBAR1MemoryInfo"
	percent := gaugeOf("DCGM_FI_DEV_FB_USED_PERCENT", "Used memory of that which the driver does not keep (0 to 1).", "nvmlDeviceGetMemoryInfo_v2").ofInstances()
	percent.Measures = []gpu.Measure{gpu.MemoryUsed, gpu.MemorySize, gpu.MemoryReserved}
	percent.Of = usedRatio
	return []Field{
		gaugeOf("DCGM_FI_DEV_FB_TOTAL", "Size of the memory (MiB).", "nvmlDeviceGetMemoryInfo_v2").whole(gpu.MemorySize, mebibyte).divided(),
		percent,
		gaugeOf("DCGM_FI_DEV_BAR1_TOTAL", "Size of BAR1 (MiB).", bar1).whole(gpu.BAR1Size, mebibyte),
		gaugeOf("DCGM_FI_DEV_BAR1_FREE", "Free part of BAR1 (MiB).", bar1).whole(gpu.BAR1Free, mebibyte),
		gaugeOf("DCGM_FI_DEV_BAR1_USED", "Used part of BAR1 (MiB).", bar1).whole(gpu.BAR1Used, mebibyte),
		gaugeOf("DCGM_FI_DEV_ECC_CURRENT", "Whether ECC is on.", "nvmlDeviceGetEccMode").as(gpu.ECCMode),
		gaugeOf("DCGM_FI_DEV_ECC_PENDING", "Whether ECC is on after the next reset.", "nvmlDeviceGetEccMode").as(gpu.ECCModePending),
		counterOf("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "Corrected memory errors since the driver was loaded.", ecc).as(gpu.ECCCorrectedVolatile),
		counterOf("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "Uncorrected memory errors since the driver was loaded.", ecc).as(gpu.ECCUncorrectedVolatile),
		counterOf("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "Corrected memory errors of the GPU's life.", ecc).as(gpu.ECCCorrectedAggregate),
		counterOf("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "Uncorrected memory errors of the GPU's life.", ecc).as(gpu.ECCUncorrectedAggregate),
		counterOf("DCGM_FI_DEV_RETIRED_SBE", "Pages retired for corrected errors.", retired).as(gpu.RetiredSingleBit),
		counterOf("DCGM_FI_DEV_RETIRED_DBE", "Pages retired for uncorrected errors.", retired).as(gpu.RetiredDoubleBit),
		counterOf("DCGM_FI_DEV_RETIRED_PENDING", "Whether pages wait for a reboot to be retired.", "nvmlDeviceGetRetiredPagesPendingStatus (before Ampere)").as(gpu.RetiredPending),
		gaugeOf("DCGM_FI_DEV_ROW_REMAP_PENDING", "Whether rows wait for a reset to be remapped.", remapped).as(gpu.RemapPending),
	}
}

// usedRatio is the used memory without what the driver keeps.
func usedRatio(r *gpu.Readings) (float64, bool) {
	used, ok1 := r.Get(gpu.MemoryUsed)
	size, ok2 := r.Get(gpu.MemorySize)
	reserved, _ := r.Get(gpu.MemoryReserved)
	if !ok1 || !ok2 || size <= reserved {
		return 0, false
	}
	return math.Round(used/(size-reserved)*1e6) / 1e6, true
}

// linkFields are fields of NVLink, over all links.
func linkFields() []Field {
	errors := func(name, what, field string, m gpu.Measure) Field {
		return counterOf("DCGM_FI_DEV_NVLINK_"+name+"_ERROR_COUNT_TOTAL", what+" of all NVLinks.", "NVML field "+field+" (GPUs with NVLink)").as(m)
	}
	return []Field{
		errors("CRC_FLIT", "Flow control CRC errors", "38", gpu.NVLinkCRCFlitErrors),
		errors("CRC_DATA", "Data CRC errors", "45", gpu.NVLinkCRCDataErrors),
		errors("REPLAY", "Replays", "52", gpu.NVLinkReplayErrors),
		errors("RECOVERY", "Recoveries", "59", gpu.NVLinkRecoveryErrors),
	}
}

// profilingFields are further fields that NVML measures with its GPU performance monitoring.
func profilingFields() []Field {
	pipe := func(name, what string, m gpu.Measure) Field {
		return gaugeOf("DCGM_FI_PROF_"+name, what, gpm).as(m).ofInstances()
	}
	return []Field{
		pipe("SM_ACTIVE", "Ratio of cycles an SM has a warp.", gpu.SMActive),
		pipe("SM_OCCUPANCY", "Ratio of resident warps to the largest number.", gpu.SMOccupancy),
		pipe("PIPE_FP64_ACTIVE", "Ratio of cycles the fp64 pipe is active.", gpu.FP64Active),
		pipe("PIPE_FP32_ACTIVE", "Ratio of cycles the fp32 pipe is active.", gpu.FP32Active),
		pipe("PIPE_FP16_ACTIVE", "Ratio of cycles the fp16 pipe is active.", gpu.FP16Active),
		pipe("PIPE_INT_ACTIVE", "Ratio of cycles the integer pipe is active.", gpu.IntegerActive),
		pipe("PIPE_TENSOR_DFMA_ACTIVE", "Ratio of cycles the tensor pipe computes in double precision.", gpu.TensorDFMAActive),
		pipe("PIPE_TENSOR_HMMA_ACTIVE", "Ratio of cycles the tensor pipe computes in half precision.", gpu.TensorHMMAActive),
		pipe("PIPE_TENSOR_IMMA_ACTIVE", "Ratio of cycles the tensor pipe computes with integers.", gpu.TensorIMMAActive),
		gaugeOf("DCGM_FI_PROF_NVLINK_TX_BYTES", "Data sent over NVLink (bytes/s).", gpm).whole(gpu.NVLinkTransmit, 1),
		gaugeOf("DCGM_FI_PROF_NVLINK_RX_BYTES", "Data received over NVLink (bytes/s).", gpm).whole(gpu.NVLinkReceive, 1),
	}
}

// labelFields are those that all series have as labels.
func labelFields() []Field {
	return []Field{{Name: "DCGM_FI_DRIVER_VERSION", Type: Label, Help: "Version of the driver.", Source: "nvmlSystemGetDriverVersion"}}
}
