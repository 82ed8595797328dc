package hardware

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/migapply"
)

// MIGDriver is a vendor whose GPUs have MIG.
type MIGDriver interface {
	SetMIGMode(id gpu.UUID, on bool) (pendingReset bool, err error)
	CreateMIG(id gpu.UUID, profile string, start int) (gi int, err error)
	DestroyMIG(id gpu.UUID, gi int) error
	RemoveEmptyMIG(id gpu.UUID, gi int) error
	// MIGChanged makes the next scan read the MIG devices of a GPU again.
	MIGChanged(id gpu.UUID)
	// Suspend closes the driver until resume is called.
	Suspend(ctx context.Context) (resume func(), err error)
	ResetGPUs(ctx context.Context, ids []gpu.UUID) error
	Touch(ctx context.Context) error
}

// MIGDeps are the dependencies of a MIG.
type MIGDeps struct {
	Driver MIGDriver
	// WereReset is called with GPUs that were reset: they have lost their settings.
	WereReset func([]gpu.UUID)
	// Report reports a reset to the inventory.
	Report func(context.Context, gpu.Event) error
	Now    func() time.Time
}

// MIG changes the MIG layout of GPUs and resets them. It does not bound its calls: migapply does, and blocks a GPU
// until a call that hangs has really ended. A call that returned late could otherwise remove devices that a pod was
// allocated in the meantime.
type MIG struct{ deps MIGDeps }

var _ migapply.Hardware = MIG{}

// NewMIG returns a MIG.
func NewMIG(deps MIGDeps) MIG { return MIG{deps} }

// SetMIGMode implements migapply.Hardware.
func (m MIG) SetMIGMode(_ context.Context, id gpu.UUID, on bool) (bool, error) {
	defer m.deps.Driver.MIGChanged(id)
	return m.deps.Driver.SetMIGMode(id, on)
}

// CreateMIG implements migapply.Hardware.
func (m MIG) CreateMIG(_ context.Context, id gpu.UUID, profile string, start int) error {
	defer m.deps.Driver.MIGChanged(id)
	_, err := m.deps.Driver.CreateMIG(id, profile, start)
	return err
}

// DestroyMIG implements migapply.Hardware.
func (m MIG) DestroyMIG(_ context.Context, id gpu.UUID, gi int) error {
	defer m.deps.Driver.MIGChanged(id)
	return m.deps.Driver.DestroyMIG(id, gi)
}

// RemoveEmptyMIG implements migapply.Hardware.
func (m MIG) RemoveEmptyMIG(_ context.Context, id gpu.UUID, gi int) error {
	return m.deps.Driver.RemoveEmptyMIG(id, gi)
}

// Reset implements migapply.Hardware. A GPU can be reset only while no process has it open, which includes this agent's
// own scans. The inventory gets the event once it may scan again.
func (m MIG) Reset(ctx context.Context, ids []gpu.UUID) error {
	resume, err := m.deps.Driver.Suspend(ctx)
	if err != nil {
		return fmt.Errorf("reset GPUs: %w", err)
	}
	err = m.deps.Driver.ResetGPUs(ctx, ids)
	m.deps.WereReset(ids)
	resume()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := m.deps.Report(ctx, gpu.Event{GPU: id, GI: gpu.NoInstance, CI: gpu.NoInstance, Reset: true, Time: m.deps.Now()}); err != nil {
			return fmt.Errorf("reset GPUs: %w", err)
		}
	}
	return nil
}

// Touch implements migapply.Hardware.
func (m MIG) Touch(ctx context.Context) error { return m.deps.Driver.Touch(ctx) }
