package nvidia

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// optionalReading is a call with the measures that it reads.
type optionalReading struct {
	measures []gpu.Measure
	read     func(*reader)
}

// optional makes the calls whose measures are asked for, and no other. Those of profiling are read with the other GPM metrics.
func (r *reader) optional() {
	for _, one := range slices.Concat(optionalLimits(), optionalLinks()) {
		if slices.ContainsFunc(one.measures, func(m gpu.Measure) bool { return slices.Contains(r.sampler.deps.Optional, m) }) {
			one.read(r)
		}
	}
}

// optionalNumber reads one measure by one call.
func optionalNumber[T uint32 | uint64 | int](m gpu.Measure, scale float64, call string, get func(nvml.Device) (T, nvml.Return)) optionalReading {
	return optionalReading{[]gpu.Measure{m}, func(r *reader) {
		measure(r, m, scale, call, func() (T, nvml.Return) { return get(r.device) })
	}}
}

// optionalLimits are limits of power, temperature and clocks, and states.
func optionalLimits() []optionalReading {
	threshold := func(m gpu.Measure, kind nvml.TemperatureThresholds) optionalReading {
		return optionalNumber(m, 1, "nvmlDeviceGetTemperatureThreshold", func(d nvml.Device) (uint32, nvml.Return) { return d.GetTemperatureThreshold(kind) })
	}
	clock := func(m gpu.Measure, kind nvml.ClockType) optionalReading {
		return optionalNumber(m, hertzOfMHz, "nvmlDeviceGetMaxClockInfo", func(d nvml.Device) (uint32, nvml.Return) { return d.GetMaxClockInfo(kind) })
	}
	return []optionalReading{
		optionalNumber(gpu.PowerLimitSet, milli, "nvmlDeviceGetPowerManagementLimit", nvml.Device.GetPowerManagementLimit),
		optionalNumber(gpu.PowerLimitDefault, milli, "nvmlDeviceGetPowerManagementDefaultLimit", nvml.Device.GetPowerManagementDefaultLimit),
		{[]gpu.Measure{gpu.PowerLimitLeast, gpu.PowerLimitMost}, (*reader).powerLimits},
		{[]gpu.Measure{gpu.PowerInstant}, func(r *reader) {
			r.fields(wantedField{id: nvml.FI_DEV_POWER_INSTANT, m: gpu.PowerInstant, scale: milli})
		}},
		threshold(gpu.TemperatureSlowdown, nvml.TEMPERATURE_THRESHOLD_SLOWDOWN),
		threshold(gpu.TemperatureShutdown, nvml.TEMPERATURE_THRESHOLD_SHUTDOWN),
		threshold(gpu.TemperatureMost, nvml.TEMPERATURE_THRESHOLD_GPU_MAX),
		threshold(gpu.TemperatureMemoryMost, nvml.TEMPERATURE_THRESHOLD_MEM_MAX),
		clock(gpu.ClockSMMost, nvml.CLOCK_SM), clock(gpu.ClockMemoryMost, nvml.CLOCK_MEM), clock(gpu.ClockVideoMost, nvml.CLOCK_VIDEO),
		optionalNumber(gpu.PerformanceState, 1, "nvmlDeviceGetPerformanceState", func(d nvml.Device) (uint32, nvml.Return) {
			state, ret := d.GetPerformanceState()
			if state == nvml.PSTATE_UNKNOWN {
				ret = nvml.ERROR_NOT_SUPPORTED
			}
			return uint32(state), ret
		}),
		optionalNumber(gpu.FanSpeed, percent, "nvmlDeviceGetFanSpeed", nvml.Device.GetFanSpeed),
		optionalNumber(gpu.PersistenceMode, 1, "nvmlDeviceGetPersistenceMode", func(d nvml.Device) (uint32, nvml.Return) {
			mode, ret := d.GetPersistenceMode()
			return uint32(mode), ret
		}),
		{[]gpu.Measure{gpu.ECCMode, gpu.ECCModePending}, (*reader).eccMode},
	}
}

// optionalLinks are what links the GPU to the host.
func optionalLinks() []optionalReading {
	return []optionalReading{
		optionalNumber(gpu.PCIeGeneration, 1, "nvmlDeviceGetCurrPcieLinkGeneration", nvml.Device.GetCurrPcieLinkGeneration),
		optionalNumber(gpu.PCIeWidth, 1, "nvmlDeviceGetCurrPcieLinkWidth", nvml.Device.GetCurrPcieLinkWidth),
		optionalNumber(gpu.PCIeGenerationMost, 1, "nvmlDeviceGetMaxPcieLinkGeneration", nvml.Device.GetMaxPcieLinkGeneration),
		optionalNumber(gpu.PCIeWidthMost, 1, "nvmlDeviceGetMaxPcieLinkWidth", nvml.Device.GetMaxPcieLinkWidth),
		{[]gpu.Measure{gpu.BAR1Size, gpu.BAR1Free, gpu.BAR1Used}, func(r *reader) {
			if bar1, ok := invoke(r.q, "nvmlDeviceGetBAR1MemoryInfo", r.device.GetBAR1MemoryInfo); ok {
				r.out.Set(gpu.BAR1Size, float64(bar1.Bar1Total))
				r.out.Set(gpu.BAR1Free, float64(bar1.Bar1Free))
				r.out.Set(gpu.BAR1Used, float64(bar1.Bar1Used))
			}
		}},
	}
}

// powerLimits reads between which limits the power limit can be set.
func (r *reader) powerLimits() {
	limits, ok := invoke(r.q, "nvmlDeviceGetPowerManagementLimitConstraints", func() ([2]uint32, nvml.Return) {
		least, most, ret := r.device.GetPowerManagementLimitConstraints()
		return [2]uint32{least, most}, ret
	})
	if ok {
		r.out.Set(gpu.PowerLimitLeast, inUnit(float64(limits[0]), milli))
		r.out.Set(gpu.PowerLimitMost, inUnit(float64(limits[1]), milli))
	}
}

// eccMode reads whether ECC is on, now and after the next reset.
func (r *reader) eccMode() {
	modes, ok := invoke(r.q, "nvmlDeviceGetEccMode", func() ([2]nvml.EnableState, nvml.Return) {
		now, pending, ret := r.device.GetEccMode()
		return [2]nvml.EnableState{now, pending}, ret
	})
	if ok {
		r.out.Set(gpu.ECCMode, oneIf(modes[0] == nvml.FEATURE_ENABLED))
		r.out.Set(gpu.ECCModePending, oneIf(modes[1] == nvml.FEATURE_ENABLED))
	}
}
