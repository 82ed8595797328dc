package main

import (
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// eventData is nvmlEventData_t.
type eventData struct {
	device   unsafe.Pointer
	kind     uint64
	data     uint64
	gpu      uint32
	instance uint32
}

func (c call) nvmlEventSetWait_v2() nvml.Return {
	on, ret := handleOf[nvml.EventSet](c, 0)
	if ret != nvml.SUCCESS {
		return ret
	}
	if c.null(1) {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	event, ret := on.Wait(uint32(c.number(2)))
	if ret != nvml.SUCCESS {
		return ret
	}
	put(c, 1, eventData{
		device: c.handle(event.Device), kind: event.EventType, data: event.EventData, gpu: event.GpuInstanceId, instance: event.ComputeInstanceId,
	})
	return nvml.SUCCESS
}

func (c call) nvmlEventSetWait() nvml.Return { return c.nvmlEventSetWait_v2() }

func (c call) nvmlEventSetFree() nvml.Return {
	on, ret := handleOf[nvml.EventSet](c, 0)
	if ret != nvml.SUCCESS {
		return ret
	}
	if ret = on.Free(); ret == nvml.SUCCESS {
		c.forget(c.pointer(0))
	}
	return ret
}

func (c call) nvmlGpmSampleFree() nvml.Return {
	on, ret := handleOf[nvml.GpmSample](c, 0)
	if ret != nvml.SUCCESS {
		return ret
	}
	if ret = on.Free(); ret == nvml.SUCCESS {
		c.forget(c.pointer(0))
	}
	return ret
}

func (c call) nvmlGpmQueryDeviceSupport() nvml.Return {
	on, ret := handleOf[nvml.Device](c, 0)
	if ret != nvml.SUCCESS {
		return ret
	}
	if c.null(1) {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if get[uint32](c, 1) != nvml.GPM_SUPPORT_VERSION {
		return nvml.ERROR_ARGUMENT_VERSION_MISMATCH
	}
	support, ret := on.GpmQueryDeviceSupport()
	if ret == nvml.SUCCESS {
		put(c, 1, support)
	}
	return ret
}

// gpmMetrics is nvmlGpmMetricsGet_t.
type gpmMetrics struct {
	version uint32
	count   uint32
	first   unsafe.Pointer
	second  unsafe.Pointer
	metrics [len(nvml.GpmMetricsGetType{}.Metrics)]nvml.GpmMetric
}

func (c call) nvmlGpmMetricsGet() nvml.Return {
	if c.null(0) {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	in := (*gpmMetrics)(c.pointer(0))
	if in.version != nvml.GPM_METRICS_GET_VERSION {
		return nvml.ERROR_ARGUMENT_VERSION_MISMATCH
	}
	first, _ := c.object(in.first).(nvml.GpmSample)
	second, _ := c.object(in.second).(nvml.GpmSample)
	request := nvml.GpmMetricsGetType{Version: in.version, NumMetrics: in.count, Sample1: first, Sample2: second, Metrics: in.metrics}
	ret := c.library().GpmMetricsGet(&request)
	if ret == nvml.SUCCESS {
		in.metrics = request.Metrics
	}
	return ret
}
