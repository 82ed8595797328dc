package sim

import (
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Work is what programs do on a card, as its meters show it. It stands still: the same work is read again and
// again, counters included, so that what is made of it can be compared. The zero value is an idle card.
type Work struct {
	// SM, Memory, Encoder and Decoder are percentages.
	SM      uint32 `json:"sm,omitempty"`
	Memory  uint32 `json:"memory,omitempty"`
	Encoder uint32 `json:"encoder,omitempty"`
	Decoder uint32 `json:"decoder,omitempty"`
	// PowerWatts is 0 for the idle power.
	PowerWatts uint32 `json:"powerWatts,omitempty"`
	// Joules is the energy of this work since the driver was loaded or the card was reset.
	Joules uint64 `json:"joules,omitempty"`
	// PCIeKBps is the traffic in each direction; NVLinkKiB is what each link has sent, and received, so far.
	PCIeKBps    uint32 `json:"pcieKBps,omitempty"`
	PCIeReplays uint32 `json:"pcieReplays,omitempty"`
	NVLinkKiB   uint64 `json:"nvlinkKiB,omitempty"`
	// ThrottledMillis is how long power and heat held down the clocks.
	ThrottledMillis uint64    `json:"throttledMillis,omitempty"`
	Programs        []Program `json:"programs,omitempty"`
}

// Program is a process on a card.
type Program struct {
	PID int `json:"pid"`
	// MIG is the UUID of the MIG device that it uses; empty for the card itself.
	MIG string `json:"mig,omitempty"`
	// MPS is true for a client of an MPS server.
	MPS       bool   `json:"mps,omitempty"`
	MemoryMiB uint64 `json:"memoryMiB,omitempty"`
	// SM and Memory are percentages.
	SM     uint32 `json:"sm,omitempty"`
	Memory uint32 `json:"memory,omitempty"`
}

// SetWork says what programs do on a GPU from now on, until it is set anew, reset or cleared.
func (m *Machine) SetWork(gpuRef string, work Work) error {
	err := m.change(func(st *state) ([]event, error) {
		at, err := find(m.hw, st, gpuRef)
		if err != nil {
			return nil, err
		}
		c, used := condition{card: &m.hw.GPUs[at.slot], state: &st.GPUs[at.slot]}, uint64(0)
		for _, p := range work.Programs {
			used += p.MemoryMiB
			if _, known := c.instanceOf(p.MIG); !known {
				return nil, fmt.Errorf("process %d: GPU %s has no MIG device %q", p.PID, gpuRef, p.MIG)
			}
		}
		if room := c.card.Model.MemoryMiB - c.card.Model.ReservedMiB; used > room {
			return nil, fmt.Errorf("the processes use %d MiB, GPU %s has %d", used, gpuRef, room)
		}
		st.GPUs[at.slot].Work = &work
		return nil, nil
	})
	if err != nil {
		return fmt.Errorf("set work of GPU: %w", err)
	}
	return nil
}

func (c condition) work() *Work {
	if c.state.Work == nil {
		return &Work{}
	}
	return c.state.Work
}

// instanceOf finds the MIG device of a process, which is none for the card itself; false when it is unknown.
func (c condition) instanceOf(uuid string) (*migDevice, bool) {
	if uuid == "" {
		return nil, true
	}
	for _, m := range migDevices(c.card, c.state) {
		if m.uuid == uuid {
			return &m, true
		}
	}
	return nil, false
}

// workers are the processes of the card's work; one whose MIG device was destroyed has ended.
func (c condition) workers(mps bool) []nvml.ProcessInfo {
	var found []nvml.ProcessInfo
	for _, p := range c.work().Programs {
		device, alive := c.instanceOf(p.MIG)
		if !alive || p.MPS != mps {
			continue
		}
		one := nvml.ProcessInfo{Pid: uint32(p.PID), UsedGpuMemory: p.MemoryMiB << 20, GpuInstanceId: noInstance, ComputeInstanceId: noInstance}
		if device != nil {
			one.GpuInstanceId, one.ComputeInstanceId = uint32(device.gi.ID), uint32(device.ci.ID)
		}
		found = append(found, one)
	}
	return found
}

func (c condition) usedBytes() uint64 {
	used := uint64(0)
	for _, p := range append(c.workers(false), c.workers(true)...) {
		used += p.UsedGpuMemory
	}
	return used
}

func (c condition) usedBytesOf(gi int) uint64 {
	used := uint64(0)
	for _, p := range append(c.workers(false), c.workers(true)...) {
		if p.GpuInstanceId == uint32(gi) {
			used += p.UsedGpuMemory
		}
	}
	return used
}

func (c condition) milliwatts() uint32 {
	if watts := c.work().PowerWatts; watts > 0 {
		return watts * 1000
	}
	return c.card.Model.IdlePower * 1000
}

// hbm tells whether the memory is stacked: such cards have a sensor in it, and a bus of thousands of bits.
func (c condition) hbm() bool { return c.card.Model.BusWidth >= 1024 }

func (c condition) memoryTemperature() (uint64, bool, nvml.Return) {
	if !c.hbm() {
		return 0, false, nvml.ERROR_NOT_SUPPORTED
	}
	return uint64(c.temperature()) + 2, false, nvml.SUCCESS
}

func (c condition) violation(id uint32) uint64 {
	switch id {
	case nvml.FI_DEV_PERF_POLICY_POWER, nvml.FI_DEV_PERF_POLICY_THERMAL:
		return c.work().ThrottledMillis * uint64(time.Millisecond)
	}
	return 0
}

// linkTraffic is that of one link, or of all with the scope of all ones.
func (c condition) linkTraffic(scope uint32) (uint64, bool, nvml.Return) {
	switch {
	case scope == ^uint32(0):
		return c.work().NVLinkKiB * uint64(len(c.card.Links)), true, nvml.SUCCESS
	case scope >= uint32(c.card.Model.NVLinks):
		return 0, false, nvml.ERROR_INVALID_ARGUMENT
	}
	return c.work().NVLinkKiB, true, nvml.SUCCESS
}

// meter is a call that a card in MIG mode does not support, as in NVML.
func meter[T any](d *device, call string, read func(condition) T) (T, nvml.Return) {
	return get(d, call, func(c condition) (T, nvml.Return) {
		if c.state.MIGEnabled {
			var zero T
			return zero, nvml.ERROR_NOT_SUPPORTED
		}
		return read(c), nvml.SUCCESS
	})
}

func (d *device) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	return meter(d, "GetUtilizationRates", func(c condition) nvml.Utilization {
		return nvml.Utilization{Gpu: c.work().SM, Memory: c.work().Memory}
	})
}

// meterPeriod is what NVML says it averages the encoder and decoder over, in microseconds.
const meterPeriod = 167_000

func (d *device) GetEncoderUtilization() (uint32, uint32, nvml.Return) {
	share, ret := meter(d, "GetEncoderUtilization", func(c condition) uint32 { return c.work().Encoder })
	return share, meterPeriod, ret
}

func (d *device) GetDecoderUtilization() (uint32, uint32, nvml.Return) {
	share, ret := meter(d, "GetDecoderUtilization", func(c condition) uint32 { return c.work().Decoder })
	return share, meterPeriod, ret
}

// GetProcessUtilization leaves out idle processes, and answers NOT_FOUND when there is no other, as NVML does.
func (d *device) GetProcessUtilization(lastSeen uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	busy, ret := meter(d, "GetProcessUtilization", func(c condition) []nvml.ProcessUtilizationSample {
		var found []nvml.ProcessUtilizationSample
		for _, p := range c.work().Programs {
			if p.SM > 0 || p.Memory > 0 {
				found = append(found, nvml.ProcessUtilizationSample{Pid: uint32(p.PID), TimeStamp: lastSeen + 1, SmUtil: p.SM, MemUtil: p.Memory})
			}
		}
		return found
	})
	if ret == nvml.SUCCESS && len(busy) == 0 {
		return nil, nvml.ERROR_NOT_FOUND
	}
	return busy, ret
}

// GetClockInfo follows the work, between clocks that are typical of a data center card.
func (d *device) GetClockInfo(kind nvml.ClockType) (uint32, nvml.Return) {
	return get(d, "GetClockInfo", func(c condition) (uint32, nvml.Return) {
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
	return fact(d, "GetTotalEnergyConsumption", func(c condition) uint64 { return c.millijoules() })
}

// energyBefore is what a new machine has used already, in millijoules: it has run for a while.
const energyBefore = 1_000_000_000

// millijoules is the energy of the card's work and of its idling. The counter starts over with each life of the card. So
// that this shows without a wait, and the same way each time, each life has idled for a quarter of the last one's time.
func (c condition) millijoules() uint64 {
	return c.work().Joules*1000 + energyBefore>>min(2*c.state.Lives, 63)
}

func (d *device) GetPcieThroughput(nvml.PcieUtilCounter) (uint32, nvml.Return) {
	return fact(d, "GetPcieThroughput", func(c condition) uint32 { return c.work().PCIeKBps })
}

// GetGridLicensableFeatures: a whole card on bare metal needs no licence.
func (d *device) GetGridLicensableFeatures() (nvml.GridLicensableFeatures, nvml.Return) {
	return fact(d, "GetGridLicensableFeatures", func(condition) nvml.GridLicensableFeatures { return nvml.GridLicensableFeatures{} })
}

func (m *migHandle) GetMemoryInfo_v2() (nvml.Memory_v2, nvml.Return) {
	c, device, ret := m.enter("GetMemoryInfo_v2")
	if ret != nvml.SUCCESS {
		return nvml.Memory_v2{}, ret
	}
	total, used := device.profile.MemoryMiB<<20, c.usedBytesOf(device.gi.ID)
	return nvml.Memory_v2{Total: total, Used: used, Free: total - used}, nvml.SUCCESS
}
