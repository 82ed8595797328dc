package health

import (
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Fact is what is known of a level cause: something that scans find as long as it is so.
type Fact struct {
	Code  string
	Class Class
	// Recover says in a sentence what makes it go.
	Recover string
}

// Facts are the level causes of GPUs, by code. A code that is not among them is one for a person.
func Facts() []Fact {
	const byItself = " It goes with the first scan that no longer finds it."
	return []Fact{
		{"DRIVER_MISSING", Inspect, "Load the NVIDIA driver." + byItself},
		{"ECC_DOUBLE_BIT", Reset, "Reset the GPU, which sets the count to zero."},
		{"ECC_SRAM_UNCORRECTABLE", Reset, "Reset the GPU, which sets the count to zero; replace it if the errors come back."},
		{"FABRIC_ERROR", Inspect, "See to the Fabric Manager and the NVSwitches." + byItself},
		{"FABRIC_NOT_READY", Inspect, "Start the Fabric Manager, or wait until it has finished." + byItself},
		{"GPU_LOST", Reboot, "Reset the GPU, or reboot the node."},
		{"GPU_READ_FAILED", Degrade, "Nothing, unless it stays: see the error in the message." + byItself},
		{"GPU_RESET_REQUIRED", Reset, "Reset the GPU."},
		{"GPU_UNREADABLE", Inspect, "Reset the GPU, or reboot the node." + byItself},
		{"NVLINK_DOWN", Degrade, "Reset the GPUs at both ends of the link." + byItself},
		{"NVLINK_ERRORS", Degrade, "Have the NVLinks looked at." + byItself},
		{"NVML_TIMEOUT", Inspect, "It goes when the driver answers in time again; if it does not, reboot the node."},
		{"OFF_BUS", Reboot, "Reboot the node."},
		{"RECOVERY_ACTION", Inspect, "Do what the driver asks for." + byItself},
		{"RETIRED_PAGES_PENDING", Reset, "Reset the GPU, so that the pages are retired."},
		{"ROW_REMAP_FAILURE", Inspect, "Replace the GPU."},
		{"ROW_REMAP_PENDING", Reset, "Reset the GPU, so that the row is remapped."},
		{"TEMPERATURE_SHUTDOWN", Inspect, "Cool the GPU." + byItself},
		{"TEMPERATURE_SLOWDOWN", Degrade, "Cool the GPU." + byItself},
		{"THROTTLE_HW_SLOWDOWN", Degrade, "See to the power and the cooling of the GPU." + byItself},
		{"THROTTLE_POWER_BRAKE", Degrade, "See to the power supply of the node." + byItself},
		{"THROTTLE_THERMAL", Degrade, "Cool the GPU." + byItself},
	}
}

// lookupFact finds a level cause. On a GPU that contains memory errors what the driver asks for decides the class of
// those; that of RECOVERY_ACTION it decides on any GPU.
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
		fact.Recover = Drain.recover()
	case fact.Class == Degrade && contains && (code == "ECC_DOUBLE_BIT" || code == "ROW_REMAP_PENDING"):
		fact.Recover = "Nothing needs to be done now; it goes with the next reset of the GPU."
	}
	return fact
}
