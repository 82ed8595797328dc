package hardware_test

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/hardware/vendortest"
)

// TestNVIDIA runs the vendor tests on simulated machines of an old, a MIG-capable and a switched kind.
func TestNVIDIA(t *testing.T) {
	for profile, gpus := range map[string]int{"t4x4": 4, "a30x4": 4, "h100x8": 8} {
		t.Run(profile, func(t *testing.T) {
			vendortest.Run(t, func(t *testing.T) vendortest.Machine {
				m, err := sim.Create(filepath.Join(t.TempDir(), "machine"), profile)
				if err != nil {
					t.Fatal(err)
				}
				root := m.Root()
				vendors := hardware.Open(hardware.Deps{
					Library: m.NVML(), Log: slog.New(slog.DiscardHandler),
					Roots: hardware.Roots{Driver: root, Dev: root, Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys")},
				})
				change := func(do func() error) func(*testing.T) {
					return func(t *testing.T) {
						t.Helper()
						if err := do(); err != nil {
							t.Fatal(err)
						}
					}
				}
				return vendortest.Machine{
					Vendor: vendors[0], GPUs: gpus,
					RemoveDriver:  change(func() error { return m.Inject(sim.Fault{DriverGone: true}) }),
					RestoreDriver: change(func() error { return m.Clear(sim.ClearDriver) }),
				}
			})
		})
	}
}

// TestOpenWithoutADriver checks that Open returns the vendor on a machine without a driver, which may be installed
// later.
func TestOpenWithoutADriver(t *testing.T) {
	root := t.TempDir()
	vendors := hardware.Open(hardware.Deps{Roots: hardware.Roots{Driver: root, Dev: root, Proc: root, Sys: root}})
	if len(vendors) != 1 || vendors[0].Traits().Name != gpu.NVIDIA {
		t.Fatalf("vendors %v", vendors)
	}
	var traits []gpu.Traits
	for _, v := range vendors {
		traits = append(traits, v.Traits())
	}
	if diff := cmp.Diff(traits, hardware.Traits()); diff != "" {
		t.Errorf("the names of the vendors (-of Open +Traits):\n%s", diff)
	}
	snapshot, err := vendors[0].Scan(t.Context())
	if err != nil || len(snapshot.Faults) != 1 || snapshot.Faults[0].Code != "DRIVER_MISSING" {
		t.Errorf("%+v, %v", snapshot, err)
	}
}

// TestFind finds vendors by what they can do.
func TestFind(t *testing.T) {
	vendors := hardware.Open(hardware.Deps{Roots: hardware.Roots{Driver: t.TempDir()}})
	if _, ok := hardware.Find[interface {
		SetComputeMode(id gpu.UUID, mode string) error
	}](vendors); !ok {
		t.Error("NVIDIA's vendor has no compute modes")
	}
	if name := hardware.NameOf[interface {
		SetComputeMode(id gpu.UUID, mode string) error
	}](vendors); name != gpu.NVIDIA {
		t.Errorf("the vendor with compute modes is %q", name)
	}
	if name := hardware.NameOf[interface{ Fly() }](vendors); name != "" {
		t.Errorf("%q can do what none can", name)
	}
	if _, ok := hardware.Find[interface{ Fly() }](vendors); ok {
		t.Error("a vendor can do what none can")
	}
}
