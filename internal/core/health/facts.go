package health

import (
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Fact is the catalogue entry of a level cause: a condition that each scan finds for as long as it lasts.
type Fact struct {
	Code  string
	Class Class
	// Recover says in a sentence what clears it.
	Recover string
}

// Facts returns the level causes of GPUs, by code. A code that is not among them requires inspection.
func Facts() []Fact {
	const byItself = " The first scan that no longer finds it clears it."
	return []Fact{
		{"DRIVER_MISSING", Inspect, "Load the NVIDIA driver." + byItself},
		{"ECC_DOUBLE_BIT", Reset, "Reset the GPU, which sets the count to zero."},
		{"ECC_SRAM_UNCORRECTABLE", Reset, "Reset the GPU, which sets the count to zero; replace it if the errors come back."},
		{"FABRIC_ERROR", Inspect, "Check the Fabric Manager and the NVSwitches." + byItself},
		{"FABRIC_NOT_READY", Inspect, "Start the Fabric Manager, or wait until it has finished." + byItself},
		{"GPU_LOST", Reboot, "Reset the GPU, or reboot the node."},
		{"GPU_READ_FAILED", Degrade, "Do nothing unless it persists; see the error in the message." + byItself},
		{"GPU_RESET_REQUIRED", Reset, "Reset the GPU."},
		{"GPU_UNREADABLE", Inspect, "Reset the GPU, or reboot the node." + byItself},
		{"HARDWARE_TIMEOUT", Inspect, "It clears when the driver answers in time again; if it does not, reboot the node."},
		{"NVLINK_DOWN", Degrade, "Reset the GPUs at both ends of the link." + byItself},
		{"NVLINK_ERRORS", Degrade, "Have the NVLinks examined." + byItself},
		{"NVML_TIMEOUT", Inspect, "It clears when the driver answers in time again; if it does not, reboot the node."},
		{"OFF_BUS", Reboot, "Reboot the node."},
		{"RECOVERY_ACTION", Inspect, "Take the action that the driver reports." + byItself},
		{"RETIRED_PAGES_PENDING", Reset, "Reset the GPU, so that the pages are retired."},
		{"ROW_REMAP_FAILURE", Inspect, "Replace the GPU."},
		{"ROW_REMAP_PENDING", Reset, "Reset the GPU, so that the row is remapped."},
		{"TEMPERATURE_SHUTDOWN", Inspect, "Cool the GPU." + byItself},
		{"TEMPERATURE_SLOWDOWN", Degrade, "Cool the GPU." + byItself},
		{"THROTTLE_HW_SLOWDOWN", Degrade, "Check the power and the cooling of the GPU." + byItself},
		{"THROTTLE_POWER_BRAKE", Degrade, "Check the power supply of the node." + byItself},
		{"THROTTLE_THERMAL", Degrade, "Cool the GPU." + byItself},
		{"VENDOR_WITHDRAWN", Inspect, "Restart the agent's pod."},
	}
}

// lookupFact returns a level cause. The driver's recovery action decides the class of RECOVERY_ACTION, and of memory errors on a GPU
// that contains them.
func lookupFact(code string, recovery gpu.Recovery, contains bool) Fact {
	facts := Facts()
	at := slices.IndexFunc(facts, func(f Fact) bool { return f.Code == code })
	if at < 0 {
		return Fact{Code: code, Class: Inspect}
	}
	fact := facts[at]
	switch code {
	case "ECC_DOUBLE_BIT", "ROW_REMAP_PENDING":
		if contains {
			fact.Class = containedClass(recovery)
		}
	case "RECOVERY_ACTION":
		switch recovery {
		case gpu.RecoveryGPUReset, gpu.RecoveryBusReset:
			fact.Class, fact.Recover = Reset, "Reset the GPU."
		case gpu.RecoveryDrainAndReset:
			fact.Class, fact.Recover = Reset, "Reset the GPU."
			if contains {
				fact.Class = containedClass(recovery)
			}
		case gpu.RecoveryNodeReboot, gpu.RecoverySystemReboot:
			fact.Class, fact.Recover = Reboot, "Reboot the node."
		}
	}
	switch {
	case fact.Class == Drain:
		fact.Recover = Drain.Fix()
	case fact.Class == Degrade && contains && (code == "ECC_DOUBLE_BIT" || code == "ROW_REMAP_PENDING"):
		fact.Recover = "Nothing needs to be done now; the next reset of the GPU clears it."
	}
	return fact
}
