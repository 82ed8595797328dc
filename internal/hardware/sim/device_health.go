package sim

import (
	"encoding/binary"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func (d *device) GetTemperature(sensor nvml.TemperatureSensors) (uint32, nvml.Return) {
	return get(d, "GetTemperature", func(c snapshot) (uint32, nvml.Return) {
		if sensor != nvml.TEMPERATURE_GPU {
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}
		return c.temperature(), nvml.SUCCESS
	})
}

func (c snapshot) temperature() uint32 {
	if c.state.Temperature > 0 {
		return uint32(c.state.Temperature)
	}
	return c.gpu.Model.IdleTemperature
}

func (d *device) GetTemperatureThreshold(kind nvml.TemperatureThresholds) (uint32, nvml.Return) {
	return get(d, "GetTemperatureThreshold", func(c snapshot) (uint32, nvml.Return) {
		switch kind {
		case nvml.TEMPERATURE_THRESHOLD_SHUTDOWN:
			return c.gpu.Model.Shutdown, nvml.SUCCESS
		case nvml.TEMPERATURE_THRESHOLD_SLOWDOWN:
			return c.gpu.Model.Slowdown, nvml.SUCCESS
		case nvml.TEMPERATURE_THRESHOLD_GPU_MAX:
			return c.gpu.Model.MaxTemperature, nvml.SUCCESS
		}
		return 0, nvml.ERROR_NOT_SUPPORTED
	})
}

// GetCurrentClocksEventReasons returns why the clocks are reduced: the GPU is idle, hot or throttled.
func (d *device) GetCurrentClocksEventReasons() (uint64, nvml.Return) {
	return attribute(d, "GetCurrentClocksEventReasons", snapshot.clockReasons)
}

func (d *device) GetCurrentClocksThrottleReasons() (uint64, nvml.Return) {
	return attribute(d, "GetCurrentClocksThrottleReasons", snapshot.clockReasons)
}

func (c snapshot) clockReasons() uint64 {
	reasons := uint64(nvml.ClocksEventReasonNone)
	if c.work().SM == 0 {
		reasons = nvml.ClocksEventReasonGpuIdle
	}
	if c.temperature() >= c.gpu.Model.MaxTemperature {
		reasons |= nvml.ClocksEventReasonSwThermalSlowdown
	}
	if c.temperature() >= c.gpu.Model.Slowdown {
		reasons |= nvml.ClocksThrottleReasonHwSlowdown | nvml.ClocksThrottleReasonHwThermalSlowdown
	}
	switch c.state.Throttle {
	case ThrottleHW:
		reasons |= nvml.ClocksThrottleReasonHwSlowdown
	case ThrottleThermal:
		reasons |= nvml.ClocksThrottleReasonHwSlowdown | nvml.ClocksThrottleReasonHwThermalSlowdown
	case ThrottlePowerBrake:
		reasons |= nvml.ClocksThrottleReasonHwSlowdown | nvml.ClocksThrottleReasonHwPowerBrakeSlowdown
	}
	return reasons
}

// GetTotalEccErrors counts injected errors; the simulator does not distinguish lifetime from volatile counters.
func (d *device) GetTotalEccErrors(kind nvml.MemoryErrorType, _ nvml.EccCounterType) (uint64, nvml.Return) {
	return get(d, "GetTotalEccErrors", func(c snapshot) (uint64, nvml.Return) { return c.eccErrors(kind) })
}

func (c snapshot) eccErrors(kind nvml.MemoryErrorType) (uint64, nvml.Return) {
	switch kind {
	case nvml.MEMORY_ERROR_TYPE_CORRECTED:
		return 0, nvml.SUCCESS
	case nvml.MEMORY_ERROR_TYPE_UNCORRECTED:
		return c.dramErrors() + c.state.ECCSRAM, nvml.SUCCESS
	}
	return 0, nvml.ERROR_INVALID_ARGUMENT
}

// dramErrors returns the number of uncorrectable errors in DRAM.
func (c snapshot) dramErrors() uint64 { return c.state.DoubleBitECC + c.state.ContainedECC }

// GetMemoryErrorCounter counts errors in DRAM and in SRAM separately.
func (d *device) GetMemoryErrorCounter(kind nvml.MemoryErrorType, _ nvml.EccCounterType, where nvml.MemoryLocation) (uint64, nvml.Return) {
	return get(d, "GetMemoryErrorCounter", func(c snapshot) (uint64, nvml.Return) {
		number, ret := c.eccErrors(kind)
		switch where {
		case nvml.MEMORY_LOCATION_DRAM:
			return number - min(number, c.state.ECCSRAM), ret
		case nvml.MEMORY_LOCATION_SRAM:
			return min(number, c.state.ECCSRAM), ret
		case nvml.MEMORY_LOCATION_L1_CACHE, nvml.MEMORY_LOCATION_L2_CACHE, nvml.MEMORY_LOCATION_REGISTER_FILE:
			return 0, nvml.SUCCESS
		}
		return 0, nvml.ERROR_NOT_SUPPORTED
	})
}

func (d *device) GetDetailedEccErrors(kind nvml.MemoryErrorType, _ nvml.EccCounterType) (nvml.EccErrorCounts, nvml.Return) {
	return get(d, "GetDetailedEccErrors", func(c snapshot) (nvml.EccErrorCounts, nvml.Return) {
		n, ret := c.eccErrors(kind)
		return nvml.EccErrorCounts{DeviceMemory: n - min(n, c.state.ECCSRAM)}, ret
	})
}

func (d *device) GetEccMode() (nvml.EnableState, nvml.EnableState, nvml.Return) {
	_, ret := d.enter("GetEccMode")
	if ret != nvml.SUCCESS {
		return 0, 0, ret
	}
	return nvml.FEATURE_ENABLED, nvml.FEATURE_ENABLED, nvml.SUCCESS
}

// GetRemappedRows returns the corrected and uncorrected rows, and whether a remap is pending or has failed.
func (d *device) GetRemappedRows() (int, int, bool, bool, nvml.Return) {
	c, ret := d.enter("GetRemappedRows")
	if ret == nvml.SUCCESS && !c.gpu.Model.RowRemapper {
		ret = nvml.ERROR_NOT_SUPPORTED
	}
	if ret != nvml.SUCCESS {
		return 0, 0, false, false, ret
	}
	uncorrected, pending, failed := c.remaps()
	return 0, uncorrected, pending, failed, nvml.SUCCESS
}

func (c snapshot) remaps() (uncorrected int, pending, failed bool) {
	pending, failed = c.state.RowRemap == RowRemapPending, c.state.RowRemap == RowRemapFailed
	if pending || failed {
		uncorrected = 1
	}
	return uncorrected, pending, failed
}

func (d *device) GetRowRemapperHistogram() (nvml.RowRemapperHistogramValues, nvml.Return) {
	return get(d, "GetRowRemapperHistogram", func(c snapshot) (nvml.RowRemapperHistogramValues, nvml.Return) {
		if !c.gpu.Model.RowRemapper {
			return nvml.RowRemapperHistogramValues{}, nvml.ERROR_NOT_SUPPORTED
		}
		const banks = 640
		if uncorrected, _, failed := c.remaps(); failed {
			return nvml.RowRemapperHistogramValues{Max: banks - 1, None: 1}, nvml.SUCCESS
		} else if uncorrected > 0 {
			return nvml.RowRemapperHistogramValues{Max: banks - 1, High: 1}, nvml.SUCCESS
		}
		return nvml.RowRemapperHistogramValues{Max: banks}, nvml.SUCCESS
	})
}

// GetRetiredPages and GetRetiredPagesPendingStatus are supported on GPUs that retire pages instead of remapping rows.
func (d *device) GetRetiredPages(nvml.PageRetirementCause) ([]uint64, nvml.Return) {
	return get(d, "GetRetiredPages", func(c snapshot) ([]uint64, nvml.Return) { return nil, c.retiresPages() })
}

func (d *device) GetRetiredPagesPendingStatus() (nvml.EnableState, nvml.Return) {
	return get(d, "GetRetiredPagesPendingStatus", func(c snapshot) (nvml.EnableState, nvml.Return) {
		return nvml.EnableState(bit(c.state.RetiredPages)), c.retiresPages()
	})
}

func (c snapshot) retiresPages() nvml.Return {
	if c.gpu.Model.RowRemapper {
		return nvml.ERROR_NOT_SUPPORTED
	}
	return nvml.SUCCESS
}

// GetFieldValues sets a value or a return code per field; the call itself succeeds.
func (d *device) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	c, ret := d.enter("GetFieldValues")
	if ret != nvml.SUCCESS {
		return ret
	}
	for i := range values {
		number, wide, ret := c.field(values[i].FieldId, values[i].ScopeId)
		values[i].NvmlReturn = uint32(ret)
		if ret != nvml.SUCCESS {
			continue
		}
		values[i].Value = [8]byte{}
		if wide {
			values[i].ValueType = uint32(nvml.VALUE_TYPE_UNSIGNED_LONG_LONG)
			binary.NativeEndian.PutUint64(values[i].Value[:], number)
		} else {
			values[i].ValueType = uint32(nvml.VALUE_TYPE_UNSIGNED_INT)
			binary.NativeEndian.PutUint32(values[i].Value[:], uint32(number))
		}
	}
	return nvml.SUCCESS
}

// field returns the value of one field; wide means that it has 64 bits.
func (c snapshot) field(id, scope uint32) (number uint64, wide bool, ret nvml.Return) {
	if below := c.view.hw.FieldsBelow; below > 0 && id >= below {
		return 0, false, nvml.ERROR_INVALID_ARGUMENT
	}
	uncorrected, pending, failed := c.remaps()
	switch id {
	case nvml.FI_DEV_GET_GPU_RECOVERY_ACTION:
		action, supported := c.state.recovery(time.Now())
		if !supported {
			return 0, false, nvml.ERROR_NOT_SUPPORTED
		}
		return uint64(action), false, nvml.SUCCESS
	case nvml.FI_DEV_ECC_CURRENT, nvml.FI_DEV_ECC_PENDING:
		return 1, false, nvml.SUCCESS
	case nvml.FI_DEV_ECC_SBE_VOL_TOTAL, nvml.FI_DEV_ECC_SBE_AGG_TOTAL:
		return 0, true, nvml.SUCCESS
	case nvml.FI_DEV_ECC_DBE_VOL_TOTAL, nvml.FI_DEV_ECC_DBE_AGG_TOTAL:
		return c.dramErrors() + c.state.ECCSRAM, true, nvml.SUCCESS
	case nvml.FI_DEV_ECC_DBE_VOL_DEV, nvml.FI_DEV_ECC_DBE_AGG_DEV:
		return c.dramErrors(), true, nvml.SUCCESS
	case nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION:
		return c.millijoules(), true, nvml.SUCCESS
	case nvml.FI_DEV_POWER_INSTANT, nvml.FI_DEV_POWER_AVERAGE:
		return uint64(c.milliwatts()), false, nvml.SUCCESS
	case nvml.FI_DEV_POWER_CURRENT_LIMIT, nvml.FI_DEV_POWER_DEFAULT_LIMIT, nvml.FI_DEV_POWER_MAX_LIMIT:
		return uint64(c.gpu.Model.PowerLimit) * 1000, false, nvml.SUCCESS
	case nvml.FI_DEV_PCIE_REPLAY_COUNTER:
		return uint64(c.work().PCIeReplays), false, nvml.SUCCESS
	case nvml.FI_DEV_MEMORY_TEMP:
		return c.memoryTemperature()
	case nvml.FI_DEV_PERF_POLICY_POWER, nvml.FI_DEV_PERF_POLICY_THERMAL, nvml.FI_DEV_PERF_POLICY_SYNC_BOOST,
		nvml.FI_DEV_PERF_POLICY_BOARD_LIMIT, nvml.FI_DEV_PERF_POLICY_LOW_UTILIZATION, nvml.FI_DEV_PERF_POLICY_RELIABILITY:
		return c.violation(id), true, nvml.SUCCESS
	}
	if c.gpu.Model.RowRemapper {
		switch id {
		case nvml.FI_DEV_REMAPPED_COR:
			return 0, false, nvml.SUCCESS
		case nvml.FI_DEV_REMAPPED_UNC:
			return uint64(uncorrected), false, nvml.SUCCESS
		case nvml.FI_DEV_REMAPPED_PENDING:
			return bit(pending), false, nvml.SUCCESS
		case nvml.FI_DEV_REMAPPED_FAILURE:
			return bit(failed), false, nvml.SUCCESS
		}
	}
	return c.linkField(id, scope)
}

// linkField returns a field of an NVLink; the scope is the number of the link.
func (c snapshot) linkField(id, scope uint32) (number uint64, wide bool, ret nvml.Return) {
	if id == nvml.FI_DEV_NVLINK_LINK_COUNT {
		return uint64(c.gpu.Model.NVLinks), false, nvml.SUCCESS
	}
	if c.gpu.Model.NVLinks == 0 {
		return 0, false, nvml.ERROR_NOT_SUPPORTED
	}
	switch id {
	case nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL:
		return c.state.NVLinkErrors, true, nvml.SUCCESS
	case nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL:
		return 0, true, nvml.SUCCESS
	case nvml.FI_DEV_NVLINK_GET_STATE, nvml.FI_DEV_NVLINK_GET_SPEED, nvml.FI_DEV_NVLINK_GET_VERSION:
		if scope >= uint32(c.gpu.Model.NVLinks) {
			return 0, false, nvml.ERROR_INVALID_ARGUMENT
		}
	}
	switch id {
	case nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX:
		return c.linkTraffic(scope)
	case nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
		nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL:
		return 0, true, nvml.SUCCESS
	case nvml.FI_DEV_NVLINK_GET_STATE:
		return bit(c.up(int(scope))), false, nvml.SUCCESS
	case nvml.FI_DEV_NVLINK_GET_SPEED:
		return uint64(c.gpu.Model.NVLinkMBps) * bit(c.up(int(scope))), false, nvml.SUCCESS
	case nvml.FI_DEV_NVLINK_GET_VERSION:
		return uint64(c.gpu.Model.NVLinkVersion), false, nvml.SUCCESS
	}
	return 0, false, nvml.ERROR_NOT_SUPPORTED
}

func bit(set bool) uint64 {
	if set {
		return 1
	}
	return 0
}
