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
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/nvidia/cdiedits"
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
	// Extra are vendors that the program adds to those that Berth knows.
	Extra []hardware.Vendor
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

// VendorDeps are what the vendors of a Machine need besides it.
type VendorDeps struct {
	// LibraryReplaced is as in [hardware.Deps].
	LibraryReplaced func(file string)
	SampleInterval  time.Duration
	Log             *slog.Logger
}

// Vendors opens the vendors of the machine, those in Extra last.
func (m Machine) Vendors(deps VendorDeps) []hardware.Vendor {
	vendors := hardware.Open(hardware.Deps{
		Roots: m.Roots, Library: m.Library, SMI: m.SMI, MakeNodes: m.MakeNodes,
		LibraryReplaced: deps.LibraryReplaced, SampleInterval: deps.SampleInterval, Log: deps.Log,
	})
	return append(vendors, m.Extra...)
}

// OtherVendors returns the resources of the vendors in Extra, by name.
func (m Machine) OtherVendors() map[string]string {
	resources := map[string]string{}
	for _, v := range m.Extra {
		traits := v.Traits()
		resources[traits.Name] = traits.ResourcePrefix + "/gpu"
	}
	return resources
}

// Traits returns the names of all vendors.
func (m Machine) Traits() []gpu.Traits {
	all := []gpu.Traits{nvidia.Traits()}
	for _, v := range m.Extra {
		all = append(all, v.Traits())
	}
	return all
}

// Plain returns the names of the vendors in Extra: they have no CDI edits.
func (m Machine) Plain() map[string]bool {
	names := map[string]bool{}
	for _, v := range m.Extra {
		names[v.Traits().Name] = true
	}
	return names
}

// CDIEdits returns what containers get besides device nodes, with the installed hook program; "" for none.
func (m Machine) CDIEdits(hook string, log *slog.Logger) *cdiedits.Source {
	return cdiedits.New(cdiedits.Deps{
		DriverRoot: m.CDI.Driver, DevRoot: m.CDI.Dev, HostRoot: m.CDI.Host, Library: m.Library, HookPath: hook, Log: log,
	})
}
