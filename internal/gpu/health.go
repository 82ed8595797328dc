package gpu

import "time"

// State is a verdict on a device, from best to worst.
type State string

const (
	// Healthy devices are given out.
	Healthy State = "Healthy"
	// Unhealthy devices are not given out until their causes are gone.
	Unhealthy State = "Unhealthy"
	// Gone devices do not answer at all: lost, or fallen off the bus.
	Gone State = "Gone"
)

// Health is the verdict on a device with the evidence for it. The zero value is healthy.
type Health struct {
	State State `json:"state,omitempty"`
	// Causes are ordered by Since, then Code.
	Causes []Cause `json:"causes,omitempty"`
	// Recovery is what the driver says would repair the card; empty when it does not say.
	Recovery Recovery `json:"recovery,omitempty"`
}

// Recovery is what repairs a card (NVML field 230, GPU_RECOVERY_ACTION).
type Recovery string

// The values of NVML_FI_DEV_GET_GPU_RECOVERY_ACTION.
const (
	RecoveryNone          Recovery = "None"
	RecoveryGPUReset      Recovery = "GPUReset"
	RecoveryNodeReboot    Recovery = "NodeReboot"
	RecoveryDrainP2P      Recovery = "DrainP2P"
	RecoveryDrainAndReset Recovery = "DrainAndReset"
	RecoveryIMEXDomain    Recovery = "RecoverIMEXDomain"
)

// OK tells whether the device may be given out.
func (h Health) OK() bool { return h.State == "" || h.State == Healthy }

// Cause is one reason why something is not well.
type Cause struct {
	// Code is a stable name, such as "XID79", "GPU_LOST", "NVML_TIMEOUT".
	Code string `json:"code"`
	// Message says what is wrong, with the evidence, in a sentence.
	Message string `json:"message"`
	// Since is when it was first seen.
	Since time.Time `json:"since,omitzero"`
}

// Event is something that the hardware said at a moment, as opposed to what a scan finds.
type Event struct {
	// GPU is the card concerned; empty when the driver could not say, which concerns every card.
	GPU UUID
	// GI and CI are the MIG instance concerned, or NoInstance for the whole card.
	GI, CI int
	// XID is the error code of the NVIDIA driver; 0 for an event that carries none.
	XID  uint64
	Time time.Time
}

// NoInstance in an Event's GI or CI means the whole card
// (NVML reports 0xFFFFFFFF).
const NoInstance = -1
