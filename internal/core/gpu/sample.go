package gpu

import (
	"slices"
	"time"
)

// Measure is a quantity of a GPU or a MIG device that is read again and again. Units are base units.
type Measure int

// The measures. Those that only ever grow (until the driver is loaded anew) are counters; they are named
// in the plural or end in Total.
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
	MemoryUsed                             // bytes, what the driver keeps for itself left out
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
	measures
)

// Readings are the measures that the hardware told; what it did not tell is not among them, and is not zero.
type Readings struct {
	values [measures]float64
	known  [measures]bool
}

// Set notes a reading.
func (r *Readings) Set(m Measure, value float64) { r.values[m], r.known[m] = value, true }

// Get is the reading; false when there is none.
func (r *Readings) Get(m Measure) (float64, bool) { return r.values[m], r.known[m] }

// Sample is what one pass over a node's GPUs measured.
type Sample struct {
	// Time is when the pass ended, Took how long it was.
	Time time.Time
	Took time.Duration
	// GPUs are those that were asked, in the order of their Index in the last scan. One that is lost is not here.
	GPUs []GPUSample
}

// GPU returns the sample of a GPU; nil when it was not asked.
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
	// ProcessesKnown tells whether Processes is what the GPU said, which may be that there are none.
	ProcessesKnown bool
	Processes      []ProcessSample
	// ActivityKnown tells whether the GPU says how busy each process keeps it; one that it leaves out was idle.
	ActivityKnown bool
	// Sources say how the reading went.
	Sources []SourceStatus
}

// Clone is a copy that shares nothing that changes.
func (c *GPUSample) Clone() GPUSample {
	out := *c
	out.Devices, out.Processes, out.Sources = slices.Clone(c.Devices), slices.Clone(c.Processes), slices.Clone(c.Sources)
	return out
}

// DeviceSample is what was measured of a MIG device.
type DeviceSample struct {
	UUID   UUID
	GI, CI int
	Readings
}

// ProcessSample is a process that has the GPU open for compute.
type ProcessSample struct {
	// PID is in the process namespace of whoever asked.
	PID int
	// GI and CI are the MIG instance, or NoInstance.
	GI, CI int
	// MemoryKnown is false where the driver does not say how much memory is the process's.
	MemoryKnown bool
	MemoryBytes uint64
	// SM, Memory, Encoder and Decoder are ratios, 0 for an idle process; they mean something if GPUSample.ActivityKnown.
	SM, Memory, Encoder, Decoder float64
}

// SourceStatus is how one group of questions to a GPU went.
type SourceStatus struct {
	Name string
	OK   bool
	Took time.Duration
	// Trouble says why OK is false.
	Trouble string
}
