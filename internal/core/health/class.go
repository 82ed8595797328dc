package health

import (
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Class is the remedy for a fault. It decides the verdict on the device that has the fault.
type Class string

// The classes. What each of them means is its row in classRows.
const (
	Ignore     Class = "ignore"
	Degrade    Class = "degrade"
	RestartApp Class = "restart-app"
	Drain      Class = "drain"
	Inspect    Class = "inspect"
	Reset      Class = "reset"
	Reboot     Class = "reboot"
)

// Severity is how bad a fault or another problem is.
type Severity string

const (
	// Info needs no action.
	Info Severity = "info"
	// Warning is a fault that leaves the node's GPUs usable.
	Warning Severity = "warning"
	// Error prevents the correct use of a GPU, or of all GPUs.
	Error Severity = "error"
)

// classRow is what a class means.
type classRow struct {
	class Class
	// state is the verdict on a device that has a fault of the class.
	state    gpu.State
	severity Severity
	// effect says in a few words what the fault does to the allocation of the device.
	effect string
	// fix says in sentences what to do, and what clears the fault.
	fix string
	// wholeGPU is true when the fault concerns the whole GPU wherever in the GPU it happened: a reset affects every MIG device.
	wholeGPU bool
	// needsRepair is true when the fault persists until the hardware is reset.
	needsRepair bool
}

// classRows has a row for each class, mildest first.
var classRows = []classRow{
	{
		class:    Ignore,
		state:    gpu.Healthy,
		severity: Info,
		effect:   "none",
		fix:      "Nothing for the GPU. The cause is usually the application that ran on it.",
	},
	{
		class:    Degrade,
		state:    gpu.Degraded,
		severity: Warning,
		effect:   "advertised, with a warning",
		fix: "The GPU stays advertised. Have it examined when no pod uses it. It is advertised as healthy again once a scan finds nothing to repair, " +
			"or after a reset.",
	},
	{
		class:    RestartApp,
		state:    gpu.Unhealthy,
		severity: Error,
		effect:   "advertised, with a warning, where the driver reports that nothing needs repair; otherwise not advertised",
		fix: "Restart the application. The GPU is advertised as long as the driver reports that nothing needs repair, and as healthy again once a scan " +
			"finds nothing to repair.",
	},
	{
		class:    Drain,
		state:    gpu.Draining,
		severity: Error,
		effect:   "not allocated to new pods",
		fix:      "Let the pods that use the GPU end, then reset it on its node: berth reset INDEX.",
		wholeGPU: true,
	},
	{
		class:    Inspect,
		state:    gpu.Unhealthy,
		severity: Error,
		effect:   "not advertised",
		fix: "Let the pods that use the GPU end, and look the code up in NVIDIA's XID catalogue. If in doubt, reset the GPU (berth reset INDEX), and " +
			"have it examined if the code returns. It is advertised as healthy again once a scan finds nothing to repair, or after a reset.",
	},
	{
		class:    Reset,
		state:    gpu.NeedsReset,
		severity: Error,
		effect:   "not advertised until the GPU was reset",
		fix: "Let the pods that use the GPU end, then reset it on its node: berth reset INDEX. It is advertised as healthy again once a scan after the " +
			"reset finds nothing to repair.",
		wholeGPU:    true,
		needsRepair: true,
	},
	{
		class:       Reboot,
		state:       gpu.NeedsReboot,
		severity:    Error,
		effect:      "not advertised until the node was rebooted",
		fix:         "Drain and reboot the node. If the GPU is still missing, power the node off and on.",
		wholeGPU:    true,
		needsRepair: true,
	},
}

// Classes returns all classes, mildest first.
func Classes() []Class {
	classes := make([]Class, len(classRows))
	for i := range classRows {
		classes[i] = classRows[i].class
	}
	return classes
}

// rank returns the position of the class among all classes, mildest first; -1 for a class that is not known.
func (c Class) rank() int {
	return slices.IndexFunc(classRows, func(row classRow) bool { return row.class == c })
}

func (c Class) known() bool { return c.rank() >= 0 }

// row returns what the class means. A class that is not known, as in a record of another version, requires inspection.
func (c Class) row() *classRow {
	if !c.known() {
		c = Inspect
	}
	return &classRows[c.rank()]
}

// state returns the verdict on a device that has a fault of the class.
func (c Class) state() gpu.State { return c.row().state }

// Severity returns how bad a fault of the class is.
func (c Class) Severity() Severity { return c.row().severity }

// Effect says in a few words what a fault of the class does to the allocation of the device.
func (c Class) Effect() string { return c.row().effect }

// Fix says in sentences what to do about a fault of the class, and what clears it.
func (c Class) Fix() string { return c.row().fix }
