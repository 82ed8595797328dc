package migapply_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/inventory"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/openers"
)

// node is a simulated machine with the real code above it, down to NVML's interface.
type node struct {
	t         *testing.T
	machine   *sim.Machine
	actions   *nvidia.Actions
	inventory *inventory.Inventory
	dir       string
}

func newNode(t *testing.T, profile string) *node {
	t.Helper()
	return newNodeWith(t, profile, sim.Options{})
}

func newNodeWith(t *testing.T, profile string, options sim.Options) *node {
	t.Helper()
	m, err := sim.CreateWith(filepath.Join(t.TempDir(), "machine"), profile, options)
	if err != nil {
		t.Fatal(err)
	}
	root := m.Root()
	deps := nvidia.Deps{Library: m.NVML(), Roots: nvidia.Roots{
		Driver: root, Dev: root, Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys"),
	}}
	adapter := nvidia.New(deps)
	n := &node{t: t, machine: m, actions: nvidia.NewActions(deps), dir: t.TempDir(),
		inventory: inventory.New(inventory.Deps{Vendors: []inventory.Source{adapter}})}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.inventory.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		adapter.Close()
	})
	<-n.inventory.Ready()
	return n
}

func (n *node) Current() *gpu.Snapshot            { return n.inventory.Current() }
func (n *node) Refresh(ctx context.Context) error { return n.inventory.Refresh(ctx) }
func (n *node) Touch(context.Context) error       { return nil }

func (n *node) SetMIGMode(_ context.Context, device gpu.UUID, on bool) (bool, error) {
	return n.actions.SetMIGMode(device, on)
}

func (n *node) CreateMIG(_ context.Context, device gpu.UUID, profile string, start int) error {
	_, err := n.actions.CreateMIG(device, profile, start)
	return err
}

func (n *node) DestroyMIG(_ context.Context, device gpu.UUID, gi int) error {
	return n.actions.DestroyMIG(device, gi)
}

func (n *node) RemoveEmptyMIG(_ context.Context, device gpu.UUID, gi int) error {
	return n.actions.RemoveEmptyMIG(device, gi)
}

func (n *node) openers(_ context.Context, device gpu.UUID) ([]openers.Opener, error) {
	found, err := n.actions.Openers(n.Current().GPU(device))
	var open []openers.Opener
	for _, o := range found {
		open = append(open, openers.Opener{PID: o.PID, Program: o.Program})
	}
	return open, err
}

func (n *node) Reset(_ context.Context, gpus []gpu.UUID) error {
	var refs []string
	for _, device := range gpus {
		refs = append(refs, string(device))
	}
	return n.machine.ResetGPUs(refs...)
}

// life runs an agent until it is killed or nothing is left to do, and returns the last statuses and the steps.
func (n *node) life(wants []migapply.Want, pods []gpu.DeviceKey, killAt int) (last []migapply.Status, steps int) {
	n.t.Helper()
	book, err := ledger.Open(ledger.Deps{Path: filepath.Join(n.dir, "ledger"), BootID: "boot", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		n.t.Fatal(err)
	}
	defer book.Close()
	var view ledger.NodeView
	for i, key := range pods {
		view.Assignments = append(view.Assignments, ledger.Assignment{PodUID: fmt.Sprintf("pod-%d", i),
			Container: "main", Keys: []gpu.DeviceKey{key}})
	}
	book.Reconcile(view)
	killed := errors.New("killed")
	p := migapply.New(migapply.Deps{
		Dir: n.dir, Owner: "test", Hardware: n, Inventory: n, Ledger: book, Log: slog.New(slog.DiscardHandler), Openers: n.openers,
		Fault: func(migapply.Step) error {
			if steps++; steps == killAt {
				return killed
			}
			return nil
		},
	})
	for before := -1; (before != steps || busy(last)) && (killAt == 0 || steps < killAt); {
		if before == steps {
			time.Sleep(time.Millisecond) // On a loaded machine a call of the simulator takes longer than a round waits.
		}
		before = steps
		last = p.Reconcile(n.t.Context(), wants)
	}
	if killAt == 0 {
		for _, held := range book.Holdings() {
			if held.Holder.Kind == gpu.HolderMaintenance {
				n.t.Errorf("maintenance is left: %s", held)
			}
		}
	}
	return last, steps
}

// busy reports whether a call, also of an agent that was killed, has not returned.
func busy(statuses []migapply.Status) bool {
	return slices.ContainsFunc(statuses, func(s migapply.Status) bool {
		return s.State == migapply.Changing || strings.Contains(s.Message, "another agent of this node is changing its GPUs")
	})
}

func (n *node) are(t *testing.T, statuses []migapply.Status, wants []migapply.Want) {
	t.Helper()
	if err := n.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, s := range statuses {
		if s.State != migapply.Applied {
			t.Errorf("%s: %s", s.State, s.Message)
		}
		device := n.Current().GPU(wants[i].UUID)
		if !mig.Matches(mig.GPUOf(device, noHolders), wants[i].Wanted) || len(device.MIG.Empty) > 0 {
			t.Errorf("GPU %d is %+v", device.Index, device.MIG)
		}
	}
}

func noHolders(gpu.DeviceKey) []string { return nil }

// TestLayoutsOnSimulatedMachines applies layouts of a GPU of each kind: all possible ones on the small machines, which
// scan fast, and where a GPU has not 8 memory slices, and some on the others; all of them with BERTH_SOAK.
func TestLayoutsOnSimulatedMachines(t *testing.T) {
	for _, profile := range sim.Profiles() {
		t.Run(profile, func(t *testing.T) {
			n := newNode(t, profile)
			gpus := n.Current().GPUs
			if profile != "mixed" {
				gpus = gpus[:1]
			}
			var all []mig.GPU
			for i := range gpus {
				all = append(all, mig.GPUOf(&gpus[i], noHolders))
			}
			layouts := mig.HardwareLayouts(all)
			names := slices.Sorted(maps.Keys(layouts))
			if len(n.Current().GPUs) > 4 && all[0].Geometry.MemorySlices <= 8 && os.Getenv("BERTH_SOAK") == "" {
				names = []string{"all-balanced", "all-enabled", "all-disabled"}
				if len(all[0].Geometry.Profiles) > 0 {
					// The maximum number of the smallest profile.
					names = append(names, "all-"+all[0].Geometry.Profiles[0].Name)
				}
			}
			for _, name := range names {
				var wants []migapply.Want
				for _, device := range all {
					if wanted, named := layouts[name].Wanted(device); named {
						wants = append(wants, migapply.Want{UUID: device.UUID, Wanted: wanted, Source: "layout " + name})
					}
				}
				statuses, _ := n.life(wants, nil, 0)
				n.are(t, statuses, wants)
			}
		})
	}
}

// TestOldDriver uses a driver that names MIG profiles only in MIG mode: a GPU changes from MIG off to a layout, and
// back.
func TestOldDriver(t *testing.T) {
	for profile, devices := range map[string]map[string]int{"a30x4": {"1g.6gb": 2, "2g.12gb": 1}, "gb200x4": {"1g.23gb": 2, "3g.93gb": 1}} {
		t.Run(profile, func(t *testing.T) {
			n := newNodeWith(t, profile, sim.Options{MIGProfilesInMIGMode: true})
			device := n.Current().GPUs[0]
			if len(device.MIG.Geometry.Profiles) > 0 {
				t.Fatalf("the driver names profiles with MIG off: %v", device.MIG.Geometry)
			}
			wants := []migapply.Want{{UUID: device.UUID, Wanted: mig.Wanted{Enabled: true, Devices: devices}}}
			statuses, _ := n.life(wants, nil, 0)
			n.are(t, statuses, wants)
			off := []migapply.Want{{UUID: device.UUID}}
			statuses, _ = n.life(off, nil, 0)
			n.are(t, statuses, off)
			wants[0].Wanted.Devices = map[string]int{"9g.99gb": 1}
			if statuses, _ = n.life(wants, nil,
				0); statuses[0].State != migapply.Refused || !strings.Contains(statuses[0].Message, "9g.99gb") {
				t.Errorf("a profile that does not exist: %+v", statuses)
			}
		})
	}
}

// TestKilledOnSimulatedMachines changes a GPU with a reset and one without, one of them beside a device in use.
func TestKilledOnSimulatedMachines(t *testing.T) {
	for profile, devices := range map[string][2]map[string]int{
		"a30x4":   {{"1g.6gb": 3}, {"2g.12gb": 1, "1g.6gb": 1}},
		"gb200x4": {{"1g.23gb": 2}, {"4g.93gb": 1}},
	} {
		t.Run(profile, func(t *testing.T) {
			n := newNode(t, profile)
			first, second := n.Current().GPUs[0].UUID, n.Current().GPUs[1].UUID
			old := []migapply.Want{{UUID: first, Wanted: mig.Wanted{Enabled: true, Devices: devices[0]}}, {UUID: second}}
			next := []migapply.Want{{UUID: first, Wanted: mig.Wanted{Enabled: true, Devices: devices[1]}},
				{UUID: second, Wanted: mig.Wanted{Enabled: true, Devices: devices[0]}}}
			last := 0
			for at := 1; last == 0; at++ {
				statuses, _ := n.life(old, nil, 0)
				n.are(t, statuses, old)
				var held []gpu.DeviceKey
				if device := n.Current().GPU(first).MIG.Devices[0]; devices[1][device.Profile] > 0 {
					held = append(held, gpu.DeviceKey{GPU: first, MIG: device.UUID})
				}
				if _, steps := n.life(next, held, at); steps < at {
					last = at
				}
				statuses, _ = n.life(next, held, 0)
				n.are(t, statuses, next)
				for _, key := range held {
					if _, device := n.Current().Device(key.MIG); device == nil {
						t.Fatalf("killed at step %d: %s, which is in use, was removed", at, key)
					}
				}
			}
			if last < 15 {
				t.Errorf("only %d steps", last)
			}
		})
	}
}

// TestMaskedCapabilities checks that a MIG device is kept while /proc/driver/nvidia is masked or partly read and the
// ledger does not have the device, because NVML lists it.
func TestMaskedCapabilities(t *testing.T) {
	for _, hidden := range []string{"gi*/ci*", "gi*/*", "gi*"} {
		t.Run(hidden, func(t *testing.T) {
			n := newNode(t, "gb200x4")
			id := n.Current().GPUs[0].UUID
			wants := []migapply.Want{{UUID: id, Wanted: mig.Wanted{Enabled: true, Devices: map[string]int{"1g.23gb": 2}}}}
			n.life(wants, nil, 0)
			before := n.Current().GPU(id).MIG.Devices
			paths, err := filepath.Glob(filepath.Join(n.machine.Root(), "proc/driver/nvidia/capabilities/gpu0/mig", hidden))
			if err != nil || len(paths) == 0 {
				t.Fatalf("nothing to hide: %v", err)
			}
			for _, path := range paths {
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
			}
			if err := n.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			_, steps := n.life(wants, nil, 0)
			if after := n.Current().GPU(id).MIG.Devices; len(after) != len(before) || steps > 0 {
				t.Errorf("%d of %d devices are left after %d steps", len(after), len(before), steps)
			}
		})
	}
}

// TestOpenSimulatedGPU checks that a program that NVML does not list prevents the reset of a GPU, so its instances are
// kept until the program has ended.
func TestOpenSimulatedGPU(t *testing.T) {
	n := newNode(t, "a30x4")
	first := n.Current().GPUs[0]
	if len(first.Nodes) == 0 || first.Nodes[0].HostPath == "" {
		t.Skip("creating device nodes needs root with CAP_MKNOD")
	}
	on := []migapply.Want{{UUID: first.UUID, Wanted: mig.Wanted{Enabled: true, Devices: map[string]int{"1g.6gb": 4}}}}
	statuses, _ := n.life(on, nil, 0)
	n.are(t, statuses, on)
	if err := n.machine.OpenGPU("0", sim.Opener{PID: 4711, Program: "nv-hostengine"}); err != nil {
		t.Fatal(err)
	}
	off := []migapply.Want{{UUID: first.UUID}}
	statuses, _ = n.life(off, nil, 1000)
	if len(statuses) != 1 || statuses[0].State != migapply.Waiting || !strings.Contains(statuses[0].Message,
		"process 4711 (nv-hostengine)") {
		t.Errorf("statuses %+v", statuses)
	}
	if got := len(n.Current().GPU(first.UUID).MIG.Devices); got != 4 {
		t.Errorf("%d devices are left; want 4", got)
	}
	if err := n.machine.CloseGPU("0", 4711); err != nil {
		t.Fatal(err)
	}
	statuses, _ = n.life(off, nil, 0)
	n.are(t, statuses, off)
}
