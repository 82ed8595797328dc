// Package hardware opens the GPUs of this node, which belong to the real driver or to a simulator's directory, and adapts
// what the driver can do to the interfaces of the packages that use it.
//
// It guarantees that everything above it is the same for both kinds of hardware, that opening asks the driver nothing (a
// driver may be installed later), and that no caller of a compute mode waits longer than its context for a driver that
// hangs.
//
// It is no actor: nothing wakes it, and it writes nothing itself. It must not import the agent or another package below
// it.
package hardware

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/nvidia/cdiedits"
	"github.com/berth-gpu/berth/internal/hardware/nvidia/smi"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/cdi"
)

// Machine is where the GPUs are: the real driver, or a simulator's directory.
type Machine struct {
	Library nvml.Interface
	Roots   nvidia.Roots
	CDI     cdi.Roots
	// SMI and MPSControl are the command lines of nvidia-smi and nvidia-cuda-mps-control where these are not the
	// driver's own.
	SMI, MPSControl []string
	// MakeNodes are the roots below which missing device nodes are created: the host's, and this process's own, where
	// NVML opens them.
	MakeNodes []string
	// Simulated is the simulator's directory; empty for a real driver.
	Simulated string
}

// Open finds the hardware: simulated when simDir is not empty. It does not call the driver.
func Open(simDir string, config *v1alpha1.AgentConfig) (Machine, error) {
	self, err := os.Executable()
	if err != nil {
		return Machine{}, fmt.Errorf("open hardware: find this program: %w", err)
	}
	if simDir != "" {
		return openSimulated(simDir, self, config)
	}
	driver := filepath.Join(config.HostRoot, config.DriverRoot)
	dev := filepath.Join(config.HostRoot, config.DevRoot)
	var control []string
	if driver != "/" {
		control = []string{self, RootedCommand, driver, mpsControl}
	}
	return Machine{
		MPSControl: control,
		Library:    nvidia.OpenLibrary(driver),
		// Proc and sys are the kernel's own: the same in a container.
		Roots:     nvidia.Roots{Driver: driver, Dev: dev, Proc: "/proc", Sys: "/sys"},
		MakeNodes: slices.Compact([]string{dev, "/"}),
		CDI:       cdi.Roots{Driver: driver, Dev: dev, Host: config.HostRoot},
	}, nil
}

func openSimulated(dir, self string, config *v1alpha1.AgentConfig) (Machine, error) {
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return Machine{}, fmt.Errorf("open simulated hardware: %w", err)
	}
	machine, err := sim.Open(absolute)
	if err != nil {
		return Machine{}, fmt.Errorf("open simulated hardware: %w", err)
	}
	root := machine.Root()
	return Machine{
		Simulated:  absolute,
		SMI:        []string{self, SimulatedCommand, simulatedSMI, absolute},
		MPSControl: []string{self, SimulatedCommand, mpsControl, absolute},
		Library:    machine.NVML(),
		Roots:      nvidia.Roots{Driver: root, Dev: root, Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys")},
		CDI: cdi.Roots{
			Driver: filepath.Join(config.HostRoot, root), Dev: filepath.Join(config.HostRoot, root), Host: config.HostRoot,
		},
	}, nil
}

// Adapter returns the source of the inventory. It calls replaced, which may be nil, with the path of a library file that a
// new process would open instead of the one that this process has.
func (m Machine) Adapter(log *slog.Logger, replaced func(file string)) *nvidia.Adapter {
	return nvidia.New(nvidia.Deps{Library: m.Library, Roots: m.Roots, MakeNodes: m.MakeNodes, LibraryReplaced: replaced, Log: log})
}

// Actions returns what changes the hardware through NVML.
func (m Machine) Actions(log *slog.Logger) *nvidia.Actions {
	return nvidia.NewActions(nvidia.Deps{Library: m.Library, Roots: m.Roots, Log: log})
}

// CDIEdits returns what containers get besides device nodes, with the installed hook program; "" for none.
func (m Machine) CDIEdits(hook string, log *slog.Logger) *cdiedits.Source {
	return cdiedits.New(cdiedits.Deps{
		DriverRoot: m.CDI.Driver, DevRoot: m.CDI.Dev, HostRoot: m.CDI.Host, Library: m.Library, HookPath: hook, Log: log,
	})
}

// NVIDIASMI returns what changes the hardware through nvidia-smi.
func (m Machine) NVIDIASMI(log *slog.Logger) *smi.SMI {
	return smi.New(smi.Deps{Program: m.SMI, DriverRoot: m.Roots.Driver, Log: log})
}
