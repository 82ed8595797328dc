package sim

import (
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func TestSetWork(t *testing.T) {
	m := newMachine(t, "a100x8-40g")
	d := gpu(t, open(t, m), 1)
	before, _ := d.GetMemoryInfo_v2()
	if _, ret := d.GetProcessUtilization(0); ret != nvml.ERROR_NOT_FOUND {
		t.Errorf("processes of an idle GPU: %v", ret)
	}
	if err := m.SetWork("1", Work{SM: 50, PowerWatts: 300, Programs: []Program{{PID: 7, MemoryMiB: 1024, SM: 50},
		{PID: 8, MPS: true, MemoryMiB: 1}}}); err != nil {
		t.Fatal(err)
	}
	after, _ := d.GetMemoryInfo_v2()
	power, _ := d.GetPowerUsage()
	rates, _ := d.GetUtilizationRates()
	running, _ := d.GetComputeRunningProcesses()
	clients, _ := d.GetMPSComputeRunningProcesses()
	busy, _ := d.GetProcessUtilization(41)
	if after.Used != 1025<<20 || before.Free-after.Free != 1025<<20 || power != 300_000 || rates.Gpu != 50 {
		t.Errorf("memory %+v, power %d, rates %+v", after, power, rates)
	}
	if len(running) != 1 || running[0].Pid != 7 || len(clients) != 1 || clients[0].Pid != 8 || len(busy) != 1 || busy[0].TimeStamp <= 41 {
		t.Errorf("processes %+v, clients %+v, busy %+v", running, clients, busy)
	}
	if _, ret := d.GpmQueryDeviceSupport(); ret != nvml.SUCCESS {
		t.Error(ret)
	}
	if ret := d.GpmSampleGet(&gpmSample{}); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("profiling on Ampere: %v", ret)
	}
	for name, work := range map[string]Work{
		"no MIG device": {Programs: []Program{{PID: 1, MIG: "MIG-none"}}},
		"the processes": {Programs: []Program{{PID: 1, MemoryMiB: 1 << 20}}},
	} {
		if err := m.SetWork("1", work); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("SetWork = %v, want %q", err, name)
		}
	}
	if err := m.Clear("1"); err != nil {
		t.Fatal(err)
	}
	if rates, _ := d.GetUtilizationRates(); rates.Gpu != 0 {
		t.Error("work outlasts Clear")
	}
}

// TestMeteredInMIG checks that a partitioned GPU reports no utilization, and that its MIG devices report memory.
func TestMeteredInMIG(t *testing.T) {
	m := newMachine(t, "h100x8")
	lib := open(t, m)
	d := gpu(t, lib, 0)
	mig, _, _ := firstMIG(t, d)
	uuid, _ := mig.GetUUID()
	gi, _ := mig.GetGpuInstanceId()
	if err := m.SetWork("0", Work{SM: 9, Programs: []Program{{PID: 7, MIG: uuid, MemoryMiB: 100, SM: 40}}}); err != nil {
		t.Fatal(err)
	}
	if _, ret := d.GetUtilizationRates(); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("utilization in MIG mode: %v", ret)
	}
	if memory, ret := mig.GetMemoryInfo_v2(); ret != nvml.SUCCESS || memory.Used != 100<<20 || memory.Free+memory.Used != memory.Total {
		t.Errorf("memory %+v, %v", memory, ret)
	}
	first, _ := lib.GpmSampleAlloc()
	second, _ := lib.GpmSampleAlloc()
	request := &nvml.GpmMetricsGetType{NumMetrics: 2, Sample1: first, Sample2: second}
	request.Metrics[0].MetricId = uint32(nvml.GPM_METRIC_GRAPHICS_UTIL)
	request.Metrics[1].MetricId = uint32(nvml.GPM_METRIC_NVDEC_0_UTIL)
	if ret := lib.GpmMetricsGet(request); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("metrics of empty samples: %v", ret)
	}
	for _, sample := range []nvml.GpmSample{first, second} {
		if ret := sample.MigGet(d, gi); ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
	}
	if ret := lib.GpmMetricsGet(request); ret != nvml.SUCCESS || request.Metrics[0].Value != 40 ||
		nvml.Return(request.Metrics[1].NvmlReturn) != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("metrics: %v, %+v", ret, request.Metrics[:2])
	}
	if ret := first.Get(d); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("profiling of a partitioned GPU: %v", ret)
	}
	if ret := first.Free(); ret != nvml.SUCCESS {
		t.Error(ret)
	}
	if ret := first.Free(); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("freed twice: %v", ret)
	}
}
