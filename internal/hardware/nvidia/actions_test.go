package nvidia_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/hardware/sim/tools"
)

// actionsOn returns the actions of a new process.
func actionsOn(m *sim.Machine) *nvidia.Actions {
	return nvidia.NewActions(nvidia.Deps{Library: m.NVML()})
}

// smi runs the simulated nvidia-smi.
func smi(t testing.TB, m *sim.Machine, args ...string) {
	t.Helper()
	var output bytes.Buffer
	if code := tools.SMI(m.Root(), args, strings.NewReader(""), &output, &output); code != 0 {
		t.Fatalf("nvidia-smi %v: exit code %d: %s", args, code, &output)
	}
}

// must fails the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustCreate(t testing.TB, a *nvidia.Actions, uuid gpu.UUID, profile string, start int) int {
	t.Helper()
	gi, err := a.CreateMIG(uuid, profile, start)
	must(t, err)
	return gi
}

// devices prints the MIG devices of a GPU by their placement.
func devices(g *gpu.GPU) string {
	var parts []string
	for _, d := range g.MIG.Devices {
		parts = append(parts, fmt.Sprintf("%s@%d", d.Profile, d.Start))
	}
	slices.SortFunc(parts, func(x, y string) int { return strings.Compare(x[strings.Index(x, "@"):], y[strings.Index(y, "@"):]) })
	return strings.Join(parts, " ")
}

// TestWalkAmpere turns MIG on with a reset, creates and destroys all MIG devices, and turns MIG off with a reset. The scans
// show it, and no other GPU changes.
func TestWalkAmpere(t *testing.T) {
	m, a := machine(t, "a100x8-40g")
	act := actionsOn(m)
	before := scan(t, a)
	id := before.GPUs[3].UUID
	mode := func(want string) {
		t.Helper()
		mig := scan(t, a).GPU(id).MIG
		if got := fmt.Sprintf("enabled %v, pending %v", mig.Enabled, mig.PendingEnabled); got != want {
			t.Errorf("MIG %s; want %s", got, want)
		}
	}
	reset := func() {
		t.Helper()
		resume, err := a.Suspend(t.Context())
		must(t, err)
		smi(t, m, "--gpu-reset", "-i", string(id))
		resume()
	}
	for range 2 { // the second changes nothing
		pending, err := act.SetMIGMode(id, true)
		must(t, err)
		if !pending {
			t.Error("MIG on: no reset pending, want one")
		}
		mode("enabled false, pending true")
	}
	pending, err := act.SetMIGMode(id, false)
	must(t, err)
	if pending {
		t.Error("MIG off again before the reset: a reset pending, want none")
	}
	mode("enabled false, pending false")
	_, err = act.SetMIGMode(id, true)
	must(t, err)
	reset()
	mode("enabled true, pending true")
	if pending, err := act.SetMIGMode(id, true); err != nil || pending {
		t.Errorf("MIG on where it is on: %v, %v; want nothing to do", pending, err)
	}

	var instances []int
	for start := range 7 {
		instances = append(instances, mustCreate(t, act, id, "1g.5gb", start))
	}
	now := scan(t, a)
	if got, want := devices(now.GPU(id)), "1g.5gb@0 1g.5gb@1 1g.5gb@2 1g.5gb@3 1g.5gb@4 1g.5gb@5 1g.5gb@6"; got != want || now.GPU(id).MIG.Empty != nil {
		t.Errorf("devices %s, empty %v; want %s, none", got, now.GPU(id).MIG.Empty, want)
	}
	for _, d := range now.GPU(id).MIG.Devices {
		if !slices.Contains(instances, d.GI) || len(d.Nodes) != 2 {
			t.Errorf("device %+v: want one of the instances %v, and two nodes", d, instances)
		}
	}
	others(t, "the adapter", before, now, id)

	for _, gi := range instances {
		must(t, act.DestroyMIG(id, gi))
		must(t, act.DestroyMIG(id, gi)) // it does not exist, which is not an error
	}
	if pending, err = act.SetMIGMode(id, false); err != nil || !pending {
		t.Errorf("MIG off: pending %v, %v; want true", pending, err)
	}
	mode("enabled true, pending false")
	reset()
	mode("enabled false, pending false")
	must(t, act.DestroyMIG(id, 7)) // MIG is off
}

// TestWalkHopper checks that the mode changes immediately and does not persist over a reboot.
func TestWalkHopper(t *testing.T) {
	m, a := machine(t, "h100x8")
	act := actionsOn(m)
	id := scan(t, a).GPUs[0].UUID
	pending, err := act.SetMIGMode(id, true)
	must(t, err)
	if g := scan(t, a).GPU(id); pending || !g.MIG.Enabled {
		t.Errorf("MIG on: pending %v, enabled %v; want it in force", pending, g.MIG.Enabled)
	}
	three := mustCreate(t, act, id, "3g.40gb", 4)
	mustCreate(t, act, id, "1g.10gb+me", 0)
	mustCreate(t, act, id, "1g.20gb", 2)
	if got, want := devices(scan(t, a).GPU(id)), "1g.10gb+me@0 1g.20gb@2 3g.40gb@4"; got != want {
		t.Errorf("devices %s; want %s", got, want)
	}
	must(t, act.DestroyMIG(id, three))
	mustCreate(t, act, id, "2g.20gb", 4)
	if got, want := devices(scan(t, a).GPU(id)), "1g.10gb+me@0 1g.20gb@2 2g.20gb@4"; got != want {
		t.Errorf("devices %s; want %s", got, want)
	}
	must(t, m.Reboot())
	if g := scan(t, adapterOn(t, m)).GPU(id); g.MIG.Enabled || g.MIG.Devices != nil {
		t.Errorf("after a reboot: %+v; want MIG off", g.MIG)
	}
}

func TestComputeMode(t *testing.T) {
	m, a := machine(t, "t4x4")
	act := actionsOn(m)
	id := scan(t, a).GPUs[2].UUID
	for _, mode := range []string{nvidia.ComputeModeExclusiveProcess, nvidia.ComputeModeExclusiveProcess, nvidia.ComputeModeDefault} {
		must(t, act.SetComputeMode(id, mode))
		got, err := act.ComputeMode(id)
		if err != nil || got != mode {
			t.Errorf("mode %q, %v; want %q", got, err, mode)
		}
	}
}

// TestActionsRefused checks that errors have the reason, NVML's code, and the fix.
func TestActionsRefused(t *testing.T) {
	prepared := func(t *testing.T, profile string, layout ...string) (*sim.Machine, *nvidia.Actions, gpu.UUID) {
		m, a := machine(t, profile)
		act := actionsOn(m)
		id := scan(t, a).GPUs[0].UUID
		if layout != nil {
			_, err := act.SetMIGMode(id, true)
			must(t, err)
		}
		for _, device := range layout {
			name, start, _ := strings.Cut(device, "@")
			mustCreate(t, act, id, name, int(start[0]-'0'))
		}
		return m, act, id
	}
	create := func(profile string, start int) func(*nvidia.Actions, gpu.UUID) error {
		return func(a *nvidia.Actions, id gpu.UUID) error { _, err := a.CreateMIG(id, profile, start); return err }
	}
	setMode := func(on bool) func(*nvidia.Actions, gpu.UUID) error {
		return func(a *nvidia.Actions, id gpu.UUID) error { _, err := a.SetMIGMode(id, on); return err }
	}
	for name, test := range map[string]struct {
		profile string
		layout  []string
		fault   *sim.Fault // on GPU 0, or on its first MIG device with Busy and a layout
		do      func(*nvidia.Actions, gpu.UUID) error
		code    nvml.Return // SUCCESS for an error that is not NVML's
		want    string
	}{
		"no MIG on this GPU": {"t4x4", nil, nil, setMode(true), nvml.ERROR_NOT_SUPPORTED, "turn MIG on of GPU GPU-"},
		"MIG off with devices": {
			"h100x8", []string{"1g.10gb@0"}, nil, setMode(false), nvml.ERROR_IN_USE, "destroy the MIG devices first",
		},
		"MIG on while a process uses the GPU": {
			"h100x8", nil, &sim.Fault{Busy: true}, setMode(true), nvml.ERROR_IN_USE, "stop what uses the GPU (process 4194304)",
		},
		"create where MIG is off": {"h100x8", nil, nil, create("1g.10gb", 0), nvml.ERROR_NOT_SUPPORTED, "turn MIG on first"},
		"create where something is": {
			"h100x8", []string{"3g.40gb@4", "1g.10gb@1"}, nil, create("2g.20gb", 0), nvml.ERROR_INSUFFICIENT_RESOURCES,
			"returned INSUFFICIENT_RESOURCES; its memory slices or too many compute slices are taken: there are GPU instance 8 at 1+1, GPU instance 2 at 4+4",
		},
		"create at a wrong place": {"h100x8", []string{}, nil, create("2g.20gb", 3), nvml.SUCCESS, "begins at one of [0 2 4]"},
		"create of a wrong size":  {"h100x8", []string{}, nil, create("2g.10gb", 0), nvml.SUCCESS, "no such profile; it has 1g.10gb, 2g.20gb, 3g.40gb"},
		"create on a GPU without": {
			"t4x4", nil, nil, create("1g.5gb", 0), nvml.SUCCESS, "reports no MIG profiles",
		},
		"destroy in use": {
			"h100x8", []string{"1g.10gb@0"}, &sim.Fault{Busy: true},
			func(a *nvidia.Actions, id gpu.UUID) error { return a.DestroyMIG(id, 7) }, nvml.ERROR_IN_USE,
			"destroy GPU instance 7 of GPU GPU-", // the process is checked below
		},
		"lost": {"h100x8", nil, &sim.Fault{LostSilently: true}, setMode(true), nvml.ERROR_GPU_IS_LOST, "reset the GPU or reboot the node"},
		"no such GPU": {
			"h100x8", nil, nil, func(a *nvidia.Actions, _ gpu.UUID) error { return a.DestroyMIG("GPU-x", 0) }, nvml.ERROR_NOT_FOUND, "has no such GPU",
		},
		"no driver": {"h100x8", nil, &sim.Fault{DriverGone: true}, setMode(true), nvml.ERROR_LIBRARY_NOT_FOUND, "load the NVIDIA driver"},
		"no such compute mode": {
			"t4x4", nil, nil, func(a *nvidia.Actions, id gpu.UUID) error { return a.SetComputeMode(id, "SHARED") }, nvml.SUCCESS,
			"use DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, act, id := prepared(t, test.profile, test.layout...)
			if test.fault != nil {
				fault := *test.fault
				if fault.GPU = string(id); fault.Busy && len(test.layout) > 0 {
					shown, err := m.Show()
					must(t, err)
					fault.GPU = shown.GPUs[0].MIGDevices[0].UUID
				}
				inject(t, m, fault)
			}
			before, err := m.Show()
			must(t, err)
			err = test.do(act, id)
			if err == nil || !strings.Contains(err.Error(), test.want) || test.code != nvml.SUCCESS && !errors.Is(err, test.code) {
				t.Errorf("got %v\nwant %q and code %d", err, test.want, test.code)
			}
			if err != nil && test.layout != nil && test.fault != nil && !strings.Contains(err.Error(), "(process 4194312)") {
				t.Errorf("got %v; want the process named", err)
			}
			after, err := m.Show()
			must(t, err)
			if before.Events != after.Events && test.code != nvml.ERROR_IN_USE {
				t.Errorf("something was changed: %d events, then %d", before.Events, after.Events)
			}
		})
	}
}

// halfway is a library whose GPUs can create GPU instances but no compute instances.
type halfway struct {
	nvml.Interface
	// destroy is the return code of GpuInstance.Destroy; SUCCESS destroys it.
	destroy nvml.Return
}

type halfwayDevice struct {
	nvml.Device
	library *halfway
}

type halfwayInstance struct {
	nvml.GpuInstance
	library *halfway
}

func (l *halfway) DeviceGetHandleByUUID(uuid string) (nvml.Device, nvml.Return) {
	d, ret := l.Interface.DeviceGetHandleByUUID(uuid)
	return halfwayDevice{d, l}, ret
}

func (d halfwayDevice) CreateGpuInstanceWithPlacement(info *nvml.GpuInstanceProfileInfo, at *nvml.GpuInstancePlacement) (nvml.GpuInstance, nvml.Return) {
	gi, ret := d.Device.CreateGpuInstanceWithPlacement(info, at)
	return halfwayInstance{gi, d.library}, ret
}

func (i halfwayInstance) CreateComputeInstance(*nvml.ComputeInstanceProfileInfo) (nvml.ComputeInstance, nvml.Return) {
	return nil, nvml.ERROR_NO_PERMISSION
}

func (i halfwayInstance) Destroy() nvml.Return {
	if i.library.destroy != nvml.SUCCESS {
		return i.library.destroy
	}
	return i.GpuInstance.Destroy()
}

// TestCreateIsUndone checks that a GPU instance without its compute instance is destroyed; where that fails, the error
// and the next scan show it, and it can be destroyed later.
func TestCreateIsUndone(t *testing.T) {
	m, a := machine(t, "h100x8")
	id := scan(t, a).GPUs[0].UUID
	_, err := actionsOn(m).SetMIGMode(id, true)
	must(t, err)
	library := &halfway{Interface: m.NVML()}
	act := nvidia.NewActions(nvidia.Deps{Library: library})

	_, err = act.CreateMIG(id, "3g.40gb", 4)
	if !errors.Is(err, nvml.ERROR_NO_PERMISSION) || !strings.Contains(err.Error(), "run the agent privileged") {
		t.Errorf("got %v; want NO_PERMISSION and advice", err)
	}
	if mig := scan(t, a).GPU(id).MIG; mig.Empty != nil || mig.Devices != nil {
		t.Errorf("left behind: %+v", mig)
	}
	library.destroy = nvml.ERROR_IN_USE
	_, err = act.CreateMIG(id, "3g.40gb", 4)
	if err == nil || !strings.Contains(err.Error(), "could not be destroyed either: nvmlGpuInstanceDestroy returned IN_USE") {
		t.Errorf("got %v; want both failures", err)
	}
	want := gpu.GPUInstance{GI: 2, Profile: "3g.40gb", Start: 4, Size: 4}
	if empty := scan(t, a).GPU(id).MIG.Empty; len(empty) != 1 || empty[0] != want {
		t.Errorf("empty instances %+v; want %+v", empty, want)
	}
	must(t, actionsOn(m).DestroyMIG(id, 2))
	if empty := scan(t, a).GPU(id).MIG.Empty; empty != nil {
		t.Errorf("empty instances %+v; want none", empty)
	}
}

// TestHungAction checks that, while an action hangs, scans and other actions continue, and that NVML is shut down as
// often as it was initialized.
func TestHungAction(t *testing.T) {
	m, a := machine(t, "h100x8")
	library := m.NVML()
	act := nvidia.NewActions(nvidia.Deps{Library: library})
	before := scan(t, a)
	inject(t, m, sim.Fault{GPU: "0", Hang: "SetComputeMode"})
	done := make(chan error, 1)
	go func() { done <- act.SetComputeMode(before.GPUs[0].UUID, nvidia.ComputeModeExclusiveProcess) }()
	for range 3 {
		if got := scan(t, a); len(got.Faults) > 0 || len(got.GPUs) != 8 {
			t.Errorf("got %d GPUs, faults %v; want 8, none", len(got.GPUs), got.Faults)
		}
	}
	must(t, act.SetComputeMode(before.GPUs[0+1].UUID, nvidia.ComputeModeExclusiveProcess))
	select {
	case err := <-done:
		t.Errorf("the action returned %v; want it to hang", err)
	default:
	}
	clearFaults(t, m, "0")
	must(t, <-done)
	if ret := library.Shutdown(); ret != nvml.ERROR_UNINITIALIZED {
		t.Errorf("Shutdown after the actions: %v; want UNINITIALIZED, since each closed what it opened", ret)
	}
}

// TestActionsOnOldLibrary checks that a function that the library lacks is not called.
func TestActionsOnOldLibrary(t *testing.T) {
	n := newNode(t)
	n.missing["nvmlDeviceCreateGpuInstanceWithPlacement"] = true
	_, err := nvidia.NewActions(nvidia.Deps{Library: n.library}).CreateMIG("GPU-0", "1g.5gb", 0)
	if !errors.Is(err, nvml.ERROR_FUNCTION_NOT_FOUND) || !strings.Contains(err.Error(), "update the driver") {
		t.Errorf("got %v; want FUNCTION_NOT_FOUND and advice", err)
	}
}

// TestSuspend checks that, while suspended, the library is closed and scans return the result of the last one, and that
// later scans read the GPUs again.
func TestSuspend(t *testing.T) {
	m, _ := machine(t, "a100x8-40g")
	library := m.NVML()
	root := m.Root()
	a := nvidia.New(nvidia.Deps{Library: library, Roots: nvidia.Roots{
		Driver: root, Dev: root, Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys"),
	}})
	t.Cleanup(a.Close)

	first, err := a.Suspend(t.Context())
	must(t, err)
	waiting := make(chan *gpu.Snapshot, 1)
	go func() { waiting <- scan(t, a) }() // there is no result yet
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Scan(canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("a scan whose context ended: %v", err)
	}
	select {
	case <-waiting:
		t.Error("the first scan did not wait")
	default:
	}
	first()
	before := <-waiting
	if len(before.GPUs) != 8 {
		t.Fatalf("%d GPUs; want 8", len(before.GPUs))
	}

	watched := make(chan error, 1)
	watching, stop := context.WithCancel(t.Context())
	go func() { watched <- a.Watch(watching, func(gpu.Event) {}) }()
	resume, err := a.Suspend(t.Context())
	must(t, err)
	second, err := a.Suspend(t.Context())
	must(t, err)
	stop() // until then it reads the kernel log
	if err := <-watched; err != nil {
		t.Errorf("the watch ended with %v", err)
	}
	if ret := library.Shutdown(); ret != nvml.ERROR_UNINITIALIZED {
		t.Errorf("Shutdown while suspended: %v; want UNINITIALIZED", ret)
	}
	inject(t, m, sim.Fault{GPU: "0", ECC: 1})
	for range 2 {
		if got := scan(t, a); len(got.GPUs[0].Health.Causes) > 0 || len(got.Faults) > 0 {
			t.Errorf("while suspended: %+v; want what was before", got.GPUs[0].Health)
		}
		resume() // a second call has no effect, and second still holds
	}
	second()
	if got := scan(t, a); len(got.GPUs[0].Health.Causes) == 0 {
		t.Error("after resume the scan does not see what happened meanwhile")
	}
}

// TestSuspendDeadline checks that the error names a scan that hangs.
func TestSuspendDeadline(t *testing.T) {
	m, a := machine(t, "t4x4")
	faulty := scan(t, a).GPUs[1].UUID
	inject(t, m, sim.Fault{GPU: "1", Hang: "GetTotalEccErrors"})
	done := make(chan struct{})
	go func() { scan(t, a); close(done) }()
	for g, call := gpu.UUID(""), ""; g != faulty || call != "nvmlDeviceGetTotalEccErrors"; {
		g, call = a.Doing()
	}
	// Time enough to begin to wait, on a loaded machine too.
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := a.Suspend(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the scan has not returned from nvmlDeviceGetTotalEccErrors") {
		t.Errorf("got %v; want that the scan has not returned", err)
	}
	clearFaults(t, m, "1")
	<-done
	resume, err := a.Suspend(t.Context())
	must(t, err)
	resume()
	if got := scan(t, a); len(got.GPUs) != 4 || len(got.Faults) > 0 {
		t.Errorf("%d GPUs, faults %v; want 4, none", len(got.GPUs), got.Faults)
	}
}

// TestCapabilityFilesFollow checks that the files that name a MIG device's nodes exist for as long as the device.
func TestCapabilityFilesFollow(t *testing.T) {
	m, a := machine(t, "h100x8")
	act := actionsOn(m)
	id := scan(t, a).GPUs[1].UUID
	_, err := act.SetMIGMode(id, true)
	must(t, err)
	gi := mustCreate(t, act, id, "2g.20gb", 0)
	file := filepath.Join(m.Root(), fmt.Sprintf("proc/driver/nvidia/capabilities/gpu1/mig/gi%d/ci0/access", gi))
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	must(t, act.DestroyMIG(id, gi))
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", file, err)
	}
}
