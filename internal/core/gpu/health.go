package gpu

import (
	"cmp"
	"strconv"
	"strings"
	"time"
)

// State is a verdict on a device, from best to worst.
type State string

const (
	// Healthy devices are allocated.
	Healthy State = "Healthy"
	// Degraded devices are allocated when no Healthy one is left; their cause is reported.
	Degraded State = "Degraded"
	// Draining devices are not allocated to new pods; pods keep them until the GPU is free and can be reset.
	Draining State = "Draining"
	// Unhealthy devices are not allocated until their causes are gone.
	Unhealthy State = "Unhealthy"
	// NeedsReset devices are not allocated; a reset of the GPU brings them back.
	NeedsReset State = "NeedsReset"
	// NeedsReboot devices are not allocated; a reboot of the node brings them back.
	NeedsReboot State = "NeedsReboot"
	// Gone devices do not answer at all: lost, or fallen off the bus.
	Gone State = "Gone"
)

// Health is the verdict on a device with the evidence for it. The zero value is healthy.
type Health struct {
	State State `json:"state,omitempty"`
	// Causes are ordered by Since, then Code.
	Causes []Cause `json:"causes,omitempty"`
	// Recovery is the action that the driver asks for; empty when it does not report one.
	Recovery Recovery `json:"recovery,omitempty"`
	// Partial is true for a GPU that a scan could not read completely, or did not read: the scan may add causes and proves nothing.
	// It is not part of a verdict.
	Partial bool `json:"-"`
}

// Recovery is what repairs a GPU (NVML field 230, GPU_RECOVERY_ACTION).
type Recovery string

// The values of NVML_FI_DEV_GET_GPU_RECOVERY_ACTION.
const (
	RecoveryNone          Recovery = "None"
	RecoveryGPUReset      Recovery = "GPUReset"
	RecoveryNodeReboot    Recovery = "NodeReboot"
	RecoveryDrainP2P      Recovery = "DrainP2P"
	RecoveryDrainAndReset Recovery = "DrainAndReset"
	RecoveryIMEXDomain    Recovery = "RecoverIMEXDomain"
	RecoveryBusReset      Recovery = "BusReset"
	RecoverySystemReboot  Recovery = "SystemReboot"
)

// OK reports whether the device may be allocated.
func (h Health) OK() bool { return h.State.Allocatable() }

// Allocatable reports whether a device in the state may be allocated.
func (s State) Allocatable() bool { return !s.Worse(Degraded) }

// Class returns what a state means for an allocation: Healthy devices are chosen first, Degraded ones when no healthy one is
// left, Draining ones only stay with the pods that have them, and Unhealthy ones are not allocated. The states that are worse
// than Unhealthy differ from it in their remedy.
func (s State) Class() State {
	switch {
	case s == "":
		return Healthy
	case s.Worse(Unhealthy):
		return Unhealthy
	}
	return s
}

// Worse reports whether s is worse than t. The empty state is Healthy.
func (s State) Worse(t State) bool { return s.rank() > t.rank() }

func (s State) rank() int {
	switch s {
	case Degraded:
		return 1
	case Draining:
		return 2
	case Unhealthy:
		return 3
	case NeedsReset:
		return 4
	case NeedsReboot:
		return 5
	case Gone:
		return 6
	}
	return 0
}

// Cause is one reason for a verdict.
type Cause struct {
	// Code is a stable name, such as "XID79", "GPU_LOST", "NVML_TIMEOUT".
	Code string `json:"code"`
	// Message says what is wrong, with the evidence, in a sentence.
	Message string `json:"message"`
	// Since is when it was first seen.
	Since time.Time `json:"since,omitzero"`
	// Recover says in a sentence what clears the cause.
	Recover string `json:"recover,omitempty"`
}

// The kinds of error codes.
const (
	// KindXID is an error code of the NVIDIA driver.
	KindXID = "xid"
	// KindSXID is an error code of an NVSwitch; only fatal ones are reported.
	KindSXID = "sxid"
)

// Code is an error code that a driver reports. Kind names the numbering, which is the vendor's own. The zero value is no code.
type Code struct {
	Kind   string
	Number uint64
}

// IsZero reports whether there is no code.
func (c Code) IsZero() bool { return c == Code{} }

// String returns the code as it is written in causes and messages, such as "XID79"; the empty string for the zero value.
func (c Code) String() string {
	if c.IsZero() {
		return ""
	}
	return strings.ToUpper(c.Kind) + strconv.FormatUint(c.Number, 10)
}

// Compare orders codes by Kind, then Number.
func (c Code) Compare(other Code) int {
	return cmp.Or(cmp.Compare(c.Kind, other.Kind), cmp.Compare(c.Number, other.Number))
}

// XID returns the code of an XID; the zero value for 0, which is no XID.
func XID(number uint64) Code {
	if number == 0 {
		return Code{}
	}
	return Code{Kind: KindXID, Number: number}
}

// SXID returns the code of an NVSwitch's error; the zero value for 0, which is no SXID.
func SXID(number uint64) Code {
	if number == 0 {
		return Code{}
	}
	return Code{Kind: KindSXID, Number: number}
}

// Event is a report by the hardware at one moment, as opposed to what a scan finds.
type Event struct {
	// GPU is the GPU concerned; empty when the driver does not name one: the event concerns every GPU then.
	GPU UUID
	// GI and CI are the MIG instance concerned, or NoInstance for the whole GPU.
	GI int
	CI int
	// Code is the error code; zero for an event without one.
	Code Code
	// Reset is true when the GPU was reset, or its driver was loaded again, at Time; there is no error code then.
	Reset bool
	// Log is true for an event that was read from the kernel log. It never names a MIG instance, and NVML may report the same XID.
	Log bool
	// Record is the sequence number of its record in the kernel log plus one, from the boot on; 0 for an event from elsewhere.
	Record uint64
	// Detail is the text after the code in the kernel log; empty for an event that NVML reports.
	Detail string
	Time   time.Time
}

// NoInstance in an Event's GI or CI means the whole GPU (NVML reports 0xFFFFFFFF).
const NoInstance = -1

// Life identifies the time of a GPU from one reset or load of the driver to the next.
type Life struct {
	// Driver changes with each load of the driver's kernel module; empty when it is not known.
	Driver string `json:"driver,omitempty"`
	// EnergyKnown reports whether Energy, the millijoules used in this life, was read.
	EnergyKnown bool   `json:"energyKnown,omitempty"`
	Energy      uint64 `json:"energy,omitempty"`
	// Persistent is true when the driver keeps the GPU initialized while no program uses it. Without that the
	// counters start over whenever the last program closes the GPU.
	Persistent bool `json:"persistent,omitempty"`
}

// EndedBefore reports whether the GPU was reset, or its driver was loaded again, between l and later. It is false when that is not
// known.
func (l Life) EndedBefore(later Life) bool {
	if l.Driver != "" && later.Driver != "" && l.Driver != later.Driver {
		return true
	}
	// A counter that started over is near zero; a small decrease is a measurement error.
	return l.EnergyKnown && later.EnergyKnown && l.Persistent && later.Persistent && later.Energy < l.Energy/2
}
