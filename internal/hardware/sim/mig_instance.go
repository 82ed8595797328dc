package sim

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/hardware/sim/profile"
)

// instance is the handle of a GPU instance.
type instance struct {
	unsupportedGpuInstance
	device *device
	id     int
}

var _ nvml.GpuInstance = (*instance)(nil)

func newInstance(d *device, id int) *instance {
	return handleOf(d.lib, instanceKey{d.slot, id, -1, false}, func() *instance {
		i := &instance{device: d, id: id}
		i.answer = func(call string) nvml.Return {
			_, _, ret := i.enter(call)
			return orUnsupported(ret)
		}
		return i
	})
}

// enter starts a call; it returns NOT_FOUND when the instance was destroyed.
func (i *instance) enter(call string) (*gpuInstance, *profile.GIProfile, nvml.Return) {
	c, ret := i.device.enter(call)
	if ret != nvml.SUCCESS {
		return nil, nil, ret
	}
	gi := c.state.instance(i.id)
	if gi == nil {
		return nil, nil, nvml.ERROR_NOT_FOUND
	}
	return gi, giProfile(c.gpu, gi.Profile), nvml.SUCCESS
}

func (i *instance) GetInfo() (nvml.GpuInstanceInfo, nvml.Return) {
	gi, _, ret := i.enter("GetInfo")
	if ret != nvml.SUCCESS {
		return nvml.GpuInstanceInfo{}, ret
	}
	return nvml.GpuInstanceInfo{
		Device: i.device, Id: uint32(gi.ID), ProfileId: gi.Profile,
		Placement: nvml.GpuInstancePlacement{Start: uint32(gi.Start), Size: uint32(gi.Size)},
	}, nvml.SUCCESS
}

// Destroy fails while compute instances exist.
func (i *instance) Destroy() nvml.Return {
	if _, _, ret := i.enter("Destroy"); ret != nvml.SUCCESS {
		return ret
	}
	return i.device.changeMIG("GPU instance destroyed", func(c *gpuState) nvml.Return {
		gi := c.instance(i.id)
		switch {
		case gi == nil:
			return nvml.ERROR_NOT_FOUND
		case len(gi.Compute) > 0:
			return nvml.ERROR_IN_USE
		}
		c.Instances = slices.DeleteFunc(c.Instances, func(other gpuInstance) bool { return other.ID == i.id })
		return nvml.SUCCESS
	})
}

func (i *instance) GetComputeInstanceProfileInfo(enum, engine int) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
	_, p, ret := i.enter("GetComputeInstanceProfileInfo")
	if ret != nvml.SUCCESS {
		return nvml.ComputeInstanceProfileInfo{}, ret
	}
	if enum < 0 || engine < 0 {
		return nvml.ComputeInstanceProfileInfo{}, nvml.ERROR_INVALID_ARGUMENT
	}
	if engine != nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED {
		return nvml.ComputeInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
	}
	return ciProfile(p, uint32(enum))
}

// ciCall starts a call about a compute instance profile.
func (i *instance) ciCall(call string, info *nvml.ComputeInstanceProfileInfo) (*gpuInstance, *profile.GIProfile, int, nvml.Return) {
	gi, p, ret := i.enter(call)
	if ret != nvml.SUCCESS {
		return nil, nil, 0, ret
	}
	if info == nil {
		return nil, nil, 0, nvml.ERROR_INVALID_ARGUMENT
	}
	found, ret := ciProfile(p, info.Id)
	return gi, p, int(found.SliceCount), ret
}

func (i *instance) GetComputeInstancePossiblePlacements(info *nvml.ComputeInstanceProfileInfo) ([]nvml.ComputeInstancePlacement, nvml.Return) {
	_, p, size, ret := i.ciCall("GetComputeInstancePossiblePlacements", info)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	var placements []nvml.ComputeInstancePlacement
	for start := range p.ComputeSlices {
		if ciFits(&gpuInstance{}, p, size, start) {
			placements = append(placements, nvml.ComputeInstancePlacement{Start: uint32(start), Size: uint32(size)})
		}
	}
	return placements, nvml.SUCCESS
}

func (i *instance) GetComputeInstanceRemainingCapacity(info *nvml.ComputeInstanceProfileInfo) (int, nvml.Return) {
	gi, p, size, ret := i.ciCall("GetComputeInstanceRemainingCapacity", info)
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	free := 0
	for start := range p.ComputeSlices {
		if ciFits(gi, p, size, start) {
			free++
		}
	}
	return free, nvml.SUCCESS
}

func (i *instance) CreateComputeInstance(info *nvml.ComputeInstanceProfileInfo) (nvml.ComputeInstance, nvml.Return) {
	return i.createCompute("CreateComputeInstance", info, -1)
}

func (i *instance) CreateComputeInstanceWithPlacement(info *nvml.ComputeInstanceProfileInfo,
	placement *nvml.ComputeInstancePlacement) (nvml.ComputeInstance, nvml.Return) {
	if placement == nil {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	return i.createCompute("CreateComputeInstanceWithPlacement", info, int(placement.Start))
}

func (i *instance) createCompute(call string, info *nvml.ComputeInstanceProfileInfo, start int) (nvml.ComputeInstance, nvml.Return) {
	_, p, _, ret := i.ciCall(call, info)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	var made computeInstance
	ret = i.device.changeMIG("compute instance created", func(c *gpuState) (ret nvml.Return) {
		gi := c.instance(i.id)
		if gi == nil {
			return nvml.ERROR_NOT_FOUND
		}
		made, ret = createCI(gi, p, info.Id, start)
		return ret
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	return newCompute(i, made.ID), nvml.SUCCESS
}

// GetComputeInstances lists the compute instances of one profile.
func (i *instance) GetComputeInstances(info *nvml.ComputeInstanceProfileInfo) ([]nvml.ComputeInstance, nvml.Return) {
	gi, _, _, ret := i.ciCall("GetComputeInstances", info)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	var instances []nvml.ComputeInstance
	for _, ci := range gi.Compute {
		if ci.Profile == info.Id {
			instances = append(instances, newCompute(i, ci.ID))
		}
	}
	return instances, nvml.SUCCESS
}

func (i *instance) GetComputeInstanceById(id int) (nvml.ComputeInstance, nvml.Return) {
	gi, _, ret := i.enter("GetComputeInstanceById")
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	if gi.compute(id) == nil {
		return nil, nvml.ERROR_NOT_FOUND
	}
	return newCompute(i, id), nvml.SUCCESS
}

// compute is the handle of a compute instance.
type compute struct {
	unsupportedComputeInstance
	instance *instance
	id       int
}

var _ nvml.ComputeInstance = (*compute)(nil)

func newCompute(i *instance, id int) *compute {
	return handleOf(i.device.lib, instanceKey{i.device.slot, i.id, id, false}, func() *compute {
		return &compute{unsupportedComputeInstance: unsupportedComputeInstance{answer: i.answer}, instance: i, id: id}
	})
}

func (c *compute) GetInfo() (nvml.ComputeInstanceInfo, nvml.Return) {
	gi, _, ret := c.instance.enter("GetInfo")
	if ret != nvml.SUCCESS {
		return nvml.ComputeInstanceInfo{}, ret
	}
	ci := gi.compute(c.id)
	if ci == nil {
		return nvml.ComputeInstanceInfo{}, nvml.ERROR_NOT_FOUND
	}
	return nvml.ComputeInstanceInfo{
		Device: c.instance.device, GpuInstance: c.instance, Id: uint32(ci.ID), ProfileId: ci.Profile,
		Placement: nvml.ComputeInstancePlacement{Start: uint32(ci.Start), Size: uint32(ci.Size)},
	}, nvml.SUCCESS
}

func (c *compute) Destroy() nvml.Return {
	if _, _, ret := c.instance.enter("Destroy"); ret != nvml.SUCCESS {
		return ret
	}
	return c.instance.device.changeMIG("compute instance destroyed", func(st *gpuState) nvml.Return {
		gi := st.instance(c.instance.id)
		switch {
		case gi == nil || gi.compute(c.id) == nil:
			return nvml.ERROR_NOT_FOUND
		case gi.Busy:
			return nvml.ERROR_IN_USE
		}
		gi.Compute = slices.DeleteFunc(gi.Compute, func(ci computeInstance) bool { return ci.ID == c.id })
		return nvml.SUCCESS
	})
}
