package hardware

import (
	"context"

	"github.com/berth-gpu/berth/internal/core/gpu"
	vendor "github.com/berth-gpu/berth/internal/hardware"
	"github.com/berth-gpu/berth/internal/hardware/bound"
)

// openerFinder finds the programs that have a GPU open; NVIDIA's vendor is one.
type openerFinder interface {
	Openers(device *gpu.GPU) ([]gpu.Process, error)
}

// Processes returns a function that lists the processes that have a GPU open, by the first vendor that can find them. If
// the driver hangs, it waits until its context ends.
func Processes(vendors []vendor.Vendor) func(context.Context, *gpu.GPU) ([]gpu.Process, error) {
	actions, _ := vendor.Find[openerFinder](vendors)
	return func(ctx context.Context, device *gpu.GPU) ([]gpu.Process, error) {
		return bound.Call(ctx, "find who has GPU "+string(device.UUID)+" open", func() ([]gpu.Process, error) { return actions.Openers(device) })
	}
}
