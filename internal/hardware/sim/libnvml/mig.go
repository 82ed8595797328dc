package main

import (
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/hardware/sim"
)

func (c call) nvmlDeviceSetMigMode() nvml.Return {
	on, ret := handleOf[nvml.Device](c, 0)
	if ret != nvml.SUCCESS {
		return ret
	}
	if c.null(2) {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	activation, ret := on.SetMigMode(int(c.number(1)))
	put(c, 2, int32(activation))
	return ret
}

// profile has the Go calls' arguments for the profile ID of an argument.
func (c call) profile() *nvml.GpuInstanceProfileInfo {
	return &nvml.GpuInstanceProfileInfo{Id: uint32(c.number(1))}
}

func (c call) computeProfile() *nvml.ComputeInstanceProfileInfo {
	return &nvml.ComputeInstanceProfileInfo{Id: uint32(c.number(1))}
}

// onGPU answers a call with a GPU, onInstance one with a GPU instance: read returns what to write.
func onGPU[T any](c call, read func(nvml.Device) (T, nvml.Return), write func(T) nvml.Return) nvml.Return {
	on, ret := handleOf[nvml.Device](c, 0)
	if ret != nvml.SUCCESS {
		return ret
	}
	value, ret := read(on)
	if ret != nvml.SUCCESS {
		return ret
	}
	return write(value)
}

func onInstance[T any](c call, read func(nvml.GpuInstance) (T, nvml.Return), write func(T) nvml.Return) nvml.Return {
	on, ret := handleOf[nvml.GpuInstance](c, 0)
	if ret != nvml.SUCCESS {
		return ret
	}
	value, ret := read(on)
	if ret != nvml.SUCCESS {
		return ret
	}
	return write(value)
}

// putNumber returns a function that writes a count.
func (c call) putNumber(at int) func(int) nvml.Return {
	return func(value int) nvml.Return {
		if c.null(at) {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		put(c, at, uint32(value))
		return nvml.SUCCESS
	}
}

// created creates an instance. It checks the argument first: an instance without a handle could not be removed.
func (c call) created(at int, create func() nvml.Return) nvml.Return {
	if c.null(at) {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	return create()
}

func (c call) nvmlDeviceGetGpuInstancePossiblePlacements_v2() nvml.Return {
	return onGPU(c, func(on nvml.Device) ([]nvml.GpuInstancePlacement, nvml.Return) {
		return on.GetGpuInstancePossiblePlacements(c.profile())
	}, func(all []nvml.GpuInstancePlacement) nvml.Return { return putAll(c, 2, 3, all) })
}

func (c call) nvmlDeviceGetGpuInstancePossiblePlacements() nvml.Return {
	return c.nvmlDeviceGetGpuInstancePossiblePlacements_v2()
}

func (c call) nvmlDeviceGetGpuInstanceRemainingCapacity() nvml.Return {
	return onGPU(c, func(on nvml.Device) (int, nvml.Return) { return on.GetGpuInstanceRemainingCapacity(c.profile()) }, c.putNumber(2))
}

func (c call) nvmlDeviceGetGpuInstances() nvml.Return {
	return onGPU(c, func(on nvml.Device) ([]nvml.GpuInstance, nvml.Return) { return on.GetGpuInstances(c.profile()) },
		func(all []nvml.GpuInstance) nvml.Return { return putAll(c, 2, 3, addresses(c, all)) })
}

func (c call) nvmlDeviceCreateGpuInstance() nvml.Return {
	return c.created(2, func() nvml.Return {
		return onGPU(c, func(on nvml.Device) (nvml.GpuInstance, nvml.Return) { return on.CreateGpuInstance(c.profile()) }, c.putInstance(2))
	})
}

func (c call) nvmlDeviceCreateGpuInstanceWithPlacement() nvml.Return {
	if c.null(2) {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	return c.created(3, func() nvml.Return {
		return onGPU(c, func(on nvml.Device) (nvml.GpuInstance, nvml.Return) {
			placement := get[nvml.GpuInstancePlacement](c, 2)
			return on.CreateGpuInstanceWithPlacement(c.profile(), &placement)
		}, c.putInstance(3))
	})
}

func (c call) putInstance(at int) func(nvml.GpuInstance) nvml.Return {
	return func(created nvml.GpuInstance) nvml.Return {
		c.putHandle(at, created)
		return nvml.SUCCESS
	}
}

func (c call) putCompute(at int) func(nvml.ComputeInstance) nvml.Return {
	return func(created nvml.ComputeInstance) nvml.Return {
		c.putHandle(at, created)
		return nvml.SUCCESS
	}
}

func (c call) nvmlGpuInstanceGetComputeInstancePossiblePlacements() nvml.Return {
	return onInstance(c, func(on nvml.GpuInstance) ([]nvml.ComputeInstancePlacement, nvml.Return) {
		return on.GetComputeInstancePossiblePlacements(c.computeProfile())
	}, func(all []nvml.ComputeInstancePlacement) nvml.Return { return putAll(c, 2, 3, all) })
}

func (c call) nvmlGpuInstanceGetComputeInstanceRemainingCapacity() nvml.Return {
	return onInstance(c, func(on nvml.GpuInstance) (int, nvml.Return) {
		return on.GetComputeInstanceRemainingCapacity(c.computeProfile())
	}, c.putNumber(2))
}

func (c call) nvmlGpuInstanceGetComputeInstances() nvml.Return {
	return onInstance(c, func(on nvml.GpuInstance) ([]nvml.ComputeInstance, nvml.Return) {
		return on.GetComputeInstances(c.computeProfile())
	},
		func(all []nvml.ComputeInstance) nvml.Return { return putAll(c, 2, 3, addresses(c, all)) })
}

func (c call) nvmlGpuInstanceCreateComputeInstance() nvml.Return {
	return c.created(2, func() nvml.Return {
		return onInstance(c, func(on nvml.GpuInstance) (nvml.ComputeInstance, nvml.Return) {
			return on.CreateComputeInstance(c.computeProfile())
		}, c.putCompute(2))
	})
}

func (c call) nvmlGpuInstanceCreateComputeInstanceWithPlacement() nvml.Return {
	if c.null(2) {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	return c.created(3, func() nvml.Return {
		return onInstance(c, func(on nvml.GpuInstance) (nvml.ComputeInstance, nvml.Return) {
			placement := get[nvml.ComputeInstancePlacement](c, 2)
			return on.CreateComputeInstanceWithPlacement(c.computeProfile(), &placement)
		}, c.putCompute(3))
	})
}

// instanceInfo is nvmlGpuInstanceInfo_t, computeInfo nvmlComputeInstanceInfo_t.
type instanceInfo struct {
	device    unsafe.Pointer
	id        uint32
	profile   uint32
	placement nvml.GpuInstancePlacement
}

type computeInfo struct {
	device    unsafe.Pointer
	instance  unsafe.Pointer
	id        uint32
	profile   uint32
	placement nvml.ComputeInstancePlacement
}

func (c call) nvmlGpuInstanceGetInfo() nvml.Return {
	return onInstance(c, nvml.GpuInstance.GetInfo, func(info nvml.GpuInstanceInfo) nvml.Return {
		if c.null(1) {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		put(c, 1, instanceInfo{device: c.handle(info.Device), id: info.Id, profile: info.ProfileId, placement: info.Placement})
		return nvml.SUCCESS
	})
}

func (c call) nvmlComputeInstanceGetInfo_v2() nvml.Return {
	on, ret := handleOf[nvml.ComputeInstance](c, 0)
	if ret != nvml.SUCCESS {
		return ret
	}
	if c.null(1) {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	info, ret := on.GetInfo()
	if ret != nvml.SUCCESS {
		return ret
	}
	put(c, 1, computeInfo{
		device: c.handle(info.Device), instance: c.handle(info.GpuInstance), id: info.Id, profile: info.ProfileId, placement: info.Placement,
	})
	return nvml.SUCCESS
}

func (c call) nvmlComputeInstanceGetInfo() nvml.Return { return c.nvmlComputeInstanceGetInfo_v2() }

// nvmlDeviceGetGpuInstanceProfileInfoV takes nvmlGpuInstanceProfileInfo_v2_t or _v3_t, by their version.
func (c call) nvmlDeviceGetGpuInstanceProfileInfoV() nvml.Return {
	on, ret := handleOf[nvml.Device](c, 0)
	if ret != nvml.SUCCESS {
		return ret
	}
	if c.null(2) {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	v2, v3 := versioned[nvml.GpuInstanceProfileInfo_v2](c, 2, 2), versioned[nvml.GpuInstanceProfileInfo_v3](c, 2, 3)
	if !v2 && !v3 {
		return nvml.ERROR_ARGUMENT_VERSION_MISMATCH
	}
	info, ret := on.GetGpuInstanceProfileInfo(int(c.number(1)))
	if ret != nvml.SUCCESS {
		return ret
	}
	var name [96]int8
	for i, letter := range []byte("MIG " + sim.ProfileName(on, info.Id)) {
		name[i] = int8(letter)
	}
	if v2 {
		put(c, 2, nvml.GpuInstanceProfileInfo_v2{
			Version: get[uint32](c, 2), Id: info.Id, IsP2pSupported: info.IsP2pSupported, SliceCount: info.SliceCount, InstanceCount: info.InstanceCount,
			MultiprocessorCount: info.MultiprocessorCount, CopyEngineCount: info.CopyEngineCount, DecoderCount: info.DecoderCount,
			EncoderCount: info.EncoderCount, JpegCount: info.JpegCount, OfaCount: info.OfaCount, MemorySizeMB: info.MemorySizeMB, Name: name,
		})
		return nvml.SUCCESS
	}
	put(c, 2, nvml.GpuInstanceProfileInfo_v3{
		Version: get[uint32](c, 2), Id: info.Id, SliceCount: info.SliceCount, InstanceCount: info.InstanceCount,
		MultiprocessorCount: info.MultiprocessorCount, CopyEngineCount: info.CopyEngineCount, DecoderCount: info.DecoderCount,
		EncoderCount: info.EncoderCount, JpegCount: info.JpegCount, OfaCount: info.OfaCount, MemorySizeMB: info.MemorySizeMB, Name: name,
	})
	return nvml.SUCCESS
}
