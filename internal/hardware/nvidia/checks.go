package nvidia

import (
	"encoding/binary"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// check is one question about a card's health.
type check struct {
	// symbol is the function that the library must have.
	symbol string
	run    func(q *question, d nvml.Device, p *pulse) []gpu.Cause
}

// checks are asked of each card at each scan, with one NVML call each; what is fixed is asked once. A cause's
// message holds no counter, since a snapshot must not change while nothing happens.
func checks() []check {
	return []check{
		{"nvmlDeviceGetRemappedRows", checkRemappedRows},
		{"nvmlDeviceGetTotalEccErrors", checkECC},
		{"nvmlDeviceGetRetiredPagesPendingStatus", checkRetiredPages},
		{"nvmlDeviceGetTemperature", checkTemperature},
		{"nvmlDeviceGetCurrentClocksThrottleReasons", checkThrottle},
	}
}

// check asks a card how it is, and which life of it this is.
func (a *work) check(q *question, c *card, m *memories) ([]gpu.Cause, gpu.Recovery, gpu.Life) {
	p := a.pulse(c.gpu.UUID)
	var causes []gpu.Cause
	for _, one := range checks() {
		if !a.exports(one.symbol) {
			continue
		}
		found, missing := section(q, func() []gpu.Cause { return one.run(q, c.device, p) })
		if missing != nil { // what the check found before stands until it is answered again
			c.doubts = append(c.doubts, doubt{why: *missing, kept: true})
			found = m.checks[one.symbol]
		}
		m.checks[one.symbol] = found
		causes = append(causes, found...)
	}
	read := settled(q, c, &m.fields, false, func() map[uint32]uint64 { return readFields(q, c.device) })
	var recovery gpu.Recovery // empty when the driver does not say
	if action, ok := read[nvml.FI_DEV_GET_GPU_RECOVERY_ACTION]; ok {
		recovery = recoveryOf(action)
	}
	causes = append(causes, checkRecovery(recovery)...)
	causes = append(causes, p.linkErrors(read)...)
	causes = append(causes, p.linksDown(c.links)...)
	causes = append(causes, checkFabric(c.fabric, c.links)...)
	if q.reset != nil {
		causes = append(causes, unstamped("GPU_RESET_REQUIRED",
			fmt.Sprintf("the GPU needs a reset: %s returned %s", q.reset.call, say(q.reset.ret))))
	}
	return causes, recovery, a.lifeOf(q, c.device, read)
}

// lifeOf reads what tells this life of the card from another one.
func (a *work) lifeOf(q *question, d nvml.Device, read map[uint32]uint64) gpu.Life {
	life := gpu.Life{Driver: a.sys.module(driverModule)}
	life.Energy, life.EnergyKnown = read[nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION]
	mode, ok := ask(q, "nvmlDeviceGetPersistenceMode", d.GetPersistenceMode)
	life.Persistent = ok && mode == nvml.FEATURE_ENABLED
	return life
}

func checkRemappedRows(q *question, d nvml.Device, _ *pulse) []gpu.Cause {
	type state struct{ pending, failed bool }
	rows, ok := ask(q, "nvmlDeviceGetRemappedRows", func() (state, nvml.Return) {
		_, _, pending, failed, ret := d.GetRemappedRows()
		return state{pending, failed}, ret
	})
	var causes []gpu.Cause
	if ok && rows.failed {
		causes = append(causes, unstamped("ROW_REMAP_FAILURE",
			"a defective memory row could not be remapped (nvmlDeviceGetRemappedRows); the GPU needs to be replaced"))
	}
	if ok && rows.pending {
		causes = append(causes, unstamped("ROW_REMAP_PENDING",
			"a defective memory row waits to be remapped (nvmlDeviceGetRemappedRows); reset the GPU"))
	}
	return causes
}

// checkECC counts uncorrectable errors since the last reset, those in DRAM and those in SRAM each by itself: a GPU that
// contains errors works on after one in DRAM. What the driver does not say to be in DRAM is taken for one in SRAM.
func checkECC(q *question, d nvml.Device, _ *pulse) []gpu.Cause {
	errors, ok := ask(q, "nvmlDeviceGetTotalEccErrors", func() (uint64, nvml.Return) {
		return d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	})
	if !ok || errors == 0 {
		return nil
	}
	dram, _ := ask(q, "nvmlDeviceGetMemoryErrorCounter", func() (uint64, nvml.Return) {
		dram, ret := d.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC, nvml.MEMORY_LOCATION_DRAM)
		if unsupported(ret) {
			return errors, nvml.SUCCESS // a GPU of before Turing, where nothing depends on it
		}
		return dram, ret
	})
	var causes []gpu.Cause
	if dram > 0 {
		causes = append(causes, unstamped("ECC_DOUBLE_BIT",
			"uncorrectable errors in DRAM were counted since the last reset (nvmlDeviceGetTotalEccErrors, volatile); a reset sets the count to zero"))
	}
	if errors > dram {
		causes = append(causes, unstamped("ECC_SRAM_UNCORRECTABLE",
			"uncorrectable errors outside DRAM were counted since the last reset (nvmlDeviceGetTotalEccErrors, nvmlDeviceGetMemoryErrorCounter, volatile); reset the GPU"))
	}
	return causes
}

// wantedFields are read with one call. A field that the card or its driver does not have is absent.
func wantedFields() []uint32 {
	return []uint32{
		nvml.FI_DEV_GET_GPU_RECOVERY_ACTION,
		nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
		nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION,
	}
}

// readFields reads fields by their number.
func readFields(q *question, d nvml.Device) map[uint32]uint64 {
	values, ok := ask(q, "nvmlDeviceGetFieldValues", func() ([]nvml.FieldValue, nvml.Return) {
		var values []nvml.FieldValue
		for _, id := range wantedFields() {
			values = append(values, nvml.FieldValue{FieldId: id})
		}
		ret := d.GetFieldValues(values)
		return values, ret
	})
	read := map[uint32]uint64{}
	for _, value := range values {
		if ok && q.understand("nvmlDeviceGetFieldValues", nvml.Return(value.NvmlReturn)) {
			read[value.FieldId] = fieldNumber(value)
		}
	}
	return read
}

func checkRecovery(recovery gpu.Recovery) []gpu.Cause {
	if recovery == "" || recovery == gpu.RecoveryNone {
		return nil
	}
	return []gpu.Cause{unstamped("RECOVERY_ACTION",
		fmt.Sprintf("the driver asks for a recovery action: %s (NVML field %d)", recovery, nvml.FI_DEV_GET_GPU_RECOVERY_ACTION))}
}

// recoveryOf names what would repair the card.
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

// fieldNumber reads a field's union, which holds a value of the type it names in the
// machine's byte order. 32-bit kinds leave the rest of the union undefined.
func fieldNumber(value nvml.FieldValue) uint64 {
	switch nvml.ValueType(value.ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return binary.NativeEndian.Uint64(value.Value[:])
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		return uint64(binary.NativeEndian.Uint16(value.Value[:]))
	}
	return uint64(binary.NativeEndian.Uint32(value.Value[:]))
}
