package hardware

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/bound"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/node/mps"
)

// computeModeTimeout bounds a call about a compute mode.
const computeModeTimeout = 30 * time.Second

// ComputeModer reads and sets the compute mode of a GPU by its name; NVIDIA's vendor is one.
type ComputeModer interface {
	ComputeMode(gpu.UUID) (string, error)
	SetComputeMode(id gpu.UUID, mode string) error
}

var _ ComputeModer = (*nvidia.Actions)(nil)

// ComputeModes reads and sets compute modes by NVML's numbers, which the MPS supervisor keeps.
type ComputeModes struct{ driver ComputeModer }

var _ mps.ComputeModes = ComputeModes{}

// NewComputeModes returns a ComputeModes.
func NewComputeModes(driver ComputeModer) ComputeModes { return ComputeModes{driver} }

// modeNames are the compute modes in the order of NVML's numbers (nvmlComputeMode_t), of which 1 is no longer used.
func modeNames() []string {
	return []string{nvidia.ComputeModeDefault, "", nvidia.ComputeModeProhibited, nvidia.ComputeModeExclusiveProcess}
}

// ComputeMode implements mps.ComputeModes.
func (c ComputeModes) ComputeMode(ctx context.Context, id gpu.UUID) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, computeModeTimeout)
	defer cancel()
	name, err := bound.Call(ctx, "read compute mode of "+string(id), func() (string, error) { return c.driver.ComputeMode(id) })
	if err != nil {
		return 0, err
	}
	mode := slices.Index(modeNames(), name)
	if mode < 0 {
		return 0, fmt.Errorf("read compute mode of %s: %s is not a mode that can be restored (set another one with: nvidia-smi -i %s -c DEFAULT)", id, name, id)
	}
	return mode, nil
}

// SetComputeMode implements mps.ComputeModes.
func (c ComputeModes) SetComputeMode(ctx context.Context, id gpu.UUID, mode int) error {
	names := modeNames()
	if mode < 0 || mode >= len(names) || names[mode] == "" {
		return fmt.Errorf("set compute mode of %s: %d is not a compute mode", id, mode)
	}
	ctx, cancel := context.WithTimeout(ctx, computeModeTimeout)
	defer cancel()
	_, err := bound.Call(ctx, "set compute mode of "+string(id), func() (int, error) { return mode, c.driver.SetComputeMode(id, names[mode]) })
	return err
}
