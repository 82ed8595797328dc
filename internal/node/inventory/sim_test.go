package inventory_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/inventory"
)

// patience bounds how long a test waits for a result that should take milliseconds.
const patience = 30 * time.Second

// onSim runs an inventory on a simulated machine, in real time.
func onSim(t *testing.T, profile string) (*sim.Machine, *inventory.Inventory) {
	t.Helper()
	m, err := sim.Create(filepath.Join(t.TempDir(), "machine"), profile)
	if err != nil {
		t.Fatal(err)
	}
	root := m.Root()
	adapter := nvidia.New(nvidia.Deps{Library: m.NVML(), Roots: nvidia.Roots{
		Driver: root, Dev: root, Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys"),
	}})
	i := inventory.New(inventory.Deps{Vendors: []inventory.Source{adapter}, Poll: 100 * time.Millisecond, Deadline: time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- i.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		adapter.Close()
	})
	<-i.Ready()
	return m, i
}

// until reads at each signal until a GPU (or the node, for "") has the wanted state.
func until(t *testing.T, i *inventory.Inventory, id gpu.UUID, want string) {
	t.Helper()
	s := i.Subscribe()
	defer s.Close()
	give := time.NewTimer(patience)
	defer give.Stop()
	for {
		got := sorted(codes(i.Current(), id))
		if got == want {
			return
		}
		select {
		case <-s.C():
		case <-give.C:
			t.Fatalf("%q after %v; want %q", got, patience, want)
		}
	}
}

// sorted orders the causes after the state by name.
func sorted(verdict string) string {
	words := strings.Fields(verdict)
	if len(words) > 1 {
		slices.Sort(words[1:])
	}
	return strings.Join(words, " ")
}

// xidSeen injects an XID until it is seen: the hardware reports events only to watches that are registered, and a test
// cannot see when a watch is. It returns how long that took from the start of the injection, which writes files.
func xidSeen(t *testing.T, m *sim.Machine, i *inventory.Inventory, id gpu.UUID) time.Duration {
	t.Helper()
	s := i.Subscribe()
	defer s.Close()
	give := time.NewTimer(patience)
	defer give.Stop()
	for {
		at := time.Now()
		do(t, m.Inject(sim.Fault{GPU: string(id), XID: 79, Recovery: "node-reboot"}))
		for waiting := true; waiting; {
			select {
			case <-s.C():
				if strings.Contains(codes(i.Current(), id), "XID79") {
					return time.Since(at)
				}
			case <-time.After(200 * time.Millisecond):
				waiting = false
			case <-give.C:
				t.Fatalf("no XID 79 in %v: %q", patience, codes(i.Current(), id))
			}
		}
	}
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestFaultsAndRepairs injects each fault into a simulated node and repairs it, without a restart.
func TestFaultsAndRepairs(t *testing.T) {
	m, i := onSim(t, "a30x4")
	victim := i.Current().GPUs[2].UUID
	ref := string(victim)
	for _, step := range []struct {
		name  string
		fault sim.Fault
		want  string
	}{
		{"lost without an event", sim.Fault{GPU: ref, LostSilently: true}, "Gone GPU_LOST"},
		{"taken out", sim.Fault{GPU: ref, Remove: true}, "absent"},
		{"row remap", sim.Fault{GPU: ref, RowRemap: sim.RowRemapFailed}, "NeedsReset RECOVERY_ACTION ROW_REMAP_FAILURE XID64"},
		{"hang", sim.Fault{GPU: ref, Hang: "GetTotalEccErrors"}, "Unhealthy NVML_TIMEOUT"},
		{"in the kernel's log only", sim.Fault{GPU: ref, XID: 119, LogOnly: true, Recovery: "gpu-reset"}, "NeedsReset RECOVERY_ACTION XID119"},
		{"a recovery action", sim.Fault{GPU: ref, Recovery: "node-reboot"}, "NeedsReboot RECOVERY_ACTION"},
		{"driver gone", sim.Fault{DriverGone: true}, "Gone DRIVER_MISSING"},
	} {
		if step.name == "row remap" {
			xidSeen(t, m, i, victim)
			until(t, i, victim, "NeedsReboot RECOVERY_ACTION XID79")
			do(t, m.Clear(ref))
			until(t, i, victim, "Healthy")
		}
		do(t, m.Inject(step.fault))
		until(t, i, victim, step.want)
		if step.name != "driver gone" {
			until(t, i, i.Current().GPUs[0].UUID, "Healthy")
		}
		do(t, m.Clear(sim.ClearAll))
		until(t, i, victim, "Healthy")
		until(t, i, "", "")
	}
}

// TestFaultOfOneMIGDevice injects a fault of one MIG device that affects neither its sibling nor the GPU, and one that
// needs a reset, which affects them all.
func TestFaultOfOneMIGDevice(t *testing.T) {
	m, i := onSim(t, "a30x4")
	actions := nvidia.NewActions(nvidia.Deps{Library: m.NVML()})
	id := i.Current().GPUs[1].UUID
	if pending, err := actions.SetMIGMode(id, true); err != nil {
		t.Fatal(err)
	} else if pending {
		do(t, m.ResetGPUs(string(id)))
	}
	for _, start := range []int{0, 1} {
		if _, err := actions.CreateMIG(id, "1g.6gb", start); err != nil {
			t.Fatal(err)
		}
	}
	states := func() string {
		card := i.Current().GPU(id)
		text := string(card.Health.State)
		for _, device := range card.MIG.Devices {
			text += " " + string(device.Health.State)
		}
		return text
	}
	wait := func(want string) {
		t.Helper()
		s := i.Subscribe()
		defer s.Close()
		for give := time.After(patience); states() != want; {
			select {
			case <-s.C():
			case <-give:
				t.Fatalf("GPU and MIG devices are %q; want %q", states(), want)
			}
		}
	}
	wait("Healthy Healthy Healthy")
	device := string(i.Current().GPU(id).MIG.Devices[1].UUID)
	xidSeen(t, m, i, i.Current().GPUs[0].UUID) // the watch has started
	// The application's error leaves the device advertised, as the driver requests nothing.
	do(t, m.Inject(sim.Fault{GPU: device, XID: 69}))
	wait("Healthy Healthy Degraded")
	wait("Healthy Healthy Healthy")
	// So does a contained memory error; the error count is the GPU's, and stays.
	do(t, m.Inject(sim.Fault{GPU: device, XID: 94}))
	wait("Degraded Degraded Degraded")
	do(t, m.Inject(sim.Fault{GPU: string(id), Recovery: "drain-and-reset"}))
	wait("Draining Draining Draining")
	do(t, m.Clear(string(id)))
	wait("Healthy Healthy Healthy")
	do(t, m.Inject(sim.Fault{GPU: device, XID: 95, Recovery: "gpu-reset"}))
	wait("NeedsReset NeedsReset NeedsReset")
	until(t, i, id, "NeedsReset RECOVERY_ACTION XID95")
	do(t, m.Clear(string(id)))
	wait("Healthy Healthy Healthy")
}

// TestXIDReachesCurrentAtOnce measures the time from the event log to Current.
func TestXIDReachesCurrentAtOnce(t *testing.T) {
	m, i := onSim(t, "t4x4")
	took := xidSeen(t, m, i, i.Current().GPUs[1].UUID)
	t.Logf("XID 79 in Current %v after its injection began", took.Round(10*time.Microsecond))
}
