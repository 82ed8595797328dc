// Package hardware opens the GPUs of this node and adapts what the driver can do to the interfaces of the packages that use
// it. A simulated machine is opened like a real one: it is a driver below another root.
//
// It guarantees that everything above it is the same for both, that opening asks the driver nothing (a
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
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/nvidia/cdiedits"
	"github.com/berth-gpu/berth/internal/node/cdi"
)

// Machine has the locations of the GPUs' driver, device nodes and programs.
type Machine struct {
	Library nvml.Interface
	Roots   nvidia.Roots
	CDI     cdi.Roots
	// SMI and MPSControl are the command lines of nvidia-smi and nvidia-cuda-mps-control; empty means the program below
	// the driver root.
	SMI        []string
	MPSControl []string
	// MakeNodes are the roots below which missing device nodes are created: the host's, and this process's own, where
	// NVML opens them.
	MakeNodes []string
	// Simulated is the simulator's directory; empty for a real driver.
	Simulated string
	// Extra are vendors that the program adds to those that Berth supports.
	Extra []hardware.Vendor
}

// RootedCommand is the hidden command of berth-agent that runs a program of a driver that is installed below another root.
const RootedCommand = "driver-program"

// mpsControl is the program of the driver that is the MPS control daemon.
const mpsControl = "nvidia-cuda-mps-control"

// Open returns the hardware of this node. It does not call the driver. A simulated machine (simDir is not empty) is a driver, device nodes
// and kernel file systems below another root, which is mounted at the same path in a container as on the host.
func Open(simDir string, config *v1alpha1.AgentConfig) (Machine, error) {
	self, err := os.Executable()
	if err != nil {
		return Machine{}, fmt.Errorf("open hardware: find this program: %w", err)
	}
	host := func(path string) string { return filepath.Join(config.HostRoot, path) }
	machine := Machine{
		// Proc and sys are the kernel's own: the same in a container.
		Roots: nvidia.Roots{Driver: host(config.DriverRoot), Dev: host(config.DevRoot), Proc: "/proc", Sys: "/sys"},
		CDI:   cdi.Roots{Driver: host(config.DriverRoot), Dev: host(config.DevRoot), Host: config.HostRoot},
	}
	if simDir == "" {
		machine.MakeNodes = slices.Compact([]string{machine.Roots.Dev, "/"})
	} else {
		if machine.Simulated, err = filepath.Abs(simDir); err != nil {
			return Machine{}, fmt.Errorf("open simulated hardware: %w", err)
		}
		if machine.Roots, err = nvidia.RootsBelow(machine.Simulated); err != nil {
			return Machine{}, fmt.Errorf("open simulated hardware: %w", err)
		}
		machine.CDI.Driver, machine.CDI.Dev = host(machine.Roots.Driver), host(machine.Roots.Dev)
	}
	machine.Library = nvidia.OpenLibrary(machine.Roots.Driver)
	if machine.Roots.Driver != "/" {
		machine.MPSControl = []string{self, RootedCommand, machine.Roots.Driver, mpsControl}
	}
	return machine, nil
}

// VendorDeps are the further dependencies of the vendors of a Machine.
type VendorDeps struct {
	// LibraryReplaced is as in [hardware.Deps].
	LibraryReplaced func(file string)
	SampleInterval  time.Duration
	// OptionalMeasures are as in [hardware.Deps].
	OptionalMeasures []gpu.Measure
	Log              *slog.Logger
}

// Vendors opens the vendors of the machine, those in Extra last.
func (m Machine) Vendors(deps VendorDeps) []hardware.Vendor {
	vendors := hardware.Open(hardware.Deps{
		Roots: m.Roots, Library: m.Library, SMI: m.SMI, MakeNodes: m.MakeNodes,
		LibraryReplaced: deps.LibraryReplaced, SampleInterval: deps.SampleInterval, OptionalMeasures: deps.OptionalMeasures, Log: deps.Log,
	})
	return append(vendors, m.Extra...)
}

// Configured returns the name of the vendor whose GPUs the settings of the configuration are about.
func (m Machine) Configured() string { return nvidia.Traits().Name }

// Traits returns the names of all vendors, in the order of [Machine.Vendors].
func (m Machine) Traits() []gpu.Traits {
	all := hardware.Traits()
	for _, v := range m.Extra {
		all = append(all, v.Traits())
	}
	return all
}

// OtherVendors returns the resources of the vendors that the configuration is not about, by name.
func (m Machine) OtherVendors() map[string]string {
	resources := map[string]string{}
	for _, traits := range m.Traits() {
		if traits.Name != m.Configured() {
			resources[traits.Name] = traits.ResourcePrefix + "/gpu"
		}
	}
	return resources
}

// Plain returns the names of the vendors without CDI edits, whose devices are injected as device nodes alone: all but NVIDIA.
func (m Machine) Plain() map[string]bool {
	names := map[string]bool{}
	for name := range m.OtherVendors() {
		names[name] = true
	}
	return names
}

// CDIEdits returns what containers with GPUs of NVIDIA get besides device nodes, with the installed hook program; "" for none.
func (m Machine) CDIEdits(hook string, log *slog.Logger) *cdiedits.Source {
	return cdiedits.New(cdiedits.Deps{
		DriverRoot: m.CDI.Driver, DevRoot: m.CDI.Dev, HostRoot: m.CDI.Host, Library: m.Library, HookPath: hook, Log: log,
	})
}
