package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/nvidia/smi"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/cdi"
	"github.com/berth-gpu/berth/internal/node/inventory"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/mps"
)

// actionTimeout bounds a call about a compute mode.
const actionTimeout = 30 * time.Second

// Hardware is where the GPUs are: the real driver, or a simulator's directory.
// Everything above it is the same for both.
type Hardware struct {
	Library nvml.Interface
	Roots   nvidia.Roots
	CDI     cdi.Roots
	// SMI and MPSControl are the commands that begin with nvidia-smi and
	// nvidia-cuda-mps-control, where they are not the driver's own.
	SMI, MPSControl []string
	// MakeNodes are the roots below which missing device nodes are made: the host's, and this process's own, where NVML opens them.
	MakeNodes []string
	// Simulated is the simulator's directory; empty for a real driver.
	Simulated string
}

// OpenHardware finds the hardware: simulated when simDir is not empty. It asks the driver nothing
// yet, which may appear later.
func OpenHardware(simDir string, config *v1alpha1.AgentConfig) (Hardware, error) {
	if simDir == "" {
		driver := filepath.Join(config.HostRoot, config.DriverRoot)
		dev := filepath.Join(config.HostRoot, config.DevRoot)
		var control []string
		if driver != "/" {
			self, err := os.Executable()
			if err != nil {
				return Hardware{}, fmt.Errorf("open hardware: %w", err)
			}
			control = []string{self, rootedCommand, driver, mpsControl}
		}
		return Hardware{
			MPSControl: control,
			Library:    nvidia.OpenLibrary(driver),
			// Proc and sys are the kernel's own: the same in a container.
			Roots:     nvidia.Roots{Driver: driver, Dev: dev, Proc: "/proc", Sys: "/sys"},
			MakeNodes: slices.Compact([]string{dev, "/"}),
			CDI:       cdi.Roots{Driver: driver, Dev: dev, Host: config.HostRoot},
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
	self, err := os.Executable()
	if err != nil {
		return Hardware{}, fmt.Errorf("open simulated hardware: %w", err)
	}
	stand := func(program string) []string { return []string{self, simulatedCommand, program, absolute} }
	return Hardware{
		Simulated: absolute,
		SMI:       stand(simulatedSMI), MPSControl: stand(mpsControl),
		Library: machine.NVML(),
		Roots:   nvidia.Roots{Driver: root, Dev: root, Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys")},
		CDI: cdi.Roots{
			Driver: filepath.Join(config.HostRoot, root), Dev: filepath.Join(config.HostRoot, root), Host: config.HostRoot,
		},
	}, nil
}

func (h Hardware) adapter(log *slog.Logger, replaced func(file string)) *nvidia.Adapter {
	return nvidia.New(nvidia.Deps{Library: h.Library, Roots: h.Roots, MakeNodes: h.MakeNodes, LibraryReplaced: replaced, Log: log})
}

func (h Hardware) actions(log *slog.Logger) *nvidia.Actions {
	return nvidia.NewActions(nvidia.Deps{Library: h.Library, Roots: h.Roots, Log: log})
}

func (h Hardware) smi(log *slog.Logger) *smi.SMI {
	return smi.New(smi.Deps{Program: h.SMI, DriverRoot: h.Roots.Driver, Log: log})
}

// cards lets the partition change cards.
type cards struct {
	actions *nvidia.Actions
	adapter *nvidia.Adapter
	program *smi.SMI
	// wereReset is told of GPUs that were reset: they have lost their settings.
	wereReset func([]gpu.UUID)
	// report tells the inventory of a reset.
	report func(context.Context, gpu.Event) error
	now    func() time.Time
}

var _ migapply.Hardware = cards{}

// bounded does a call into the driver, which nothing can interrupt, and waits no longer
// than ctx.
func bounded[T any](ctx context.Context, what string, call func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		value, err := call()
		done <- answer{value, err}
	}()
	select {
	case got := <-done:
		return got.value, got.err
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("%s: no answer from the driver: %w", what, ctx.Err())
	}
}

// The partition bounds these calls itself, and keeps a card barred until a call that
// hangs has really ended: one that came back late could otherwise remove what a pod has
// got meanwhile.

// SetMIGMode implements migapply.Hardware.
func (c cards) SetMIGMode(_ context.Context, card gpu.UUID, on bool) (bool, error) {
	defer c.adapter.MIGChanged(card)
	return c.actions.SetMIGMode(card, on)
}

// CreateMIG implements migapply.Hardware.
func (c cards) CreateMIG(_ context.Context, card gpu.UUID, profile string, start int) error {
	defer c.adapter.MIGChanged(card)
	_, err := c.actions.CreateMIG(card, profile, start)
	return err
}

// DestroyMIG implements migapply.Hardware.
func (c cards) DestroyMIG(_ context.Context, card gpu.UUID, gi int) error {
	defer c.adapter.MIGChanged(card)
	return c.actions.DestroyMIG(card, gi)
}

// RemoveEmptyMIG implements migapply.Hardware.
func (c cards) RemoveEmptyMIG(_ context.Context, card gpu.UUID, gi int) error {
	return c.actions.RemoveEmptyMIG(card, gi)
}

// Reset implements migapply.Hardware. A card is reset only while nobody has it open, this
// agent's own scans included. The inventory is told of it once it may look again.
func (c cards) Reset(ctx context.Context, ids []gpu.UUID) error {
	resume, err := c.adapter.Suspend(ctx)
	if err != nil {
		return fmt.Errorf("reset GPUs: %w", err)
	}
	err = c.program.ResetGPUs(ctx, ids)
	c.wereReset(ids)
	resume()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := c.report(ctx, gpu.Event{GPU: id, GI: gpu.NoInstance, CI: gpu.NoInstance, Reset: true, Time: c.now()}); err != nil {
			return fmt.Errorf("reset GPUs: %w", err)
		}
	}
	return nil
}

// Touch implements migapply.Hardware.
func (c cards) Touch(ctx context.Context) error { return c.program.Touch(ctx) }

// scanned lets the partition wait for the inventory.
type scanned struct{ inventory *inventory.Inventory }

// Current implements migapply.Inventory.
func (s scanned) Current() *gpu.Snapshot { return s.inventory.Current() }

// Rescan implements migapply.Inventory.
func (s scanned) Rescan(ctx context.Context) error { return s.inventory.Refresh(ctx) }

// computeModes lets the MPS supervisor change compute modes.
type computeModes struct{ actions *nvidia.Actions }

var _ mps.ComputeModes = computeModes{}

// modeWords are the compute modes in the order of NVML's numbers (nvmlComputeMode_t), of
// which 1 is not used any more.
func modeWords() []string {
	return []string{nvidia.ComputeModeDefault, "", nvidia.ComputeModeProhibited, nvidia.ComputeModeExclusiveProcess}
}

// ComputeMode implements mps.ComputeModes.
func (c computeModes) ComputeMode(ctx context.Context, card gpu.UUID) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, actionTimeout)
	defer cancel()
	word, err := bounded(ctx, "read compute mode of "+string(card), func() (string, error) { return c.actions.ComputeMode(card) })
	if err != nil {
		return 0, err
	}
	mode := slices.Index(modeWords(), word)
	if mode < 0 {
		return 0, fmt.Errorf("read compute mode of %s: %s is not a mode that can be restored (set another one with: nvidia-smi -i %s -c DEFAULT)", card, word, card)
	}
	return mode, nil
}

// SetComputeMode implements mps.ComputeModes.
func (c computeModes) SetComputeMode(ctx context.Context, card gpu.UUID, mode int) error {
	words := modeWords()
	if mode < 0 || mode >= len(words) || words[mode] == "" {
		return fmt.Errorf("set compute mode of %s: %d is no compute mode", card, mode)
	}
	ctx, cancel := context.WithTimeout(ctx, actionTimeout)
	defer cancel()
	_, err := bounded(ctx, "set compute mode of "+string(card), func() (int, error) { return mode, c.actions.SetComputeMode(card, words[mode]) })
	return err
}
