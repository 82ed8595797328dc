package sim

import (
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// gpmSample is a snapshot of the profiling counters of a GPU or a GPU instance.
type gpmSample struct {
	mu    sync.Mutex
	freed bool
	taken *gpmCounters
}

// gpmCounters is the content of a sample. The simulator stores rates rather than counters, but for the NVLinks.
type gpmCounters struct {
	sm       uint32
	memory   uint32
	pcieKBps uint32
	// nvlinks is the number of links, nvlinkKiB what they have transmitted in each direction until then.
	nvlinks   int
	nvlinkKiB uint64
	taken     time.Time
}

var _ nvml.GpmSample = (*gpmSample)(nil)

// GpmSampleAlloc returns an empty sample.
func (l *library) GpmSampleAlloc() (nvml.GpmSample, nvml.Return) {
	if _, ret := l.enter("GpmSampleAlloc"); ret != nvml.SUCCESS {
		return nil, ret
	}
	return &gpmSample{}, nvml.SUCCESS
}

func (s *gpmSample) Free() nvml.Return { return s.set(nil, true) }

// Get fills the sample with the counters of a GPU that is not partitioned.
func (s *gpmSample) Get(handle nvml.Device) nvml.Return {
	d, ok := handle.(*device)
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	return d.GpmSampleGet(s)
}

// MigGet fills the sample with the counters of a GPU instance.
func (s *gpmSample) MigGet(handle nvml.Device, gi int) nvml.Return {
	d, ok := handle.(*device)
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	return d.GpmMigSampleGet(gi, s)
}

func (s *gpmSample) set(taken *gpmCounters, freed bool) nvml.Return {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freed {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	s.taken, s.freed = taken, freed
	return nvml.SUCCESS
}

// gpm starts a profiling call; only Hopper and later GPUs support profiling.
func (d *device) gpm(call string) (snapshot, nvml.Return) {
	c, ret := d.enter(call)
	if ret == nvml.SUCCESS && !c.profilable() {
		ret = nvml.ERROR_NOT_SUPPORTED
	}
	return c, ret
}

func (c snapshot) profilable() bool {
	return c.gpu.Model.Architecture == "Hopper" || c.gpu.Model.Architecture == "Blackwell"
}

func (d *device) GpmQueryDeviceSupport() (nvml.GpmSupport, nvml.Return) {
	return attribute(d, "GpmQueryDeviceSupport", func(c snapshot) nvml.GpmSupport {
		return nvml.GpmSupport{Version: nvml.GPM_SUPPORT_VERSION, IsSupportedDevice: uint32(bit(c.profilable()))}
	})
}

func (d *device) GpmSampleGet(sample nvml.GpmSample) nvml.Return {
	c, ret := d.gpm("GpmSampleGet")
	if ret == nvml.SUCCESS && c.state.MIGEnabled {
		ret = nvml.ERROR_NOT_SUPPORTED
	}
	if ret != nvml.SUCCESS {
		return ret
	}
	w := c.work()
	return fill(sample, gpmCounters{
		sm: w.SM, memory: w.Memory, pcieKBps: w.PCIeKBps, nvlinks: len(c.gpu.Links), nvlinkKiB: w.NVLinkKiB * uint64(len(c.gpu.Links)), taken: time.Now(),
	})
}

func (d *device) GpmMigSampleGet(gi int, sample nvml.GpmSample) nvml.Return {
	c, ret := d.gpm("GpmMigSampleGet")
	if ret == nvml.SUCCESS && c.state.instance(gi) == nil {
		ret = nvml.ERROR_NOT_FOUND
	}
	if ret != nvml.SUCCESS {
		return ret
	}
	taken := gpmCounters{pcieKBps: c.work().PCIeKBps}
	for _, p := range c.work().Programs {
		if device, alive := c.instanceOf(p.MIG); alive && device != nil && device.gi.ID == gi {
			taken.sm += p.SM
			taken.memory += p.Memory
		}
	}
	return fill(sample, taken)
}

func fill(sample nvml.GpmSample, taken gpmCounters) nvml.Return {
	own, ok := sample.(*gpmSample)
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	return own.set(&taken, false)
}

// GpmMetricsGet computes the metrics of the interval between two samples. A metric that is not simulated gets a return
// code of its own.
func (l *library) GpmMetricsGet(request *nvml.GpmMetricsGetType) nvml.Return {
	if _, ret := l.enter("GpmMetricsGet"); ret != nvml.SUCCESS {
		return ret
	}
	if request == nil || request.NumMetrics > uint32(len(request.Metrics)) {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	first, second := counters(request.Sample1), counters(request.Sample2)
	if first == nil || second == nil {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	for i := range request.Metrics[:request.NumMetrics] {
		one := &request.Metrics[i]
		value, ret := second.metric(first, nvml.GpmMetricId(one.MetricId))
		one.Value, one.NvmlReturn = value, uint32(ret)
	}
	return nvml.SUCCESS
}

func counters(sample nvml.GpmSample) *gpmCounters {
	own, ok := sample.(*gpmSample)
	if !ok {
		return nil
	}
	own.mu.Lock()
	defer own.mu.Unlock()
	return own.taken
}

// metric returns a percentage, or MiB/s for the metrics of PCIe and NVLink. The ratios are typical of training.
func (c *gpmCounters) metric(before *gpmCounters, id nvml.GpmMetricId) (float64, nvml.Return) {
	sm, memory := float64(c.sm), float64(c.memory)
	switch id {
	case nvml.GPM_METRIC_GRAPHICS_UTIL:
		return sm, nvml.SUCCESS
	case nvml.GPM_METRIC_SM_UTIL:
		return sm / 2, nvml.SUCCESS
	case nvml.GPM_METRIC_SM_OCCUPANCY, nvml.GPM_METRIC_ANY_TENSOR_UTIL, nvml.GPM_METRIC_HMMA_TENSOR_UTIL:
		return sm / 4, nvml.SUCCESS
	case nvml.GPM_METRIC_DRAM_BW_UTIL:
		return memory, nvml.SUCCESS
	case nvml.GPM_METRIC_FP64_UTIL, nvml.GPM_METRIC_DFMA_TENSOR_UTIL, nvml.GPM_METRIC_IMMA_TENSOR_UTIL:
		return 0, nvml.SUCCESS
	case nvml.GPM_METRIC_FP32_UTIL, nvml.GPM_METRIC_FP16_UTIL, nvml.GPM_METRIC_INTEGER_UTIL:
		return sm / 8, nvml.SUCCESS
	case nvml.GPM_METRIC_PCIE_TX_PER_SEC, nvml.GPM_METRIC_PCIE_RX_PER_SEC:
		return float64(c.pcieKBps) * 1000 / (1 << 20), nvml.SUCCESS
	case nvml.GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, nvml.GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC:
		return c.nvlinkRate(before)
	}
	return 0, nvml.ERROR_NOT_SUPPORTED
}

// nvlinkRate returns the MiB/s of one direction since an earlier sample; those of a GPU instance have none.
func (c *gpmCounters) nvlinkRate(before *gpmCounters) (float64, nvml.Return) {
	passed := c.taken.Sub(before.taken).Seconds()
	if c.nvlinks == 0 || passed <= 0 || c.nvlinkKiB < before.nvlinkKiB {
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
	return float64(c.nvlinkKiB-before.nvlinkKiB) / 1024 / passed, nvml.SUCCESS
}
