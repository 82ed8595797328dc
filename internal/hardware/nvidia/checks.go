package nvidia

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// check reads one aspect of a GPU's health.
type check struct {
	// symbol is the function that the library must have.
	symbol string
	run    func(q *caller, d nvml.Device, h *history) []gpu.Cause
}

// checks run for each GPU at each scan, with one NVML call each; fixed values are read once. The message of a cause has no
// counter, since a snapshot must not change while the state does not.
func checks() []check {
	return []check{
		{"nvmlDeviceGetRemappedRows", checkRemappedRows},
		{"nvmlDeviceGetTotalEccErrors", checkECC},
		{"nvmlDeviceGetRetiredPagesPendingStatus", checkRetiredPages},
		{"nvmlDeviceGetTemperature", checkTemperature},
		{"nvmlDeviceGetCurrentClocksThrottleReasons", checkThrottle},
	}
}

// check runs all checks of a GPU and identifies its life.
func (a *work) check(q *caller, c *scannedGPU, m *cache) ([]gpu.Cause, gpu.Recovery, gpu.Life) {
	h := a.history(c.gpu.UUID)
	var causes []gpu.Cause
	for _, one := range checks() {
		if !a.exports(one.symbol) {
			continue
		}
		last := m.checks[one.symbol]
		found, answered, missing := groupExpecting(q, last.expected(false), func() []gpu.Cause { return one.run(q, c.device, h) })
		if missing != nil { // the last result of the check stays until it can be read again
			c.missingAnswers = append(c.missingAnswers, missingAnswer{why: *missing, kept: true})
			found, answered = last.value, last.answered
			last.failed++
		} else {
			last.failed = 0
		}
		m.checks[one.symbol] = cached[[]gpu.Cause]{value: found, have: true, current: true, failed: last.failed, answered: answered}
		causes = append(causes, found...)
	}
	read := readCached(q, c, &m.fields, false, func() map[uint32]uint64 { return readFields(q, c.device) })
	var recovery gpu.Recovery // empty when the driver does not report it
	if action, ok := read[nvml.FI_DEV_GET_GPU_RECOVERY_ACTION]; ok {
		recovery = recoveryOf(action)
	}
	causes = append(causes, checkRecovery(recovery)...)
	causes = append(causes, h.linkErrors(read)...)
	causes = append(causes, h.linksDown(c.links)...)
	causes = append(causes, checkFabric(c.fabric, c.links)...)
	if q.reset != nil {
		causes = append(causes, newCause("GPU_RESET_REQUIRED",
			fmt.Sprintf("the GPU needs a reset: %s returned %s", q.reset.call, codeName(q.reset.ret))))
	}
	return causes, recovery, a.lifeOf(q, c.device, read)
}

// lifeOf reads the values that identify the GPU's life.
func (a *work) lifeOf(q *caller, d nvml.Device, read map[uint32]uint64) gpu.Life {
	life := gpu.Life{Driver: a.sys.module(driverModule)}
	life.Energy, life.EnergyKnown = read[nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION]
	mode, ok := invoke(q, "nvmlDeviceGetPersistenceMode", d.GetPersistenceMode)
	life.Persistent = ok && mode == nvml.FEATURE_ENABLED
	return life
}

func checkRemappedRows(q *caller, d nvml.Device, _ *history) []gpu.Cause {
	type state struct {
		pending bool
		failed  bool
	}
	rows, ok := invoke(q, "nvmlDeviceGetRemappedRows", func() (state, nvml.Return) {
		_, _, pending, failed, ret := d.GetRemappedRows()
		return state{pending, failed}, ret
	})
	var causes []gpu.Cause
	if ok && rows.failed {
		causes = append(causes, newCause("ROW_REMAP_FAILURE",
			"a defective memory row could not be remapped (nvmlDeviceGetRemappedRows); the GPU needs to be replaced"))
	}
	if ok && rows.pending {
		causes = append(causes, newCause("ROW_REMAP_PENDING",
			"a defective memory row waits to be remapped (nvmlDeviceGetRemappedRows); reset the GPU"))
	}
	return causes
}

// checkECC reports uncorrectable errors since the last reset, separately for DRAM and SRAM: a GPU that contains errors
// continues to work after one in DRAM. Errors that the driver does not attribute to DRAM count as errors in SRAM.
func checkECC(q *caller, d nvml.Device, _ *history) []gpu.Cause {
	errors, ok := invoke(q, "nvmlDeviceGetTotalEccErrors", func() (uint64, nvml.Return) {
		return d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	})
	if !ok || errors == 0 {
		return nil
	}
	dram, _ := invoke(q, "nvmlDeviceGetMemoryErrorCounter", func() (uint64, nvml.Return) {
		dram, ret := d.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC, nvml.MEMORY_LOCATION_DRAM)
		if unsupported(ret) {
			return errors, nvml.SUCCESS // a GPU before Turing, for which the distinction has no effect
		}
		return dram, ret
	})
	var causes []gpu.Cause
	if dram > 0 {
		causes = append(causes, newCause("ECC_DOUBLE_BIT",
			"uncorrectable errors in DRAM were counted since the last reset (nvmlDeviceGetTotalEccErrors, volatile); a reset sets the count to zero"))
	}
	if errors > dram {
		causes = append(causes, newCause("ECC_SRAM_UNCORRECTABLE",
			"uncorrectable errors outside DRAM were counted since the last reset (nvmlDeviceGetTotalEccErrors, nvmlDeviceGetMemoryErrorCounter, volatile); reset the GPU"))
	}
	return causes
}

// wantedFields are read with one call. A field that the GPU or its driver does not have is absent.
func wantedFields() []uint32 {
	return []uint32{
		nvml.FI_DEV_GET_GPU_RECOVERY_ACTION,
		nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
		nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION,
	}
}

// readFields reads fields by their number.
func readFields(q *caller, d nvml.Device) map[uint32]uint64 {
	values, ok := invoke(q, "nvmlDeviceGetFieldValues", func() ([]nvml.FieldValue, nvml.Return) {
		var values []nvml.FieldValue
		for _, id := range wantedFields() {
			values = append(values, nvml.FieldValue{FieldId: id})
		}
		ret := d.GetFieldValues(values)
		return values, ret
	})
	read := map[uint32]uint64{}
	for _, value := range values {
		if ok && q.accept("nvmlDeviceGetFieldValues", strconv.Itoa(int(value.FieldId)), nvml.Return(value.NvmlReturn)) {
			read[value.FieldId] = fieldNumber(value)
		}
	}
	return read
}

func checkRecovery(recovery gpu.Recovery) []gpu.Cause {
	if recovery == "" || recovery == gpu.RecoveryNone {
		return nil
	}
	return []gpu.Cause{newCause("RECOVERY_ACTION",
		fmt.Sprintf("the driver asks for a recovery action: %s (NVML field %d)", recovery, nvml.FI_DEV_GET_GPU_RECOVERY_ACTION))}
}

// recoveryOf converts NVML's recovery action.
func recoveryOf(action uint64) gpu.Recovery {
	switch nvml.DeviceGpuRecoveryAction(action) {
	case nvml.GPU_RECOVERY_ACTION_NONE:
		return gpu.RecoveryNone
	case nvml.GPU_RECOVERY_ACTION_GPU_RESET:
		return gpu.RecoveryGPUReset
	case nvml.GPU_RECOVERY_ACTION_NODE_REBOOT:
		return gpu.RecoveryNodeReboot
	case nvml.GPU_RECOVERY_ACTION_DRAIN_P2P:
		return gpu.RecoveryDrainP2P
	case nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:
		return gpu.RecoveryDrainAndReset
	case nvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN:
		return gpu.RecoveryIMEXDomain
	case nvml.GPU_RECOVERY_ACTION_BUS_RESET:
		return gpu.RecoveryBusReset
	case nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT:
		return gpu.RecoverySystemReboot
	}
	return gpu.Recovery(fmt.Sprintf("Action%d", action))
}

// fieldNumber reads the union of a field, which holds a value of the named type in the machine's byte order. Types of 32 bits
// leave the rest of the union undefined.
func fieldNumber(value nvml.FieldValue) uint64 {
	switch nvml.ValueType(value.ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return binary.NativeEndian.Uint64(value.Value[:])
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		return uint64(binary.NativeEndian.Uint16(value.Value[:]))
	}
	return uint64(binary.NativeEndian.Uint32(value.Value[:]))
}
