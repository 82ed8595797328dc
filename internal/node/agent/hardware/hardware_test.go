package hardware

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// TestOpenRealDriver checks that the paths of an agent in a container are below the mount of the host, except the
// kernel's own.
func TestOpenRealDriver(t *testing.T) {
	machine, err := Open("", &v1alpha1.AgentConfig{HostRoot: "/host", DriverRoot: "/run/nvidia/driver", DevRoot: "/"})
	if err != nil {
		t.Fatal(err)
	}
	want := nvidia.Roots{Driver: "/host/run/nvidia/driver", Dev: "/host", Proc: "/proc", Sys: "/sys"}
	if machine.Roots != want || machine.CDI.Host != "/host" || machine.Simulated != "" {
		t.Errorf("roots are %+v and %+v, want %+v", machine.Roots, machine.CDI, want)
	}
	if !slices.Equal(machine.MakeNodes, []string{"/host", "/"}) {
		t.Errorf("device nodes are created below %v, want the host's root and the process's own", machine.MakeNodes)
	}
	if control := machine.MPSControl; len(control) != 4 || !slices.Equal(control[1:], []string{RootedCommand, want.Driver, mpsControl}) {
		t.Errorf("the MPS control daemon is started with %q", control)
	}

	machine, err = Open("", &v1alpha1.AgentConfig{HostRoot: "/", DriverRoot: "/", DevRoot: "/"})
	if err != nil {
		t.Fatal(err)
	}
	if machine.MPSControl != nil || !slices.Equal(machine.MakeNodes, []string{"/"}) {
		t.Errorf("on the host: MPS control daemon %q, device nodes below %v; want the driver's own and /", machine.MPSControl, machine.MakeNodes)
	}
}

// TestOpenSimulated checks that a simulated machine is opened like a driver below another root.
func TestOpenSimulated(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sim")
	if _, err := Open(dir, &v1alpha1.AgentConfig{}); err == nil || !strings.Contains(err.Error(), "berth sim create "+dir) {
		t.Errorf("without a machine: %v", err)
	}
	simulated, err := sim.Create(dir, "t4x4")
	if err != nil {
		t.Fatal(err)
	}
	machine, err := Open(dir, &v1alpha1.AgentConfig{HostRoot: "/host", DriverRoot: "/run/nvidia/driver", DevRoot: "/"})
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, "root")
	want := nvidia.Roots{Driver: root, Dev: root, Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys")}
	if machine.Roots != want || machine.CDI.Driver != "/host"+root || machine.CDI.Host != "/host" || machine.Simulated != dir || machine.MakeNodes != nil || machine.SMI != nil {
		t.Errorf("got %+v, want the roots %+v", machine, want)
	}
	if control := machine.MPSControl; len(control) != 4 || !slices.Equal(control[1:], []string{RootedCommand, root, mpsControl}) {
		t.Errorf("the MPS control daemon is started with %q", control)
	}
	deps := VendorDeps{Log: slog.New(slog.DiscardHandler)}
	// The files of this machine have no code, which an agent reports like a missing library.
	if snapshot, err := machine.Vendors(deps)[0].Scan(t.Context()); err != nil || len(snapshot.GPUs) != 0 || len(snapshot.Faults) != 1 {
		t.Errorf("a scan without a library: %+v, %v", snapshot, err)
	}
	machine.Library = simulated.NVML()
	snapshot, err := machine.Vendors(deps)[0].Scan(t.Context())
	if err != nil || len(snapshot.GPUs) != 4 {
		t.Errorf("a scan finds %d GPUs and returns %v", len(snapshot.GPUs), err)
	}
}

// driver has one GPU, whose compute mode it stores; with hang set its calls wait.
type driver struct {
	mode string
	hang chan struct{}
}

func (d *driver) ComputeMode(gpu.UUID) (string, error) {
	if d.hang != nil {
		<-d.hang
	}
	return d.mode, nil
}

func (d *driver) SetComputeMode(_ gpu.UUID, mode string) error {
	if d.hang != nil {
		<-d.hang
	}
	d.mode = mode
	return nil
}

// TestComputeModes checks that each of NVML's numbers is converted to its mode and back, and that others are refused
// before the driver is called.
func TestComputeModes(t *testing.T) {
	fake := &driver{}
	modes := NewComputeModes(fake)
	for mode, name := range map[int]string{0: nvidia.ComputeModeDefault, 2: nvidia.ComputeModeProhibited, 3: nvidia.ComputeModeExclusiveProcess} {
		if err := modes.SetComputeMode(t.Context(), "GPU-1", mode); err != nil || fake.mode != name {
			t.Errorf("set %d: %v, and the mode %q, want %q", mode, err, fake.mode, name)
		}
		if got, err := modes.ComputeMode(t.Context(), "GPU-1"); err != nil || got != mode {
			t.Errorf("read %q: %d, %v, want %d", name, got, err, mode)
		}
	}
	for _, mode := range []int{-1, 1, 4} {
		if err := modes.SetComputeMode(t.Context(), "GPU-1", mode); err == nil || fake.mode == "" {
			t.Errorf("set %d: %v, want a refusal", mode, err)
		}
	}
	fake.mode = "EXCLUSIVE_THREAD"
	if _, err := modes.ComputeMode(t.Context(), "GPU-1"); err == nil || !strings.Contains(err.Error(), "nvidia-smi -i GPU-1 -c DEFAULT") {
		t.Errorf("a mode that cannot be restored: %v, want the fix", err)
	}
}

// TestComputeModesOfAHungDriver checks that no call waits longer than its bound, nor longer than its caller.
func TestComputeModesOfAHungDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		defer close(hang)
		began := time.Now()
		if _, err := NewComputeModes(&driver{hang: hang}).ComputeMode(t.Context(), "GPU-1"); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != computeModeTimeout {
			t.Errorf("read: %v after %s", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if err := NewComputeModes(&driver{hang: hang}).SetComputeMode(ctx, "GPU-1", 0); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("set: %v after %s", err, time.Since(began))
		}
	})
}
