package nvidia_test

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/hardware/sim/simtest"
)

// TestMain removes the simulated driver that was built.
func TestMain(m *testing.M) {
	code := m.Run()
	if err := os.RemoveAll(driverFolder()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// driverFolder has the simulated driver of this run of the tests.
func driverFolder() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("berth-driver-%d", os.Getpid()))
}

// driverFiles builds the simulated driver, once per run of the tests.
var driverFiles = sync.OnceValues(func() (sim.Files, error) { return simtest.BuildDriver(driverFolder()) })

// inProcess is the machine that a test process of its own is about: a process can have one libnvidia-ml open.
const inProcess = "BERTH_TEST_MACHINE"

// runInProcess runs a test of this package again in a process of its own, on that machine.
func runInProcess(t *testing.T, m *sim.Machine, environment ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	name, _, _ := strings.Cut(t.Name(), "/")
	again := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+name+"$", "-test.v=true")
	again.Env = append(append(os.Environ(), inProcess+"="+m.Dir()), environment...)
	if out, err := again.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// builtMachine is a machine whose driver root has the shared library.
func builtMachine(t *testing.T, profile string, options sim.Options) *sim.Machine {
	t.Helper()
	files, err := driverFiles()
	if err != nil {
		t.Fatal(err)
	}
	options.Files = files
	m, err := sim.CreateWith(filepath.Join(t.TempDir(), "machine"), profile, options)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestSharedLibrary: what an adapter reads through the shared library of a machine's driver root is what it reads through the simulator in
// this process, on every machine: scans, samples and events, with faults and with MIG devices.
func TestSharedLibrary(t *testing.T) {
	if dir := os.Getenv(inProcess); dir != "" {
		compareLibraries(t, dir)
		return
	}
	if testing.Short() {
		t.Skip("builds a library of C")
	}
	for _, profile := range sim.Profiles() {
		t.Run(profile, func(t *testing.T) {
			if (profile == "a100x16" || profile == "t4x20") && os.Getenv("BERTH_SOAK") == "" {
				t.Skip("30 s for many more GPUs; set BERTH_SOAK")
			}
			runInProcess(t, builtMachine(t, profile, sim.Options{}))
		})
	}
}

// TestSharedLibraryFromC opens the library in a program of C, as programs do that are not Go: see the program.
func TestSharedLibraryFromC(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a library of C")
	}
	m := builtMachine(t, "h100x8", sim.Options{})
	library, err := filepath.Glob(filepath.Join(m.Root(), "usr/lib/*/libnvidia-ml.so.1"))
	if err != nil || len(library) != 1 {
		t.Fatalf("%v, %q", err, library)
	}
	// ldconfig, and with it the hook that links the driver's files in a container, uses the SONAME.
	file, err := elf.Open(library[0])
	must(t, err)
	defer func() { _ = file.Close() }()
	if soname, err := file.DynString(elf.DT_SONAME); err != nil || !slices.Equal(soname, []string{"libnvidia-ml.so.1"}) {
		t.Errorf("SONAME %q, %v; want libnvidia-ml.so.1", soname, err)
	}
	nvml, err := exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml/pkg/nvml").Output()
	must(t, err)
	program := filepath.Join(t.TempDir(), "check")
	if out, err := exec.Command("gcc", "-Wall", "-Werror", "-Wno-deprecated-declarations", "-I", strings.TrimSpace(string(nvml)), "-o", program, "testdata/check.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	shown, err := m.Show()
	must(t, err)
	out, err := exec.Command(program, library[0], shown.GPUs[0].UUID).CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "ok\n") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestLibrarySymbols: the library of a version of the driver exports what nvml.h of that version declares.
func TestLibrarySymbols(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a library of C")
	}
	// The functions are those that the versions differ in, the oldest first.
	functions := []string{
		"nvmlInit_v2", "nvmlDeviceGetAttributes_v2", "nvmlDeviceGetGpuInstancePossiblePlacements", "nvmlDeviceGetMemoryInfo_v2",
		"nvmlComputeInstanceGetInfo_v2", "nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
		"nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetPdi", "nvmlDeviceSetMemoryLimits_v1",
	}
	tests := map[string]int{"580.95.05": 10, "550.54.15": 9, "535.183.01": 8, "455.45.01": 3}
	for version, want := range tests {
		t.Run(version, func(t *testing.T) {
			m := builtMachine(t, "a100x8-40g", sim.Options{Driver: version})
			library, err := filepath.Glob(filepath.Join(m.Root(), "usr/lib/*/libnvidia-ml.so."+version))
			if err != nil || len(library) != 1 {
				t.Fatalf("%v, %q", err, library)
			}
			file, err := elf.Open(library[0])
			must(t, err)
			defer func() { _ = file.Close() }()
			symbols, err := file.DynamicSymbols()
			must(t, err)
			var got []string
			for _, name := range functions {
				if slices.ContainsFunc(symbols, func(s elf.Symbol) bool { return s.Name == name }) {
					got = append(got, name)
				}
			}
			if diff := cmp.Diff(functions[:want], got); diff != "" {
				t.Errorf("the library of %s exports (-want +got):\n%s", version, diff)
			}
		})
	}
	if drivers := sim.Drivers(); len(drivers) != len(tests) {
		t.Errorf("the drivers are %q, and there are %d tests", drivers, len(tests))
	}
}

func compareLibraries(t *testing.T, dir string) {
	m, err := sim.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	opened := nvidia.OpenLibrary(m.Root())
	shared := nvidia.New(nvidia.Deps{Library: opened, Roots: rootsOf(m)})
	direct := adapterOn(t, m)
	defer shared.Close()
	samples := []*nvidia.Sampler{sampler(t, direct), sampler(t, shared)}
	equal := func(when string) {
		t.Helper()
		want, got := scan(t, direct), scan(t, shared)
		if len(want.GPUs) == 0 {
			t.Fatalf("%s: the scan finds no GPU", when)
		}
		if diff := cmp.Diff(want, got, anyLife()); diff != "" {
			t.Errorf("%s: the scan differs (-simulator +library):\n%s", when, diff)
		}
		for range 2 { // some measures are differences of two
			want, got := samples[0].Sample(t.Context()), samples[1].Sample(t.Context())
			if diff := cmp.Diff(want, got, cmp.FilterValues(func(_, _ time.Time) bool { return true }, cmp.Ignore()),
				cmp.FilterValues(func(_, _ time.Duration) bool { return true }, cmp.Ignore()), anyLife(), cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
				t.Errorf("%s: the sample differs (-simulator +library):\n%s", when, diff)
			}
		}
	}
	equal("at first")
	last := len(scan(t, direct).GPUs) - 1
	second := strconv.Itoa(min(1, last))
	setWork(t, m, 0, sim.Work{SM: 80, Memory: 40, Encoder: 3, PowerWatts: 60, PCIeKBps: 3, Programs: []sim.Program{{PID: 5, MemoryMiB: 3, SM: 70}, {PID: 4, MemoryMiB: 2}}})
	equal("with work")
	if scan(t, direct).GPUs[last].MIG.Capable {
		compareMIG(t, m, nvidia.NewActions(nvidia.Deps{Library: opened, Roots: rootsOf(m)}), scan(t, direct).GPUs[last].UUID)
		shared.MIGChanged(scan(t, direct).GPUs[last].UUID)
		direct.MIGChanged(scan(t, direct).GPUs[last].UUID)
		equal("with a MIG device")
	}
	compareEvents(t, m, direct, shared)
	equal("after an XID")
	inject(t, m, sim.Fault{GPU: second, ECC: 2, Throttle: sim.ThrottleThermal, Recovery: sim.RecoveryActions()[1]})
	equal("with ECC errors")
	inject(t, m, sim.Fault{GPU: "0", Transient: sim.TransientError{Call: "GetTemperature", Error: "UNKNOWN"}})
	equal("with a call that fails")
	inject(t, m, sim.Fault{GPU: "0", LostSilently: true})
	equal("with a lost GPU")
	if last > 0 {
		inject(t, m, sim.Fault{GPU: second, Remove: true})
		equal("with a removed GPU")
	}
	clearFaults(t, m, sim.ClearAll)
	equal("repaired")
}

// compareMIG makes a MIG device through the shared library.
func compareMIG(t *testing.T, m *sim.Machine, actions *nvidia.Actions, id gpu.UUID) {
	t.Helper()
	pending, err := actions.SetMIGMode(id, true)
	must(t, err)
	if pending {
		must(t, m.ResetGPUs(string(id)))
	}
	shown, err := m.Show()
	must(t, err)
	if g := shown.GPUs[len(shown.GPUs)-1]; g.MIG != "on" {
		t.Fatalf("MIG mode is %s", g.MIG)
	}
	a := adapterOn(t, m)
	profiles := scan(t, a).GPUs[len(shown.GPUs)-1].MIG.Geometry.Profiles
	if len(profiles) == 0 {
		t.Fatal("no profile of MIG devices")
	}
	_, err = actions.CreateMIG(id, profiles[0].Name, profiles[0].Starts[0])
	must(t, err)
	must(t, actions.SetComputeMode(id, nvidia.ComputeModeDefault))
}

// compareEvents waits for one XID through both.
func compareEvents(t *testing.T, m *sim.Machine, adapters ...*nvidia.Adapter) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	var events []chan gpu.Event
	for _, a := range adapters {
		scan(t, a)
		emitted := make(chan gpu.Event, 16)
		events = append(events, emitted)
		group.Go(func() {
			_ = a.Watch(ctx, func(e gpu.Event) {
				if !e.Log { // the kernel log has it too, and is the same file for both
					emitted <- e
				}
			})
		})
	}
	time.Sleep(300 * time.Millisecond) // registering has no sign
	inject(t, m, sim.Fault{GPU: "0", XID: 48})
	var got []gpu.Event
	for _, emitted := range events {
		select {
		case e := <-emitted:
			e.Time = time.Time{}
			got = append(got, e)
		case <-time.After(10 * time.Second):
			t.Fatal("no event within 10 s")
		}
	}
	if diff := cmp.Diff(got[0], got[1]); diff != "" {
		t.Errorf("the event differs (-simulator +library):\n%s", diff)
	}
}
