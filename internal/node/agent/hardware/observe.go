package hardware

import (
	"context"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
)

// Observed is a vendor that calls a function with each event.
type Observed struct {
	hardware.Vendor
	observe func(gpu.Event)
}

// Observe returns a vendor that calls observe with each event before it passes the event on. observe must not block.
func Observe(v hardware.Vendor, observe func(gpu.Event)) Observed { return Observed{v, observe} }

// Watch implements [hardware.Vendor].
func (o Observed) Watch(ctx context.Context, emit func(gpu.Event)) error {
	return o.Vendor.Watch(ctx, func(event gpu.Event) {
		o.observe(event)
		emit(event)
	})
}

// Doing returns the call that the running scan is in, and its GPU, if the vendor reports it.
func (o Observed) Doing() (id gpu.UUID, call string) {
	if v, ok := o.Vendor.(interface{ Doing() (gpu.UUID, string) }); ok {
		return v.Doing()
	}
	return "", ""
}

// Past returns the events of this boot, and the last record of the kernel log, if the vendor can tell.
func (o Observed) Past() (events []gpu.Event, last uint64) {
	if v, ok := o.Vendor.(interface{ Past() ([]gpu.Event, uint64) }); ok {
		return v.Past()
	}
	return nil, 0
}

// OnBus returns how many GPUs of the configured vendor the machine has, with or without a driver. It reads sysfs.
func (m Machine) OnBus() int { return nvidia.CountOnBus(m.Roots) }
