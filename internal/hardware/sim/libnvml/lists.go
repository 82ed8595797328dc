package main

import (
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// The functions whose shape is not regular are written here and in the files beside: those of the library, and those with arrays.

func (c call) nvmlInit_v2() nvml.Return {
	machine, ok := c.open()
	if !ok {
		return nvml.ERROR_DRIVER_NOT_LOADED
	}
	ret := machine.Init()
	if ret == nvml.ERROR_LIBRARY_NOT_FOUND {
		return nvml.ERROR_DRIVER_NOT_LOADED // the library is here, only the driver is not
	}
	return ret
}

func (c call) nvmlInit() nvml.Return          { return c.nvmlInit_v2() }
func (c call) nvmlInitWithFlags() nvml.Return { return c.nvmlInit_v2() }

func (c call) nvmlDeviceGetFieldValues() nvml.Return {
	on, ret := handleOf[nvml.Device](c, 0)
	if ret != nvml.SUCCESS {
		return ret
	}
	count := int32(c.number(1))
	if count <= 0 || count > 1024 || c.null(2) {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	return on.GetFieldValues(unsafe.Slice((*nvml.FieldValue)(c.pointer(2)), count))
}

func (c call) nvmlDeviceGetRetiredPages() nvml.Return {
	on, ret := handleOf[nvml.Device](c, 0)
	if ret != nvml.SUCCESS {
		return ret
	}
	pages, ret := on.GetRetiredPages(nvml.PageRetirementCause(c.number(1)))
	if ret != nvml.SUCCESS {
		return ret
	}
	return putList(c, 3, 2, pages)
}

// affinity writes a set of words.
func (c call) affinity(size, set int, read func(on nvml.Device, words int) ([]uint, nvml.Return)) nvml.Return {
	on, ret := handleOf[nvml.Device](c, 0)
	if ret != nvml.SUCCESS {
		return ret
	}
	words := c.number(size)
	if words == 0 || words > 4096 || c.null(set) {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	bits, ret := read(on, int(words))
	if ret != nvml.SUCCESS {
		return ret
	}
	copy(unsafe.Slice((*uint)(c.pointer(set)), words), bits)
	return nvml.SUCCESS
}

func (c call) nvmlDeviceGetCpuAffinity() nvml.Return {
	return c.affinity(1, 2, nvml.Device.GetCpuAffinity)
}

func (c call) nvmlDeviceGetCpuAffinityWithinScope() nvml.Return {
	return c.affinity(1, 2, func(on nvml.Device, words int) ([]uint, nvml.Return) {
		return on.GetCpuAffinityWithinScope(words, nvml.AffinityScope(c.number(3)))
	})
}

func (c call) nvmlDeviceGetMemoryAffinity() nvml.Return {
	return c.affinity(1, 2, func(on nvml.Device, words int) ([]uint, nvml.Return) {
		return on.GetMemoryAffinity(words, nvml.AffinityScope(c.number(3)))
	})
}

func (c call) nvmlDeviceGetTopologyNearestGpus() nvml.Return {
	on, ret := handleOf[nvml.Device](c, 0)
	if ret != nvml.SUCCESS {
		return ret
	}
	near, ret := on.GetTopologyNearestGpus(nvml.GpuTopologyLevel(c.number(1)))
	if ret != nvml.SUCCESS {
		return ret
	}
	return putAll(c, 3, 2, addresses(c, near))
}

// processes writes the processes on a GPU, in the form that a version of the function has.
func processes[T any](c call, read func(nvml.Device) ([]nvml.ProcessInfo, nvml.Return), form func(nvml.ProcessInfo) T) nvml.Return {
	on, ret := handleOf[nvml.Device](c, 0)
	if ret != nvml.SUCCESS {
		return ret
	}
	running, ret := read(on)
	if ret != nvml.SUCCESS {
		return ret
	}
	var out []T
	for _, one := range running {
		out = append(out, form(one))
	}
	return putList(c, 2, 1, out)
}

func processV1(p nvml.ProcessInfo) nvml.ProcessInfo_v1 {
	return nvml.ProcessInfo_v1{Pid: p.Pid, UsedGpuMemory: p.UsedGpuMemory}
}

func processV2(p nvml.ProcessInfo) nvml.ProcessInfo_v2 { return nvml.ProcessInfo_v2(p) }

func (c call) nvmlDeviceGetComputeRunningProcesses() nvml.Return {
	return processes(c, nvml.Device.GetComputeRunningProcesses, processV1)
}

func (c call) nvmlDeviceGetComputeRunningProcesses_v2() nvml.Return {
	return processes(c, nvml.Device.GetComputeRunningProcesses, processV2)
}

func (c call) nvmlDeviceGetComputeRunningProcesses_v3() nvml.Return {
	return processes(c, nvml.Device.GetComputeRunningProcesses, processV2)
}

func (c call) nvmlDeviceGetGraphicsRunningProcesses() nvml.Return {
	return processes(c, nvml.Device.GetGraphicsRunningProcesses, processV1)
}

func (c call) nvmlDeviceGetGraphicsRunningProcesses_v2() nvml.Return {
	return processes(c, nvml.Device.GetGraphicsRunningProcesses, processV2)
}

func (c call) nvmlDeviceGetGraphicsRunningProcesses_v3() nvml.Return {
	return processes(c, nvml.Device.GetGraphicsRunningProcesses, processV2)
}

func (c call) nvmlDeviceGetMPSComputeRunningProcesses() nvml.Return {
	return processes(c, nvml.Device.GetMPSComputeRunningProcesses, processV1)
}

func (c call) nvmlDeviceGetMPSComputeRunningProcesses_v2() nvml.Return {
	return processes(c, nvml.Device.GetMPSComputeRunningProcesses, processV2)
}

func (c call) nvmlDeviceGetMPSComputeRunningProcesses_v3() nvml.Return {
	return processes(c, nvml.Device.GetMPSComputeRunningProcesses, processV2)
}

func (c call) nvmlDeviceGetProcessUtilization() nvml.Return {
	on, ret := handleOf[nvml.Device](c, 0)
	if ret != nvml.SUCCESS {
		return ret
	}
	samples, ret := on.GetProcessUtilization(c.number(3))
	if ret != nvml.SUCCESS {
		return ret
	}
	return putList(c, 1, 2, samples)
}

// nvmlDeviceGetGpuFabricInfoV takes nvmlGpuFabricInfo_v2_t or _v3_t, by their version.
func (c call) nvmlDeviceGetGpuFabricInfoV() nvml.Return {
	on, ret := handleOf[nvml.Device](c, 0)
	if ret != nvml.SUCCESS {
		return ret
	}
	if c.null(1) {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	v2, v3 := versioned[nvml.GpuFabricInfo_v2](c, 1, 2), versioned[nvml.GpuFabricInfo_v3](c, 1, 3)
	if !v2 && !v3 {
		return nvml.ERROR_ARGUMENT_VERSION_MISMATCH
	}
	info, ret := on.GetGpuFabricInfo_v4()
	if ret != nvml.SUCCESS {
		return ret
	}
	old, ret := on.GetGpuFabricInfo()
	if ret != nvml.SUCCESS {
		return ret
	}
	if v2 {
		put(c, 1, nvml.GpuFabricInfo_v2{
			Version: get[uint32](c, 1), ClusterUuid: old.ClusterUuid, Status: old.Status, CliqueId: old.CliqueId, State: old.State, HealthMask: info.HealthMask,
		})
		return nvml.SUCCESS
	}
	put(c, 1, nvml.GpuFabricInfo_v3{
		Version: get[uint32](c, 1), ClusterUuid: old.ClusterUuid, Status: old.Status, CliqueId: old.CliqueId, State: old.State,
		HealthMask: info.HealthMask, HealthSummary: info.HealthSummary,
	})
	return nvml.SUCCESS
}
