package nvidia

import (
	"cmp"
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// sampledSymbols are the functions of the sampler that a library may lack.
func sampledSymbols() []string {
	return []string{
		"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMigMode", "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId",
		"nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetRetiredPagesPendingStatus", "nvmlDeviceGetRemappedRows",
		"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetFieldValues",
		"nvmlDeviceGetMPSComputeRunningProcesses", "nvmlDeviceGetProcessUtilization", "nvmlDeviceGetGridLicensableFeatures",
		"nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet",
	}
}

// has reports whether the installed library exports a function; go-nvml would end the process on a call of another.
func (r *reader) has(symbol string) bool { return r.sampler.has[symbol] }

const (
	hertzOfMHz  = 1e6
	percent     = 0.01
	milli       = 1e-3
	nano        = 1e-9
	bytesOfKB   = 1000 // nvmlDeviceGetPcieThroughput returns KB/s
	bytesOfKiB  = 1024
	bytesOfMiB  = 1 << 20
	unavailable = ^uint64(0) // NVML_VALUE_NOT_AVAILABLE
	allLinks    = ^uint32(0) // the scope of a field that is summed over all NVLinks
	maxLinks    = 64
)

// measure reads one number.
func measure[T uint32 | uint64 | int](r *reader, m gpu.Measure, scale float64, call string, f func() (T, nvml.Return)) {
	if value, ok := invoke(r.q, call, f); ok {
		r.out.Set(m, inUnit(float64(value), scale))
	}
}

// inUnit divides where the scale is below 1, so that 70 % is 0.7 and not 0.7000000000000001.
func inUnit(value, scale float64) float64 {
	if scale < 1 {
		return value / math.Round(1/scale)
	}
	return value * scale
}

func (r *reader) clocks() {
	for _, one := range []struct {
		m    gpu.Measure
		kind nvml.ClockType
	}{{gpu.ClockSM, nvml.CLOCK_SM}, {gpu.ClockMemory, nvml.CLOCK_MEM}, {gpu.ClockVideo, nvml.CLOCK_VIDEO}} {
		measure(r, one.m, hertzOfMHz, "nvmlDeviceGetClockInfo", func() (uint32, nvml.Return) { return r.device.GetClockInfo(one.kind) })
	}
}

func (r *reader) temperature() {
	measure(r, gpu.TemperatureGPU, 1, "nvmlDeviceGetTemperature", func() (uint32, nvml.Return) {
		return r.device.GetTemperature(nvml.TEMPERATURE_GPU)
	})
	r.fields(wantedField{id: nvml.FI_DEV_MEMORY_TEMP, m: gpu.TemperatureMemory, scale: 1})
}

func (r *reader) power() {
	measure(r, gpu.PowerUsage, milli, "nvmlDeviceGetPowerUsage", r.device.GetPowerUsage)
	measure(r, gpu.PowerLimit, milli, "nvmlDeviceGetEnforcedPowerLimit", r.device.GetEnforcedPowerLimit)
	if r.has("nvmlDeviceGetTotalEnergyConsumption") {
		measure(r, gpu.EnergyTotal, milli, "nvmlDeviceGetTotalEnergyConsumption", r.device.GetTotalEnergyConsumption)
	}
}

func (r *reader) utilization() {
	if rates, ok := invoke(r.q, "nvmlDeviceGetUtilizationRates", r.device.GetUtilizationRates); ok {
		r.out.Set(gpu.UtilizationGPU, inUnit(float64(rates.Gpu), percent))
		r.out.Set(gpu.UtilizationMemory, inUnit(float64(rates.Memory), percent))
	}
	measure(r, gpu.UtilizationEncoder, percent, "nvmlDeviceGetEncoderUtilization", func() (uint32, nvml.Return) {
		share, _, ret := r.device.GetEncoderUtilization()
		return share, ret
	})
	measure(r, gpu.UtilizationDecoder, percent, "nvmlDeviceGetDecoderUtilization", func() (uint32, nvml.Return) {
		share, _, ret := r.device.GetDecoderUtilization()
		return share, ret
	})
}

func (r *reader) memory() { r.readMemory(r.device, &r.out.Readings) }

// readMemory prefers the call that separates the memory that the driver reserves from what programs use.
func (r *reader) readMemory(d nvml.Device, into *gpu.Readings) {
	if r.has("nvmlDeviceGetMemoryInfo_v2") {
		if m, ok := invoke(r.q, "nvmlDeviceGetMemoryInfo_v2", d.GetMemoryInfo_v2); ok {
			setMemory(into, m.Total, m.Free, m.Used)
			into.Set(gpu.MemoryReserved, float64(m.Reserved))
			return
		}
	}
	if m, ok := invoke(r.q, "nvmlDeviceGetMemoryInfo", d.GetMemoryInfo); ok {
		setMemory(into, m.Total, m.Free, m.Used)
	}
}

func setMemory(into *gpu.Readings, size, free, used uint64) {
	into.Set(gpu.MemorySize, float64(size))
	into.Set(gpu.MemoryFree, float64(free))
	into.Set(gpu.MemoryUsed, float64(used))
}

// processes lists the programs that compute on the GPU, those that do so through MPS among them.
func (r *reader) processes() {
	running, ok := invoke(r.q, "nvmlDeviceGetComputeRunningProcesses", r.device.GetComputeRunningProcesses)
	if !ok {
		return
	}
	clients, ok := r.mpsClients()
	if !ok {
		return
	}
	running = append(slices.Clone(running), clients...)
	r.out.ProcessesKnown = true
	busy := r.activity()
	for _, p := range running {
		// Memory has 64 bits; all of them set means "not available".
		one := gpu.ProcessSample{PID: int(p.Pid), GI: instance(p.GpuInstanceId), CI: instance(p.ComputeInstanceId)}
		if p.UsedGpuMemory != unavailable {
			one.MemoryKnown, one.MemoryBytes = true, p.UsedGpuMemory
		}
		if now, ok := busy[p.Pid]; ok {
			one.SM, one.Memory = inUnit(float64(now.SmUtil), percent), inUnit(float64(now.MemUtil), percent)
			one.Encoder, one.Decoder = inUnit(float64(now.EncUtil), percent), inUnit(float64(now.DecUtil), percent)
		}
		r.out.Processes = append(r.out.Processes, one)
	}
	order := func(a, b gpu.ProcessSample) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.GI, b.GI), cmp.Compare(a.CI, b.CI))
	}
	slices.SortStableFunc(r.out.Processes, order)
	r.out.Processes = slices.CompactFunc(r.out.Processes, func(a, b gpu.ProcessSample) bool { return order(a, b) == 0 })
}

// mpsClients lists the programs that compute through MPS. A GPU or a library without MPS has none, and that is known; after another
// failure they are not known.
func (r *reader) mpsClients() ([]nvml.ProcessInfo, bool) {
	const call = "nvmlDeviceGetMPSComputeRunningProcesses"
	if !r.has(call) {
		return nil, true
	}
	return invoke(r.q, call, func() ([]nvml.ProcessInfo, nvml.Return) {
		clients, ret := r.device.GetMPSComputeRunningProcesses()
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_FUNCTION_NOT_FOUND {
			return nil, nvml.SUCCESS
		}
		return clients, ret
	})
}

// activity returns the newest sample of each process since the last pass. NVML leaves out idle processes.
func (r *reader) activity() map[uint32]nvml.ProcessUtilizationSample {
	if !r.has("nvmlDeviceGetProcessUtilization") {
		return nil
	}
	samples, ok := invoke(r.q, "nvmlDeviceGetProcessUtilization", func() ([]nvml.ProcessUtilizationSample, nvml.Return) {
		found, ret := r.device.GetProcessUtilization(r.gpu.seen)
		if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INSUFFICIENT_SIZE && len(found) == 0 {
			return nil, nvml.SUCCESS // nothing was busy
		}
		return found, ret
	})
	if !ok {
		return nil
	}
	// The first answer covers a time of unknown length.
	r.out.ActivityKnown, r.gpu.watched = r.gpu.watched, true
	newest := map[uint32]nvml.ProcessUtilizationSample{}
	since := r.gpu.seen
	for _, one := range samples {
		if one.TimeStamp > since && one.TimeStamp >= newest[one.Pid].TimeStamp {
			newest[one.Pid] = one
			r.gpu.seen = max(r.gpu.seen, one.TimeStamp)
		}
	}
	if !r.out.ActivityKnown {
		return nil
	}
	return newest
}

// errors reads the counters of memory errors: ECC, retired pages, remapped rows.
func (r *reader) errors() {
	for _, one := range []struct {
		m     gpu.Measure
		kind  nvml.MemoryErrorType
		since nvml.EccCounterType
	}{
		{gpu.ECCCorrectedVolatile, nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC},
		{gpu.ECCUncorrectedVolatile, nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC},
		{gpu.ECCCorrectedAggregate, nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.AGGREGATE_ECC},
		{gpu.ECCUncorrectedAggregate, nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.AGGREGATE_ECC},
	} {
		measure(r, one.m, 1, "nvmlDeviceGetTotalEccErrors", func() (uint64, nvml.Return) { return r.device.GetTotalEccErrors(one.kind, one.since) })
	}
	for _, one := range []struct {
		m     gpu.Measure
		cause nvml.PageRetirementCause
	}{
		{gpu.RetiredSingleBit, nvml.PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS},
		{gpu.RetiredDoubleBit, nvml.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR},
	} {
		measure(r, one.m, 1, "nvmlDeviceGetRetiredPages", func() (int, nvml.Return) {
			pages, ret := r.device.GetRetiredPages(one.cause)
			return len(pages), ret
		})
	}
	if r.has("nvmlDeviceGetRetiredPagesPendingStatus") {
		measure(r, gpu.RetiredPending, 1, "nvmlDeviceGetRetiredPagesPendingStatus", func() (uint32, nvml.Return) {
			pending, ret := r.device.GetRetiredPagesPendingStatus()
			return uint32(pending), ret
		})
	}
	if !r.has("nvmlDeviceGetRemappedRows") {
		return
	}
	type rows struct {
		correctable   int
		uncorrectable int
		pending       bool
		failed        bool
	}
	remapped, ok := invoke(r.q, "nvmlDeviceGetRemappedRows", func() (rows, nvml.Return) {
		c, u, pending, failed, ret := r.device.GetRemappedRows()
		return rows{c, u, pending, failed}, ret
	})
	if ok {
		r.out.Set(gpu.RemappedCorrectable, float64(remapped.correctable))
		r.out.Set(gpu.RemappedUncorrectable, float64(remapped.uncorrectable))
		r.out.Set(gpu.RemapPending, oneIf(remapped.pending))
		r.out.Set(gpu.RemapFailure, oneIf(remapped.failed))
	}
}

func oneIf(set bool) float64 {
	if set {
		return 1
	}
	return 0
}

// limits reads what limits the GPU: the reasons and times of throttled clocks, and the licence.
func (r *reader) limits() {
	call, reasons := "nvmlDeviceGetCurrentClocksEventReasons", r.device.GetCurrentClocksEventReasons
	if !r.has(call) { // before driver 535
		call, reasons = "nvmlDeviceGetCurrentClocksThrottleReasons", r.device.GetCurrentClocksThrottleReasons
	}
	measure(r, gpu.ClockReasons, 1, call, reasons)
	r.fields(
		wantedField{id: nvml.FI_DEV_PERF_POLICY_POWER, m: gpu.ViolationPower, scale: nano},
		wantedField{id: nvml.FI_DEV_PERF_POLICY_THERMAL, m: gpu.ViolationThermal, scale: nano},
		wantedField{id: nvml.FI_DEV_PERF_POLICY_SYNC_BOOST, m: gpu.ViolationSyncBoost, scale: nano},
		wantedField{id: nvml.FI_DEV_PERF_POLICY_BOARD_LIMIT, m: gpu.ViolationBoardLimit, scale: nano},
		wantedField{id: nvml.FI_DEV_PERF_POLICY_LOW_UTILIZATION, m: gpu.ViolationLowUtilization, scale: nano},
		wantedField{id: nvml.FI_DEV_PERF_POLICY_RELIABILITY, m: gpu.ViolationReliability, scale: nano},
	)
	if r.has("nvmlDeviceGetGridLicensableFeatures") {
		measure(r, gpu.VGPULicensed, 1, "nvmlDeviceGetGridLicensableFeatures", func() (int, nvml.Return) {
			grid, ret := r.device.GetGridLicensableFeatures()
			licensed := 0
			for _, feature := range grid.GridLicensableFeatures[:min(int(grid.LicensableFeaturesCount), len(grid.GridLicensableFeatures))] {
				if grid.IsGridLicenseSupported != 0 && feature.FeatureState != 0 {
					licensed = 1
				}
			}
			return licensed, ret
		})
	}
}

func (r *reader) pcie() {
	measure(r, gpu.PCIeReplays, 1, "nvmlDeviceGetPcieReplayCounter", r.device.GetPcieReplayCounter)
	// Each of the two calls takes 20 ms, so that they are made only where profiling has no value.
	if _, known := r.out.Get(gpu.PCIeTransmit); known {
		return
	}
	for _, one := range []struct {
		m    gpu.Measure
		kind nvml.PcieUtilCounter
	}{{gpu.PCIeTransmit, nvml.PCIE_UTIL_TX_BYTES}, {gpu.PCIeReceive, nvml.PCIE_UTIL_RX_BYTES}} {
		measure(r, one.m, bytesOfKB, "nvmlDeviceGetPcieThroughput", func() (uint32, nvml.Return) { return r.device.GetPcieThroughput(one.kind) })
	}
}

// nvlink reads sums over the GPU's links, and counts those that are up.
func (r *reader) nvlink() {
	sums := r.fields(
		wantedField{id: nvml.FI_DEV_NVLINK_LINK_COUNT, m: noMeasure},
		wantedField{id: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, scope: allLinks, m: gpu.NVLinkTransmitTotal, scale: bytesOfKiB},
		wantedField{id: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, scope: allLinks, m: gpu.NVLinkReceiveTotal, scale: bytesOfKiB},
		wantedField{id: nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, m: gpu.NVLinkCRCFlitErrors, scale: 1},
		wantedField{id: nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, m: gpu.NVLinkCRCDataErrors, scale: 1},
		wantedField{id: nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, m: gpu.NVLinkReplayErrors, scale: 1},
		wantedField{id: nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, m: gpu.NVLinkRecoveryErrors, scale: 1},
	)
	if len(sums) == 0 || !sums[0].ok || sums[0].value == 0 {
		return
	}
	var states []wantedField
	for link := range uint32(min(sums[0].value, maxLinks)) {
		states = append(states, wantedField{id: nvml.FI_DEV_NVLINK_GET_STATE, scope: link, m: noMeasure})
	}
	up, down := 0, 0
	for _, state := range r.fields(states...) {
		switch {
		case state.ok && state.value == uint64(nvml.FEATURE_ENABLED):
			up++
		case state.ok:
			down++
		}
	}
	if up+down > 0 {
		r.out.Set(gpu.NVLinksUp, float64(up))
		r.out.Set(gpu.NVLinksDown, float64(down))
	}
}

// noMeasure is the measure of a field that is not part of the sample.
const noMeasure = gpu.Measure(-1)

// wantedField is a field of nvmlDeviceGetFieldValues and what it measures.
type wantedField struct {
	id    uint32
	scope uint32
	m     gpu.Measure
	scale float64
}

type fieldAnswer struct {
	value uint64
	ok    bool
}

// fields reads fields in one call. The result has one number for each, or is nil.
func (r *reader) fields(wanted ...wantedField) []fieldAnswer {
	if !r.has("nvmlDeviceGetFieldValues") || len(wanted) == 0 {
		return nil
	}
	values := make([]nvml.FieldValue, len(wanted))
	for i, one := range wanted {
		values[i].FieldId, values[i].ScopeId = one.id, one.scope
	}
	if _, ok := invoke(r.q, "nvmlDeviceGetFieldValues", func() (struct{}, nvml.Return) {
		return struct{}{}, r.device.GetFieldValues(values)
	}); !ok {
		return nil
	}
	numbers := make([]fieldAnswer, len(wanted))
	for i, one := range wanted {
		if !r.q.accept("nvmlDeviceGetFieldValues", "", nvml.Return(values[i].NvmlReturn)) {
			continue
		}
		numbers[i] = fieldAnswer{value: fieldNumber(values[i]), ok: true}
		if one.m != noMeasure {
			r.out.Set(one.m, inUnit(float64(numbers[i].value), one.scale))
		}
	}
	return numbers
}
