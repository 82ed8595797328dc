package hardware

import (
	"context"

	"github.com/berth-gpu/berth/internal/core/gpu"
	vendor "github.com/berth-gpu/berth/internal/hardware"
	"github.com/berth-gpu/berth/internal/hardware/bound"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/node/openers"
)

// openerFinder finds the programs that have a GPU open; NVIDIA's vendor is one.
type openerFinder interface {
	Openers(device *gpu.GPU) ([]nvidia.Opener, error)
}

// Processes returns a function that lists the processes that have a GPU open, by the first vendor that can find them. If
// the driver hangs, it waits until its context ends.
func Processes(vendors []vendor.Vendor) func(context.Context, *gpu.GPU) ([]openers.Process, error) {
	actions, _ := vendor.Find[openerFinder](vendors)
	return func(ctx context.Context, device *gpu.GPU) ([]openers.Process, error) {
		found, err := bound.Call(ctx, "find who has GPU "+string(device.UUID)+" open", func() ([]nvidia.Opener, error) { return actions.Openers(device) })
		var processes []openers.Process
		for _, p := range found {
			processes = append(processes, openers.Process{PID: p.PID, Program: p.Program, Parent: p.Parent})
		}
		return processes, err
	}
}
