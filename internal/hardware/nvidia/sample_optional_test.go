package nvidia_test

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// calls counts calls by name. GPUs are read at the same time.
type calls struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *calls) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[name]++
}

// countingLibrary counts the calls of the optional readings, by name.
type countingLibrary struct {
	nvml.Interface
	calls *calls
}

func (l countingLibrary) DeviceGetHandleByIndex(i int) (nvml.Device, nvml.Return) {
	device, ret := l.Interface.DeviceGetHandleByIndex(i)
	return countingDevice{device, l.calls}, ret
}

type countingDevice struct {
	nvml.Device
	calls *calls
}

func (d countingDevice) GetTopologyCommonAncestor(other nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) {
	return d.Device.GetTopologyCommonAncestor(other.(countingDevice).Device)
}

func (d countingDevice) GetPowerManagementLimit() (uint32, nvml.Return) {
	d.calls.add("GetPowerManagementLimit")
	return d.Device.GetPowerManagementLimit()
}

func (d countingDevice) GetPowerManagementDefaultLimit() (uint32, nvml.Return) {
	d.calls.add("GetPowerManagementDefaultLimit")
	return d.Device.GetPowerManagementDefaultLimit()
}

func (d countingDevice) GetPowerManagementLimitConstraints() (uint32, uint32, nvml.Return) {
	d.calls.add("GetPowerManagementLimitConstraints")
	return 100_000, 400_000, nvml.SUCCESS
}

func (d countingDevice) GetTemperatureThreshold(kind nvml.TemperatureThresholds) (uint32, nvml.Return) {
	d.calls.add("GetTemperatureThreshold")
	return d.Device.GetTemperatureThreshold(kind)
}

func (d countingDevice) GetMaxClockInfo(nvml.ClockType) (uint32, nvml.Return) {
	d.calls.add("GetMaxClockInfo")
	return 1410, nvml.SUCCESS
}

func (d countingDevice) GetPerformanceState() (nvml.Pstates, nvml.Return) {
	d.calls.add("GetPerformanceState")
	return nvml.PSTATE_8, nvml.SUCCESS
}

func (d countingDevice) GetFanSpeed() (uint32, nvml.Return) {
	d.calls.add("GetFanSpeed")
	return 30, nvml.SUCCESS
}

func (d countingDevice) GetPersistenceMode() (nvml.EnableState, nvml.Return) {
	d.calls.add("GetPersistenceMode")
	return d.Device.GetPersistenceMode()
}

func (d countingDevice) GetEccMode() (nvml.EnableState, nvml.EnableState, nvml.Return) {
	d.calls.add("GetEccMode")
	return d.Device.GetEccMode()
}

func (d countingDevice) GetCurrPcieLinkGeneration() (int, nvml.Return) {
	d.calls.add("GetCurrPcieLinkGeneration")
	return d.Device.GetCurrPcieLinkGeneration()
}

func (d countingDevice) GetCurrPcieLinkWidth() (int, nvml.Return) {
	d.calls.add("GetCurrPcieLinkWidth")
	return d.Device.GetCurrPcieLinkWidth()
}

func (d countingDevice) GetMaxPcieLinkGeneration() (int, nvml.Return) {
	d.calls.add("GetMaxPcieLinkGeneration")
	return d.Device.GetMaxPcieLinkGeneration()
}

func (d countingDevice) GetMaxPcieLinkWidth() (int, nvml.Return) {
	d.calls.add("GetMaxPcieLinkWidth")
	return d.Device.GetMaxPcieLinkWidth()
}

func (d countingDevice) GetBAR1MemoryInfo() (nvml.BAR1Memory, nvml.Return) {
	d.calls.add("GetBAR1MemoryInfo")
	return d.Device.GetBAR1MemoryInfo()
}

func (d countingDevice) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	for _, v := range values {
		if v.FieldId == nvml.FI_DEV_POWER_INSTANT {
			d.calls.add("POWER_INSTANT")
		}
	}
	return d.Device.GetFieldValues(values)
}

// TestSampleOptional checks that an optional measure costs its own call for each GPU, and nothing when it is not asked for.
func TestSampleOptional(t *testing.T) {
	for title, test := range map[string]struct {
		measures []gpu.Measure
		want     map[string]int
		values   map[gpu.Measure]float64
	}{
		"none": {},
		"one call for two measures": {
			[]gpu.Measure{gpu.PowerLimitLeast, gpu.PowerLimitMost}, map[string]int{"GetPowerManagementLimitConstraints": 4},
			map[gpu.Measure]float64{gpu.PowerLimitLeast: 100, gpu.PowerLimitMost: 400},
		},
		"one threshold": {[]gpu.Measure{gpu.TemperatureShutdown}, map[string]int{"GetTemperatureThreshold": 4}, nil},
		"states": {
			[]gpu.Measure{gpu.PerformanceState, gpu.FanSpeed, gpu.PersistenceMode, gpu.ECCMode},
			map[string]int{"GetPerformanceState": 4, "GetFanSpeed": 4, "GetPersistenceMode": 4, "GetEccMode": 4},
			map[gpu.Measure]float64{gpu.PerformanceState: 8, gpu.FanSpeed: 0.3, gpu.PersistenceMode: 1},
		},
		"all": {
			allOptional(), map[string]int{
				"GetPowerManagementLimit": 4, "GetPowerManagementDefaultLimit": 4, "GetPowerManagementLimitConstraints": 4, "GetTemperatureThreshold": 16,
				"GetMaxClockInfo": 12, "GetPerformanceState": 4, "GetFanSpeed": 4, "GetPersistenceMode": 4, "GetEccMode": 4, "GetCurrPcieLinkGeneration": 4,
				"GetCurrPcieLinkWidth": 4, "GetMaxPcieLinkGeneration": 4, "GetMaxPcieLinkWidth": 4, "GetBAR1MemoryInfo": 4, "POWER_INSTANT": 4,
			},
			map[gpu.Measure]float64{gpu.ClockSMMost: 1410e6, gpu.PCIeWidth: 16},
		},
	} {
		t.Run(title, func(t *testing.T) {
			m, err := sim.CreateWith(filepath.Join(t.TempDir(), "machine"), "t4x4", sim.Options{NoDeviceNodes: true})
			if err != nil {
				t.Fatal(err)
			}
			made := &calls{counts: map[string]int{}}
			a := nvidia.New(nvidia.Deps{Library: countingLibrary{m.NVML(), made}, Roots: rootsOf(m)})
			defer a.Close()
			if _, err := a.Scan(t.Context()); err != nil {
				t.Fatal(err)
			}
			clear(made.counts) // a scan reads some of them too
			sample := a.Sampler(nvidia.SamplerDeps{Optional: test.measures}).Sample(t.Context())
			if len(test.want) == 0 {
				test.want = map[string]int{}
			}
			if diff := cmp.Diff(test.want, made.counts); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			for m, want := range test.values {
				if got, ok := sample.GPUs[0].Get(m); !ok || got != want {
					t.Errorf("measure %d = %v, %v; want %v", m, got, ok, want)
				}
			}
		})
	}
}

// allOptional returns all measures that are read only where they are asked for.
func allOptional() []gpu.Measure {
	var all []gpu.Measure
	for m := gpu.PowerLimitSet; m <= gpu.TensorIMMAActive; m++ {
		all = append(all, m)
	}
	return all
}

// TestSampleOptionalProfiling checks that further profiling metrics are read with the others, in the same call.
func TestSampleOptionalProfiling(t *testing.T) {
	m, a := machine(t, "h100x8")
	setWork(t, m, 0, sim.Work{SM: 80, NVLinkKiB: 1 << 20})
	if _, err := a.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	plain, all := a.Sampler(nvidia.SamplerDeps{}), a.Sampler(nvidia.SamplerDeps{Optional: allOptional()})
	for _, s := range []*nvidia.Sampler{plain, all} {
		s.Sample(t.Context())
	}
	setWork(t, m, 0, sim.Work{SM: 80, NVLinkKiB: 2 << 20})
	without, with := plain.Sample(t.Context()).GPUs[0], all.Sample(t.Context()).GPUs[0]
	for m, want := range map[gpu.Measure]float64{gpu.TensorHMMAActive: 0.2, gpu.IntegerActive: 0.1} {
		if got, ok := with.Get(m); !ok || got != want {
			t.Errorf("measure %d = %v, %v; want %v", m, got, ok, want)
		}
		if _, ok := without.Get(m); ok {
			t.Errorf("measure %d was not asked for", m)
		}
	}
	if sent, ok := with.Get(gpu.NVLinkTransmit); !ok || sent <= 0 {
		t.Errorf("NVLink transmits %v, %v", sent, ok)
	}
	if names := strings.Join(failing(with), " "); names != "" {
		t.Errorf("failing: %s", names)
	}
}
