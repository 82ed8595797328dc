package nvidia_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// sampler returns a sampler on a machine that was scanned.
func sampler(t testing.TB, a *nvidia.Adapter) *nvidia.Sampler {
	t.Helper()
	if _, err := a.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a.Sampler(nvidia.SamplerDeps{SourceTimeout: time.Second, Interval: 10 * time.Second})
}

func setWork(t testing.TB, m *sim.Machine, slot int, w sim.Work) {
	t.Helper()
	if err := m.SetWork(fmt.Sprint(slot), w); err != nil {
		t.Fatal(err)
	}
}

// failing returns the sources of a GPU that were not read.
func failing(c gpu.GPUSample) (names []string) {
	for _, s := range c.Sources {
		if !s.OK {
			names = append(names, s.Name)
		}
	}
	return names
}

// TestSampleUnits checks that NVML's units become base units.
func TestSampleUnits(t *testing.T) {
	m, a := machine(t, "h100x8")
	setWork(t, m, 2, sim.Work{
		SM: 80, Memory: 40, Encoder: 3, Decoder: 5, PowerWatts: 650, Joules: 7, PCIeKBps: 3, PCIeReplays: 9, NVLinkKiB: 2,
		ThrottledMillis: 1500, Programs: []sim.Program{{PID: 5, MemoryMiB: 3, SM: 70, Memory: 30}, {PID: 4, MPS: true, MemoryMiB: 2}},
	})
	s := sampler(t, a)
	s.Sample(t.Context())
	g := s.Sample(t.Context()).GPUs[2]
	for m, want := range map[gpu.Measure]float64{
		gpu.ClockSM: 1197e6, gpu.TemperatureGPU: 28, gpu.TemperatureMemory: 30, gpu.PowerUsage: 650, gpu.PowerLimit: 700, gpu.EnergyTotal: 1_000_007,
		gpu.UtilizationGPU: 0.8, gpu.UtilizationMemory: 0.4, gpu.UtilizationEncoder: 0.03, gpu.UtilizationDecoder: 0.05,
		gpu.MemoryUsed: 5 << 20, gpu.PCIeReplays: 9, gpu.PCIeTransmit: 3000, gpu.ECCUncorrectedVolatile: 0, gpu.ClockReasons: 0,
		gpu.ViolationThermal: 1.5, gpu.NVLinkTransmitTotal: 18 * 2048, gpu.NVLinksUp: 18, gpu.NVLinksDown: 0,
		gpu.GraphicsActive: 0.8, gpu.TensorActive: 0.2, gpu.DRAMActive: 0.4, gpu.RemapFailure: 0, gpu.VGPULicensed: 0,
	} {
		if got, ok := g.Get(m); !ok || got < want-1e-9*want || got > want+1e-9*want {
			t.Errorf("measure %d = %v, %v; want %v", m, got, ok, want)
		}
	}
	want := []gpu.ProcessSample{
		{PID: 4, GI: gpu.NoInstance, CI: gpu.NoInstance, MemoryKnown: true, MemoryBytes: 2 << 20},
		{PID: 5, GI: gpu.NoInstance, CI: gpu.NoInstance, MemoryKnown: true, MemoryBytes: 3 << 20, SM: 0.7, Memory: 0.3},
	}
	if diff := cmp.Diff(want, g.Processes); diff != "" || !g.ProcessesKnown || !g.ActivityKnown {
		t.Error(diff, g.ProcessesKnown, g.ActivityKnown)
	}
	if names := failing(g); names != nil {
		t.Errorf("failing: %v", names)
	}
}

// TestSampleAbsent checks that a measure that a GPU does not have is absent, not 0.
func TestSampleAbsent(t *testing.T) {
	for name, test := range map[string]struct {
		profile string
		absent  []gpu.Measure
		present []gpu.Measure
	}{
		"T4": {"t4x4",
			[]gpu.Measure{gpu.TemperatureMemory, gpu.NVLinkTransmitTotal, gpu.NVLinksUp, gpu.RemapPending, gpu.GraphicsActive},
			[]gpu.Measure{gpu.RetiredSingleBit, gpu.RetiredPending, gpu.PCIeTransmit}},
		"A100": {"a100x8-40g",
			[]gpu.Measure{gpu.RetiredSingleBit, gpu.RetiredPending, gpu.GraphicsActive, gpu.SMActive},
			[]gpu.Measure{gpu.TemperatureMemory, gpu.RemapPending, gpu.NVLinksUp, gpu.PCIeTransmit}},
	} {
		t.Run(name, func(t *testing.T) {
			_, a := machine(t, test.profile)
			s := sampler(t, a)
			s.Sample(t.Context())
			g := s.Sample(t.Context()).GPUs[0]
			for _, m := range test.absent {
				if value, ok := g.Get(m); ok {
					t.Errorf("measure %d = %v, want none", m, value)
				}
			}
			for _, m := range test.present {
				if _, ok := g.Get(m); !ok {
					t.Errorf("measure %d is missing", m)
				}
			}
			if names := failing(g); names != nil {
				t.Errorf("failing: %v", names) // an unsupported measure is not a failure
			}
		})
	}
}

// processLibrary answers the lists of processes with other return codes.
type processLibrary struct {
	nvml.Interface
	plain nvml.Return
	mps   nvml.Return
}

func (l processLibrary) DeviceGetHandleByIndex(i int) (nvml.Device, nvml.Return) {
	device, ret := l.Interface.DeviceGetHandleByIndex(i)
	return processDevice{device, l}, ret
}

type processDevice struct {
	nvml.Device
	library processLibrary
}

func (d processDevice) GetTopologyCommonAncestor(other nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) {
	return d.Device.GetTopologyCommonAncestor(other.(processDevice).Device)
}

func (d processDevice) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	if d.library.plain != nvml.SUCCESS {
		return nil, d.library.plain
	}
	return d.Device.GetComputeRunningProcesses()
}

func (d processDevice) GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	if d.library.mps != nvml.SUCCESS {
		return nil, d.library.mps
	}
	return d.Device.GetMPSComputeRunningProcesses()
}

// TestSampleProcessesKnown: without the list of MPS clients the processes are not known. A GPU without MPS has no such clients.
func TestSampleProcessesKnown(t *testing.T) {
	for title, test := range map[string]struct {
		plain nvml.Return
		mps   nvml.Return
		want  []int // the PIDs
		known bool
		ok    bool
	}{
		"both lists":                       {want: []int{4, 5}, known: true, ok: true},
		"MPS is not supported":             {mps: nvml.ERROR_NOT_SUPPORTED, want: []int{5}, known: true, ok: true},
		"the driver does not know MPS":     {mps: nvml.ERROR_FUNCTION_NOT_FOUND, want: []int{5}, known: true, ok: true},
		"the MPS clients cannot be read":   {mps: nvml.ERROR_UNKNOWN},
		"the GPU is not found":             {mps: nvml.ERROR_NOT_FOUND, ok: true},
		"the MPS clients are not readable": {mps: nvml.ERROR_NO_PERMISSION, ok: true},
		"the others cannot be read":        {plain: nvml.ERROR_UNKNOWN},
	} {
		t.Run(title, func(t *testing.T) {
			m, err := sim.CreateWith(filepath.Join(t.TempDir(), "machine"), "t4x4", sim.Options{NoDeviceNodes: true})
			if err != nil {
				t.Fatal(err)
			}
			setWork(t, m, 0, sim.Work{Programs: []sim.Program{{PID: 5, MemoryMiB: 3}, {PID: 4, MPS: true, MemoryMiB: 2}}})
			a := nvidia.New(nvidia.Deps{Library: processLibrary{m.NVML(), test.plain, test.mps}, Roots: rootsOf(m)})
			defer a.Close()
			g := sampler(t, a).Sample(t.Context()).GPUs[0]
			var got []int
			for _, p := range g.Processes {
				got = append(got, p.PID)
			}
			if diff := cmp.Diff(test.want, got); diff != "" || g.ProcessesKnown != test.known || (failing(g) == nil) != test.ok {
				t.Errorf("known %v, failing %v, processes (-want +got):\n%s", g.ProcessesKnown, failing(g), diff)
			}
		})
	}
}

// TestSampleHang checks that a GPU that hangs loses its own sample only, for as long as it hangs. No second goroutine
// waits for it, and a hang does not delay the end of Run.
func TestSampleHang(t *testing.T) {
	m, a := machine(t, "a100x8-40g")
	synctest.Test(t, func(t *testing.T) {
		s := sampler(t, a)
		inject(t, m, sim.Fault{GPU: "1", Hang: "GetPowerUsage"})
		for pass := range 3 {
			began := time.Now()
			sample := s.Sample(t.Context())
			if took := time.Since(began); pass == 0 && took < time.Second || took > 2*time.Second {
				t.Errorf("pass %d took %v", pass, took)
			}
			for i, g := range sample.GPUs {
				names := failing(g)
				if _, ok := g.Get(gpu.PowerUsage); ok == (i == 1) || (len(names) > 0) != (i == 1) {
					t.Errorf("pass %d, GPU %d: power known %v, failing %v", pass, i, ok, names)
				}
			}
			hung := sample.GPUs[1]
			_, warm := hung.Get(gpu.TemperatureGPU)
			if trouble := hung.Sources[len(hung.Sources)-1].Trouble; warm != (pass == 0) || !strings.Contains(trouble, "nvmlDeviceGetPowerUsage has not returned within 1s") {
				t.Errorf("pass %d: temperature known %v, trouble %q", pass, warm, trouble)
			}
		}
		clearFaults(t, m, "1")
		time.Sleep(time.Second)
		if names := failing(s.Sample(t.Context()).GPUs[1]); names != nil {
			t.Errorf("after the hang: failing %v", names)
		}

		inject(t, m, sim.Fault{GPU: "1", Hang: sim.AllCalls, HangFor: time.Minute})
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		time.AfterFunc(100*time.Millisecond, cancel)
		if err := s.Run(ctx, func(gpu.Sample) { t.Error("a sample that was cut off was returned") }); err != nil || time.Since(began) > time.Second {
			t.Errorf("Run = %v after %v", err, time.Since(began))
		}
		time.Sleep(10 * time.Minute) // the hung calls of the source return, and the goroutine ends
	})
}

// TestSampleRun checks that there is one sample at each interval, the first immediately.
func TestSampleRun(t *testing.T) {
	_, a := machine(t, "t4x4")
	synctest.Test(t, func(t *testing.T) {
		s := sampler(t, a)
		ctx, cancel := context.WithTimeout(t.Context(), 45*time.Second)
		defer cancel()
		passes := 0
		if err := s.Run(ctx, func(sample gpu.Sample) {
			passes++
			if len(sample.GPUs) != 4 {
				t.Errorf("pass %d has %d GPUs", passes, len(sample.GPUs))
			}
		}); err != nil || passes != 5 {
			t.Errorf("Run = %v after %d passes, want 5", err, passes)
		}
	})
}

// TestSampleLost checks that a GPU that is lost after the scan affects no other.
func TestSampleLost(t *testing.T) {
	m, a := machine(t, "a100x8-40g")
	s := sampler(t, a)
	inject(t, m, sim.Fault{GPU: "3", LostSilently: true})
	sample := s.Sample(t.Context())
	for i, g := range sample.GPUs {
		if (len(failing(g)) > 0) != (i == 3) {
			t.Errorf("GPU %d: failing %v", i, failing(g))
		}
	}
	if _, err := a.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(s.Sample(t.Context()).GPUs); n != 7 {
		t.Errorf("after a scan %d GPUs are sampled, want 7", n)
	}
}

// TestSampleSuspended: no call is made while the driver is closed, and all sources are read again afterwards.
func TestSampleSuspended(t *testing.T) {
	_, a := machine(t, "h100x8")
	if sample := a.Sampler(nvidia.SamplerDeps{}).Sample(t.Context()); len(sample.GPUs) != 0 {
		t.Errorf("before the first scan: %d GPUs", len(sample.GPUs))
	}
	s := sampler(t, a)
	s.Sample(t.Context())
	resume, err := a.Suspend(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.Sample(t.Context()).GPUs); n != 0 {
		t.Errorf("suspended: %d GPUs", n)
	}
	resume()
	if _, err := a.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	g := s.Sample(t.Context()).GPUs[0]
	if _, ok := g.Get(gpu.GraphicsActive); ok {
		t.Error("profiling compares with a sample of another session")
	}
	if g = s.Sample(t.Context()).GPUs[0]; len(failing(g)) > 0 {
		t.Errorf("failing %v", failing(g))
	}
	if _, ok := g.Get(gpu.GraphicsActive); !ok {
		t.Error("no profiling in the second pass")
	}
}

// TestSampleFaults: with any faults and repairs between passes, a pass has the GPUs of the last scan in its order, each source
// is reported once, and a GPU without faults is read completely.
func TestSampleFaults(t *testing.T) {
	m, a := machine(t, "a100x8-40g")
	s := sampler(t, a)
	rapid.Check(t, func(rt *rapid.T) {
		bad := map[int]bool{}
		for range rapid.IntRange(0, 4).Draw(rt, "faults") {
			slot := rapid.IntRange(0, 7).Draw(rt, "slot")
			bad[slot] = true
			fault := rapid.SampledFrom([]sim.Fault{{LostSilently: true}, {Lost: true}, {OffBus: true}}).Draw(rt, "fault")
			fault.GPU = fmt.Sprint(slot)
			inject(t, m, fault)
		}
		sample := s.Sample(t.Context())
		if len(sample.GPUs) != 8 {
			rt.Fatalf("%d GPUs", len(sample.GPUs))
		}
		for i, g := range sample.GPUs {
			names := []string{}
			for _, source := range g.Sources {
				names = append(names, source.Name)
			}
			if sorted := slices.Sorted(slices.Values(names)); len(slices.Compact(sorted)) != len(names) || len(names) != 12 {
				rt.Fatalf("GPU %d has sources %v", i, names)
			}
			if (len(failing(g)) > 0) != bad[i] {
				rt.Fatalf("GPU %d, broken %v: failing %v", i, bad[i], failing(g))
			}
		}
		clearFaults(t, m, sim.ClearAll)
	})
}

// BenchmarkSample is a pass over 8 simulated GPUs with a process each.
func BenchmarkSample(b *testing.B) {
	m, a := machine(b, "h100x8")
	for slot := range 8 {
		setWork(b, m, slot, sim.Work{SM: 80, Programs: []sim.Program{{PID: slot + 1, MemoryMiB: 100, SM: 80}}})
	}
	s := sampler(b, a)
	b.ReportAllocs()
	for b.Loop() {
		s.Sample(b.Context())
	}
}
