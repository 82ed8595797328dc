package hardware

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/hardware/sim/simtest"
)

// TestMain lets the test binary replace the driver's programs.
func TestMain(m *testing.M) {
	simtest.Main()
	os.Exit(m.Run())
}

// TestMIG changes a simulated A100 from whole to a MIG device and back. The next scan sees each step, and each reset is
// reported to the actors that set properties of the GPU.
func TestMIG(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sim")
	simulated, err := sim.Create(dir, "a100x8-40g")
	if err != nil {
		t.Fatal(err)
	}
	machine, err := Open(dir, &v1alpha1.AgentConfig{HostRoot: "/"})
	if err != nil {
		t.Fatal(err)
	}
	machine.Library, machine.SMI = simulated.NVML(), simtest.SMI(simulated)
	log := slog.New(slog.DiscardHandler)
	adapter, _ := hardware.Find[interface {
		hardware.Vendor
		MIGDriver
	}](machine.Vendors(VendorDeps{Log: log}))
	var reset []gpu.UUID
	var events []gpu.Event
	lost := errors.New("the inventory has stopped")
	var report error
	now := time.Unix(100, 0)
	mig := NewMIG(MIGDeps{
		Driver:    adapter,
		WereReset: func(ids []gpu.UUID) { reset = append(reset, ids...) },
		Report:    func(_ context.Context, e gpu.Event) error { events = append(events, e); return report },
		Now:       func() time.Time { return now },
	})
	ctx := t.Context()
	scan := func() gpu.GPU {
		t.Helper()
		snapshot, err := adapter.Scan(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return snapshot.GPUs[0]
	}
	id := scan().UUID

	pending, err := mig.SetMIGMode(ctx, id, true)
	if err != nil || !pending {
		t.Fatalf("SetMIGMode = %v, %v; want a mode that is pending until a reset", pending, err)
	}
	if err := mig.Reset(ctx, []gpu.UUID{id}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(reset, []gpu.UUID{id}) || len(events) != 1 || !events[0].Reset || events[0].GPU != id || !events[0].Time.Equal(now) {
		t.Errorf("after a reset the callbacks got %v and %+v, want the GPU and one event", reset, events)
	}
	if got := scan(); !got.MIG.Enabled {
		t.Errorf("MIG is %+v after the reset, want it enabled", got.MIG)
	}
	if err := mig.CreateMIG(ctx, id, "3g.20gb", 0); err != nil {
		t.Fatal(err)
	}
	devices := scan().MIG.Devices
	if len(devices) != 1 {
		t.Fatalf("the GPU has the MIG devices %v, want one", devices)
	}
	if err := mig.DestroyMIG(ctx, id, devices[0].GI); err != nil {
		t.Fatal(err)
	}
	if left := scan().MIG.Devices; len(left) != 0 {
		t.Errorf("the GPU has the MIG devices %v, want none", left)
	}
	if err := mig.RemoveEmptyMIG(ctx, id, devices[0].GI); err != nil {
		t.Errorf("a GPU instance that is gone already: %v", err)
	}
	if err := mig.Touch(ctx); err != nil {
		t.Error(err)
	}

	report = lost
	if err := mig.Reset(ctx, []gpu.UUID{id}); !errors.Is(err, lost) {
		t.Errorf("Reset = %v, want that the inventory did not get the event", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := mig.Reset(ended, []gpu.UUID{id}); !errors.Is(err, context.Canceled) {
		t.Errorf("Reset = %v with an ended context", err)
	}
}
