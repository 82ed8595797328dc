package agent

import (
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cdi"
	"github.com/berth-gpu/berth/internal/sim"
	"github.com/berth-gpu/berth/internal/vendors/nvidia"
)

// Hardware is where the GPUs are: the real driver, or a simulator's directory.
// Everything above it is the same for both.
type Hardware struct {
	Library nvml.Interface
	Roots   nvidia.Roots
	CDI     cdi.Roots
}

// OpenHardware finds the hardware: simulated when simDir is not empty. It asks the driver nothing
// yet, which may appear later.
func OpenHardware(simDir string, config *v1alpha1.AgentConfig) (Hardware, error) {
	if simDir == "" {
		driver := filepath.Join(config.HostRoot, config.DriverRoot)
		dev := filepath.Join(config.HostRoot, config.DevRoot)
		return Hardware{
			Library: nvidia.OpenLibrary(driver),
			// Proc and sys are the kernel's own: the same in a container.
			Roots: nvidia.Roots{Driver: driver, Dev: dev, Proc: "/proc", Sys: "/sys"},
			CDI:   cdi.Roots{Driver: driver, Dev: dev, Host: config.HostRoot},
		}, nil
	}
	absolute, err := filepath.Abs(simDir)
	if err != nil {
		return Hardware{}, fmt.Errorf("open simulated hardware: %w", err)
	}
	machine, err := sim.Open(absolute)
	if err != nil {
		return Hardware{}, fmt.Errorf("open simulated hardware: %w", err)
	}
	root := machine.Root()
	return Hardware{
		Library: machine.NVML(),
		Roots:   nvidia.Roots{Driver: root, Dev: root, Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys")},
		CDI: cdi.Roots{
			Driver: filepath.Join(config.HostRoot, root), Dev: filepath.Join(config.HostRoot, root), Host: config.HostRoot,
		},
	}, nil
}

func (h Hardware) adapter(log *slog.Logger) *nvidia.Adapter {
	return nvidia.New(nvidia.Deps{Library: h.Library, Roots: h.Roots, Log: log})
}
