package nvidia

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// mig reads the MIG devices of the GPU, with their memory.
func (r *reader) mig() {
	if !r.has("nvmlDeviceGetMigMode") || !r.has("nvmlDeviceGetGpuInstanceId") || !r.has("nvmlDeviceGetComputeInstanceId") {
		return
	}
	mode, ok := invoke(r.q, "nvmlDeviceGetMigMode", func() (int, nvml.Return) {
		current, _, ret := r.device.GetMigMode()
		return current, ret
	})
	if !ok || mode != nvml.DEVICE_MIG_ENABLE {
		return
	}
	r.migOn = true
	count, _ := invoke(r.q, "nvmlDeviceGetMaxMigDeviceCount", r.device.GetMaxMigDeviceCount)
	for index := range min(count, maxMIG) {
		// The numbers have gaps: NOT_FOUND does not mean the end.
		device, ok := invoke(r.q, "nvmlDeviceGetMigDeviceHandleByIndex", func() (nvml.Device, nvml.Return) {
			return r.device.GetMigDeviceHandleByIndex(index)
		})
		if !ok {
			continue
		}
		uuid, ok1 := invoke(r.q, "nvmlDeviceGetUUID", device.GetUUID)
		gi, ok2 := invoke(r.q, "nvmlDeviceGetGpuInstanceId", device.GetGpuInstanceId)
		ci, ok3 := invoke(r.q, "nvmlDeviceGetComputeInstanceId", device.GetComputeInstanceId)
		if ok1 && ok2 && ok3 {
			one := gpu.DeviceSample{UUID: gpu.UUID(uuid), GI: gi, CI: ci}
			r.readMemory(device, &one.Readings)
			r.out.Devices = append(r.out.Devices, one)
		}
	}
}

// profiledMetric is a GPM metric with what it measures.
type profiledMetric struct {
	id    nvml.GpmMetricId
	m     gpu.Measure
	scale float64
}

// profiled returns the GPM metrics that are read: percentages, and MiB/s for the links. One call reads all of them.
func (s *Sampler) profiled() []profiledMetric {
	all := []profiledMetric{
		{nvml.GPM_METRIC_GRAPHICS_UTIL, gpu.GraphicsActive, percent},
		{nvml.GPM_METRIC_SM_UTIL, gpu.SMActive, percent},
		{nvml.GPM_METRIC_SM_OCCUPANCY, gpu.SMOccupancy, percent},
		{nvml.GPM_METRIC_ANY_TENSOR_UTIL, gpu.TensorActive, percent},
		{nvml.GPM_METRIC_DRAM_BW_UTIL, gpu.DRAMActive, percent},
		{nvml.GPM_METRIC_FP64_UTIL, gpu.FP64Active, percent},
		{nvml.GPM_METRIC_FP32_UTIL, gpu.FP32Active, percent},
		{nvml.GPM_METRIC_FP16_UTIL, gpu.FP16Active, percent},
		{nvml.GPM_METRIC_PCIE_TX_PER_SEC, gpu.PCIeTransmit, bytesOfMiB},
		{nvml.GPM_METRIC_PCIE_RX_PER_SEC, gpu.PCIeReceive, bytesOfMiB},
		{nvml.GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, gpu.NVLinkTransmit, bytesOfMiB},
		{nvml.GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, gpu.NVLinkReceive, bytesOfMiB},
		{nvml.GPM_METRIC_INTEGER_UTIL, gpu.IntegerActive, percent},
		{nvml.GPM_METRIC_DFMA_TENSOR_UTIL, gpu.TensorDFMAActive, percent},
		{nvml.GPM_METRIC_HMMA_TENSOR_UTIL, gpu.TensorHMMAActive, percent},
		{nvml.GPM_METRIC_IMMA_TENSOR_UTIL, gpu.TensorIMMAActive, percent},
	}
	return slices.DeleteFunc(all, func(one profiledMetric) bool { return one.m.Optional() && !slices.Contains(s.deps.Optional, one.m) })
}

// profiling reads GPM, which Hopper and later have: of the GPU, or of each GPU instance. Its numbers are between two samples,
// so the first pass has none.
func (r *reader) profiling() {
	for _, symbol := range []string{"nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet"} {
		if !r.has(symbol) {
			return
		}
	}
	if r.gpu.profilable == nil {
		support, ok := invoke(r.q, "nvmlGpmQueryDeviceSupport", r.device.GpmQueryDeviceSupport)
		if !ok && r.q.missing != nil {
			return
		}
		yes := ok && support.IsSupportedDevice != 0
		r.gpu.profilable = &yes
	}
	if !*r.gpu.profilable {
		return
	}
	present := map[int]bool{}
	if !r.migOn {
		present[gpu.NoInstance] = true
		r.profile(gpu.NoInstance, &r.out.Readings)
	}
	for i := range r.out.Devices {
		one := &r.out.Devices[i]
		if !present[one.GI] {
			present[one.GI] = true
			r.profile(one.GI, &one.Readings)
			continue
		}
		for _, other := range r.out.Devices[:i] { // compute instances of one GPU instance share its numbers
			if other.GI == one.GI {
				r.copyProfile(&one.Readings, &other.Readings)
				break
			}
		}
	}
	for gi, sample := range r.gpu.profiling {
		if !present[gi] {
			sample.Free()
			delete(r.gpu.profiling, gi)
		}
	}
}

func (r *reader) copyProfile(to, from *gpu.Readings) {
	for _, one := range r.sampler.profiled() {
		if value, ok := from.Get(one.m); ok {
			to.Set(one.m, value)
		}
	}
}

// profile takes a sample and compares it with the last.
func (r *reader) profile(gi int, into *gpu.Readings) {
	library := r.sampler.adapter.library
	now, ok := invoke(r.q, "nvmlGpmSampleAlloc", library.GpmSampleAlloc)
	if !ok {
		return
	}
	call := "nvmlGpmSampleGet"
	if gi != gpu.NoInstance {
		call = "nvmlGpmMigSampleGet"
	}
	_, ok = invoke(r.q, call, func() (struct{}, nvml.Return) {
		if gi == gpu.NoInstance {
			return struct{}{}, now.Get(r.device)
		}
		return struct{}{}, now.MigGet(r.device, gi)
	})
	if !ok {
		now.Free()
		return
	}
	before := r.gpu.profiling[gi]
	r.gpu.profiling[gi] = now
	if before == nil {
		return
	}
	defer before.Free()
	wanted := r.sampler.profiled()
	// The type is large (20 kB), and go-nvml copies it a few times; it is freed after the pass.
	request := &nvml.GpmMetricsGetType{NumMetrics: uint32(len(wanted)), Sample1: before, Sample2: now}
	for i, one := range wanted {
		request.Metrics[i].MetricId = uint32(one.id)
	}
	if _, ok := invoke(r.q, "nvmlGpmMetricsGet", func() (struct{}, nvml.Return) {
		return struct{}{}, library.GpmMetricsGet(request)
	}); !ok {
		return
	}
	for i, one := range wanted {
		if nvml.Return(request.Metrics[i].NvmlReturn) == nvml.SUCCESS {
			into.Set(one.m, inUnit(request.Metrics[i].Value, one.scale))
		}
	}
}
