package hardware

import (
	"context"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/bound"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/node/openers"
)

// Counted is the adapter with each of its events counted on its way.
type Counted struct {
	*nvidia.Adapter
	Count func(gpu.Event)
}

// Watch reports the events of the hardware to emit, after they were counted.
func (c Counted) Watch(ctx context.Context, emit func(gpu.Event)) error {
	return c.Adapter.Watch(ctx, func(event gpu.Event) {
		c.Count(event)
		emit(event)
	})
}

// Processes returns what lists the processes that have a GPU open. It waits for a driver that hangs only until its context ends.
func Processes(actions *nvidia.Actions) func(context.Context, *gpu.GPU) ([]openers.Process, error) {
	return func(ctx context.Context, device *gpu.GPU) ([]openers.Process, error) {
		found, err := bound.Call(ctx, "find who has GPU "+string(device.UUID)+" open", func() ([]nvidia.Opener, error) { return actions.Openers(device) })
		var processes []openers.Process
		for _, p := range found {
			processes = append(processes, openers.Process{PID: p.PID, Program: p.Program, Parent: p.Parent})
		}
		return processes, err
	}
}
