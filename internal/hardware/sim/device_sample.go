package sim

import (
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Work describes what programs do on a GPU, as its sensors report it. It is constant: repeated reads return the same
// values, counters included, so that tests can compare results. The zero value is an idle GPU.
type Work struct {
	// SM, Memory, Encoder and Decoder are percentages.
	SM      uint32 `json:"sm,omitempty"`
	Memory  uint32 `json:"memory,omitempty"`
	Encoder uint32 `json:"encoder,omitempty"`
	Decoder uint32 `json:"decoder,omitempty"`
	// PowerWatts is the power draw; 0 means the idle power.
	PowerWatts uint32 `json:"powerWatts,omitempty"`
	// Joules is the energy that this work has used since the driver was loaded or the GPU was reset.
	Joules uint64 `json:"joules,omitempty"`
	// PCIeKBps is the traffic in each direction. NVLinkKiB is what each link has sent, and also what it has received.
	PCIeKBps    uint32 `json:"pcieKBps,omitempty"`
	PCIeReplays uint32 `json:"pcieReplays,omitempty"`
	NVLinkKiB   uint64 `json:"nvlinkKiB,omitempty"`
	// ThrottledMillis is how long power and thermal limits have reduced the clocks.
	ThrottledMillis uint64    `json:"throttledMillis,omitempty"`
	Programs        []Program `json:"programs,omitempty"`
}

// Program is a process on a GPU.
type Program struct {
	PID int `json:"pid"`
	// MIG is the UUID of the MIG device that the process uses; empty for the whole GPU.
	MIG string `json:"mig,omitempty"`
	// MPS is true for a client of an MPS server.
	MPS       bool   `json:"mps,omitempty"`
	MemoryMiB uint64 `json:"memoryMiB,omitempty"`
	// SM and Memory are percentages.
	SM     uint32 `json:"sm,omitempty"`
	Memory uint32 `json:"memory,omitempty"`
}

// SetWork sets what programs do on a GPU, until the next SetWork, reset or Clear.
func (m *Machine) SetWork(gpuRef string, work Work) error {
	err := m.change(func(st *state) ([]event, error) {
		at, err := find(m.hw, st, gpuRef)
		if err != nil {
			return nil, err
		}
		c, used := snapshot{gpu: &m.hw.GPUs[at.slot], state: &st.GPUs[at.slot]}, uint64(0)
		for _, p := range work.Programs {
			used += p.MemoryMiB
			if _, known := c.instanceOf(p.MIG); !known {
				return nil, fmt.Errorf("process %d: GPU %s has no MIG device %q", p.PID, gpuRef, p.MIG)
			}
		}
		if available := c.gpu.Model.MemoryMiB - c.gpu.Model.ReservedMiB; used > available {
			return nil, fmt.Errorf("the processes use %d MiB, GPU %s has %d", used, gpuRef, available)
		}
		st.GPUs[at.slot].Work = &work
		return nil, nil
	})
	if err != nil {
		return fmt.Errorf("set work of GPU: %w", err)
	}
	return nil
}

func (c snapshot) work() *Work {
	if c.state.Work == nil {
		return &Work{}
	}
	return c.state.Work
}

// instanceOf returns the MIG device of a process, nil for the whole GPU; it returns false when the UUID is unknown.
func (c snapshot) instanceOf(uuid string) (*migDevice, bool) {
	if uuid == "" {
		return nil, true
	}
	for _, m := range migDevices(c.gpu, c.state) {
		if m.uuid == uuid {
			return &m, true
		}
	}
	return nil, false
}

// workers returns the processes of the GPU's work. A process ends when its MIG device is destroyed.
func (c snapshot) workers(mps bool) []nvml.ProcessInfo {
	var found []nvml.ProcessInfo
	for _, p := range c.work().Programs {
		device, alive := c.instanceOf(p.MIG)
		if !alive || p.MPS != mps {
			continue
		}
		one := nvml.ProcessInfo{Pid: uint32(p.PID), UsedGpuMemory: p.MemoryMiB << 20, GpuInstanceId: noInstance,
			ComputeInstanceId: noInstance}
		if device != nil {
			one.GpuInstanceId, one.ComputeInstanceId = uint32(device.gi.ID), uint32(device.ci.ID)
		}
		found = append(found, one)
	}
	return found
}

func (c snapshot) usedBytes() uint64 {
	used := uint64(0)
	for _, p := range append(c.workers(false), c.workers(true)...) {
		used += p.UsedGpuMemory
	}
	return used
}

func (c snapshot) usedBytesOf(gi int) uint64 {
	used := uint64(0)
	for _, p := range append(c.workers(false), c.workers(true)...) {
		if p.GpuInstanceId == uint32(gi) {
			used += p.UsedGpuMemory
		}
	}
	return used
}

func (c snapshot) milliwatts() uint32 {
	if watts := c.work().PowerWatts; watts > 0 {
		return watts * 1000
	}
	return c.gpu.Model.IdlePower * 1000
}

// hbm reports whether the memory is stacked; such GPUs have a memory temperature sensor and a bus of thousands of bits.
func (c snapshot) hbm() bool { return c.gpu.Model.BusWidth >= 1024 }

func (c snapshot) memoryTemperature() (uint64, bool, nvml.Return) {
	if !c.hbm() {
		return 0, false, nvml.ERROR_NOT_SUPPORTED
	}
	return uint64(c.temperature()) + 2, false, nvml.SUCCESS
}

func (c snapshot) violation(id uint32) uint64 {
	switch id {
	case nvml.FI_DEV_PERF_POLICY_POWER, nvml.FI_DEV_PERF_POLICY_THERMAL:
		return c.work().ThrottledMillis * uint64(time.Millisecond)
	}
	return 0
}

// linkTraffic returns the traffic of one link, or of all links when all bits of the scope are set.
func (c snapshot) linkTraffic(scope uint32) (uint64, bool, nvml.Return) {
	switch {
	case scope == ^uint32(0):
		return c.work().NVLinkKiB * uint64(len(c.gpu.Links)), true, nvml.SUCCESS
	case scope >= uint32(c.gpu.Model.NVLinks):
		return 0, false, nvml.ERROR_INVALID_ARGUMENT
	}
	return c.work().NVLinkKiB, true, nvml.SUCCESS
}

// meter runs a call that a GPU in MIG mode does not support, as in NVML.
func meter[T any](d *device, call string, read func(snapshot) T) (T, nvml.Return) {
	return get(d, call, func(c snapshot) (T, nvml.Return) {
		if c.state.MIGEnabled {
			var zero T
			return zero, nvml.ERROR_NOT_SUPPORTED
		}
		return read(c), nvml.SUCCESS
	})
}

func (d *device) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	return meter(d, "GetUtilizationRates", func(c snapshot) nvml.Utilization {
		return nvml.Utilization{Gpu: c.work().SM, Memory: c.work().Memory}
	})
}

// meterPeriod is the sampling period of encoder and decoder that NVML reports, in microseconds.
const meterPeriod = 167_000

func (d *device) GetEncoderUtilization() (uint32, uint32, nvml.Return) {
	share, ret := meter(d, "GetEncoderUtilization", func(c snapshot) uint32 { return c.work().Encoder })
	return share, meterPeriod, ret
}

func (d *device) GetDecoderUtilization() (uint32, uint32, nvml.Return) {
	share, ret := meter(d, "GetDecoderUtilization", func(c snapshot) uint32 { return c.work().Decoder })
	return share, meterPeriod, ret
}

// GetProcessUtilization leaves out idle processes. It returns NOT_FOUND when no process is busy, as NVML does.
func (d *device) GetProcessUtilization(lastSeen uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	busy, ret := meter(d, "GetProcessUtilization", func(c snapshot) []nvml.ProcessUtilizationSample {
		var found []nvml.ProcessUtilizationSample
		for _, p := range c.work().Programs {
			if p.SM > 0 || p.Memory > 0 {
				found = append(found, nvml.ProcessUtilizationSample{Pid: uint32(p.PID), TimeStamp: lastSeen + 1,
					SmUtil: p.SM, MemUtil: p.Memory})
			}
		}
		return found
	})
	if ret == nvml.SUCCESS && len(busy) == 0 {
		return nil, nvml.ERROR_NOT_FOUND
	}
	return busy, ret
}

// GetClockInfo derives the clocks from the load, within a range that is typical of a data center GPU.
func (d *device) GetClockInfo(kind nvml.ClockType) (uint32, nvml.Return) {
	return get(d, "GetClockInfo", func(c snapshot) (uint32, nvml.Return) {
		const idle, busy, memory, video = 345, 1410, 1215, 1275
		switch kind {
		case nvml.CLOCK_GRAPHICS, nvml.CLOCK_SM:
			return idle + (busy-idle)*c.work().SM/100, nvml.SUCCESS
		case nvml.CLOCK_MEM:
			return memory, nvml.SUCCESS
		case nvml.CLOCK_VIDEO:
			return video, nvml.SUCCESS
		}
		return 0, nvml.ERROR_INVALID_ARGUMENT
	})
}

func (d *device) GetTotalEnergyConsumption() (uint64, nvml.Return) {
	return attribute(d, "GetTotalEnergyConsumption", func(c snapshot) uint64 { return c.millijoules() })
}

// energyBefore is the energy that a new machine has already used, in millijoules.
const energyBefore = 1_000_000_000

// millijoules returns the energy of the GPU's work and of its idle time. The counter restarts with each reset of the
// GPU and each load of the driver. To make a restart visible at once and reproducible, each run counts a quarter of the
// previous run's idle energy.
func (c snapshot) millijoules() uint64 {
	return c.work().Joules*1000 + energyBefore>>min(2*c.state.Lives, 63)
}

func (d *device) GetPcieThroughput(nvml.PcieUtilCounter) (uint32, nvml.Return) {
	return attribute(d, "GetPcieThroughput", func(c snapshot) uint32 { return c.work().PCIeKBps })
}

// GetGridLicensableFeatures returns no features: a whole GPU on bare metal needs no licence.
func (d *device) GetGridLicensableFeatures() (nvml.GridLicensableFeatures, nvml.Return) {
	return attribute(d, "GetGridLicensableFeatures", func(snapshot) nvml.GridLicensableFeatures { return nvml.GridLicensableFeatures{} })
}

func (m *migHandle) GetMemoryInfo_v2() (nvml.Memory_v2, nvml.Return) {
	c, device, ret := m.enter("GetMemoryInfo_v2")
	if ret != nvml.SUCCESS {
		return nvml.Memory_v2{}, ret
	}
	total, used := device.profile.MemoryMiB<<20, c.usedBytesOf(device.gi.ID)
	return nvml.Memory_v2{Total: total, Used: used, Free: total - used}, nvml.SUCCESS
}
