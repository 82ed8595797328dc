package gpu

import (
	"slices"
	"time"
)

// IdleBelow is the activity, from 0 to 1, below which a device that is held counts as idle.
const IdleBelow = 0.01

// Measure is a quantity of a GPU or a MIG device that is read periodically, in base units.
type Measure int

// The measures. Those that only grow until the driver is loaded again are counters; their names are plurals or end in Total.
const (
	ClockSM                 Measure = iota // hertz
	ClockMemory                            // hertz
	ClockVideo                             // hertz
	TemperatureGPU                         // degrees Celsius
	TemperatureMemory                      // degrees Celsius
	PowerUsage                             // watts
	PowerLimit                             // watts
	EnergyTotal                            // joules
	UtilizationGPU                         // ratio of the time in which a kernel ran
	UtilizationMemory                      // ratio of the time in which memory was read or written
	UtilizationEncoder                     // ratio
	UtilizationDecoder                     // ratio
	MemorySize                             // bytes
	MemoryFree                             // bytes
	MemoryUsed                             // bytes, without what the driver reserves
	MemoryReserved                         // bytes
	PCIeReplays                            // counter
	PCIeTransmit                           // bytes per second
	PCIeReceive                            // bytes per second
	ECCCorrectedVolatile                   // counter, since the driver was loaded
	ECCUncorrectedVolatile                 // counter, since the driver was loaded
	ECCCorrectedAggregate                  // counter, of the GPU's life
	ECCUncorrectedAggregate                // counter, of the GPU's life
	RetiredSingleBit                       // counter, pages
	RetiredDoubleBit                       // counter, pages
	RetiredPending                         // 1 while pages wait for a reboot
	RemappedCorrectable                    // counter, rows
	RemappedUncorrectable                  // counter, rows
	RemapPending                           // 1 while rows wait for a reset
	RemapFailure                           // 1 once a row could not be remapped
	ClockReasons                           // bits of nvmlClocksEventReasons
	ViolationPower                         // seconds, counter
	ViolationThermal                       // seconds, counter
	ViolationSyncBoost                     // seconds, counter
	ViolationBoardLimit                    // seconds, counter
	ViolationLowUtilization                // seconds, counter
	ViolationReliability                   // seconds, counter
	NVLinkTransmitTotal                    // bytes, counter
	NVLinkReceiveTotal                     // bytes, counter
	NVLinkCRCFlitErrors                    // counter
	NVLinkCRCDataErrors                    // counter
	NVLinkReplayErrors                     // counter
	NVLinkRecoveryErrors                   // counter
	NVLinksUp                              // links
	NVLinksDown                            // links
	VGPULicensed                           // 1 while a vGPU licence is held
	GraphicsActive                         // ratio
	SMActive                               // ratio
	SMOccupancy                            // ratio
	TensorActive                           // ratio
	FP64Active                             // ratio
	FP32Active                             // ratio
	FP16Active                             // ratio
	DRAMActive                             // ratio

	// Those from here on are read only where they are asked for.
	PowerLimitSet         // watts, as it was set for the GPU alone
	PowerLimitLeast       // watts, the lowest that can be set
	PowerLimitMost        // watts, the highest that can be set
	PowerLimitDefault     // watts
	PowerInstant          // watts, without averaging
	TemperatureSlowdown   // degrees Celsius, at which the clocks are lowered
	TemperatureShutdown   // degrees Celsius, at which the GPU switches itself off
	TemperatureMost       // degrees Celsius, the highest for normal work
	TemperatureMemoryMost // degrees Celsius, the highest for normal work
	PerformanceState      // 0 is the fastest
	FanSpeed              // ratio of the highest
	PCIeGeneration        // of the link now
	PCIeGenerationMost    // of GPU and slot
	PCIeWidth             // lanes of the link now
	PCIeWidthMost         // lanes of GPU and slot
	ClockSMMost           // hertz
	ClockMemoryMost       // hertz
	ClockVideoMost        // hertz
	BAR1Size              // bytes
	BAR1Free              // bytes
	BAR1Used              // bytes
	PersistenceMode       // 1 while it is on
	ECCMode               // 1 while it is on
	ECCModePending        // 1 if it is on after the next reset
	NVLinkTransmit        // bytes per second
	NVLinkReceive         // bytes per second
	IntegerActive         // ratio
	TensorDFMAActive      // ratio
	TensorHMMAActive      // ratio
	TensorIMMAActive      // ratio
	measures
)

// Optional reports whether a measure is read only where it is asked for.
func (m Measure) Optional() bool { return m > DRAMActive }

// Readings are the measures that the hardware reported. A measure that it did not report is absent, not zero.
type Readings struct {
	values [measures]float64
	known  [measures]bool
}

// Set stores a reading.
func (r *Readings) Set(m Measure, value float64) { r.values[m], r.known[m] = value, true }

// Get returns a reading; false when there is none.
func (r *Readings) Get(m Measure) (float64, bool) { return r.values[m], r.known[m] }

// Sample is what one pass over a node's GPUs measured.
type Sample struct {
	// Time is when the pass ended, Took its duration.
	Time time.Time
	Took time.Duration
	// GPUs are those that were read, in the order of their Index in the last scan. A lost GPU is absent.
	GPUs []GPUSample
}

// GPU returns the sample of a GPU; nil when it was not read.
func (s *Sample) GPU(id UUID) *GPUSample {
	for i := range s.GPUs {
		if s.GPUs[i].GPU == id {
			return &s.GPUs[i]
		}
	}
	return nil
}

// GPUSample is what was measured of one GPU.
type GPUSample struct {
	GPU UUID
	Readings
	// Devices are the GPU's MIG devices; the memory and profiling measures are theirs too.
	Devices []DeviceSample
	// ProcessesKnown reports whether the processes could be listed; the list may be empty.
	ProcessesKnown bool
	Processes      []ProcessSample
	// ActivityKnown reports whether the GPU reports the utilization of each process; a process that it leaves out was idle.
	ActivityKnown bool
	// Sources are the results of the groups of calls.
	Sources []SourceStatus
}

// Clone returns a copy that shares no mutable state.
func (c *GPUSample) Clone() GPUSample {
	out := *c
	out.Devices, out.Processes, out.Sources = slices.Clone(c.Devices), slices.Clone(c.Processes), slices.Clone(c.Sources)
	return out
}

// DeviceSample is what was measured of a MIG device.
type DeviceSample struct {
	UUID UUID
	GI   int
	CI   int
	Readings
}

// ProcessSample is a process that has the GPU open for compute.
type ProcessSample struct {
	// PID is that in the process namespace of the caller.
	PID int
	// GI and CI are the MIG instance, or NoInstance.
	GI int
	CI int
	// MemoryKnown is false where the driver does not report the memory of a process.
	MemoryKnown bool
	MemoryBytes uint64
	// SM, Memory, Encoder and Decoder are ratios, 0 for an idle process. They are valid if GPUSample.ActivityKnown is set.
	SM      float64
	Memory  float64
	Encoder float64
	Decoder float64
}

// SourceStatus is the result of one group of calls for a GPU.
type SourceStatus struct {
	Name string
	OK   bool
	Took time.Duration
	// Trouble is the reason why OK is false.
	Trouble string
}
