package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/hardware/sim/simtest"
	"github.com/berth-gpu/berth/internal/node/agent/serve"
	"github.com/berth-gpu/berth/internal/node/deviceplugin/fakekubelet"
	"github.com/berth-gpu/berth/internal/node/pages"
)

// The drivers of the tests below.
const (
	r580, r550, r535, r455 = "580.95.05", "550.54.15", "535.183.01", "455.45.01"
)

// variant is what an agent reports about a machine with a version of libnvidia-ml.so.1. The machine is h100x8, of which
// GPU 7 is in MIG mode and has one MIG device.
type variant struct {
	// Driver and CUDA are the versions of the vendor and of each GPU; Label is the driver's version in the labels.
	Driver string
	CUDA   string
	Label  string
	// Kubelet has the numbers of the kubelet's healthy devices, by resource.
	Kubelet map[string]int
	// MIG describes the mode of each GPU, and Profiles has the number of MIG profiles that the driver reports for it.
	MIG      []string
	Profiles []int
	// Partitions are the MIG devices.
	Partitions []string
	// Recovery is the recovery action that the driver reports for GPU 0; empty when it reports none.
	Recovery gpu.Recovery
	// Causes are all faults, of the node and of the GPUs.
	Causes []string
	// WithoutMetrics are metrics that the newest driver has and this one has not.
	WithoutMetrics []string
}

// TestLibraries runs the agent as it ships with different versions of the driver's library.
func TestLibraries(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds berth-agent and a library of C")
	}
	folder := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", filepath.Join(folder, "berth-agent"), "../../../cmd/berth-agent").CombinedOutput(); err != nil {
		t.Fatalf("build berth-agent: %v\n%s", err, out)
	}
	if _, err := simtest.BuildDriver(folder); err != nil {
		t.Fatal(err)
	}
	t.Run("Variants", func(t *testing.T) { testLibraryVariants(t, folder) })
	t.Run("Absent", func(t *testing.T) { testLibraryAbsent(t, folder) })
	t.Run("Replaced", func(t *testing.T) { testLibraryReplaced(t, folder) })
}

// testLibraryVariants: the library of each version lacks the functions and fields of the later ones, and go-nvml ends
// the process on a call of a function that the library lacks. A value that a driver cannot report is left out; it is
// never a default or a fault.
func testLibraryVariants(t *testing.T, folder string) {
	var (
		kubelet    = map[string]int{resource: 7, "nvidia.com/mig-1g.10gb": 1}
		mode       = []string{"off", "off", "off", "off", "off", "off", "off", "on"}
		everywhere = []int{7, 7, 7, 7, 7, 7, 7, 7}
		// Drivers up to R535 report the profiles of a GPU in MIG mode only.
		inMode     = []int{0, 0, 0, 0, 0, 0, 0, 7}
		partitions = []string{"1g.10gb, 9984 MiB"}
	)
	tests := map[string]variant{
		r580: {
			Driver: r580, CUDA: "13.0", Label: r580, Kubelet: kubelet, MIG: mode, Profiles: everywhere, Partitions: partitions,
			Recovery: gpu.RecoveryNone,
		},
		r550: {Driver: r550, CUDA: "12.4", Label: r550, Kubelet: kubelet, MIG: mode, Profiles: everywhere, Partitions: partitions},
		r535: {Driver: r535, CUDA: "12.2", Label: r535, Kubelet: kubelet, MIG: mode, Profiles: inMode, Partitions: partitions},
		// Without the second version of MIG's functions and of nvmlDeviceGetMemoryInfo, and without the fields of NVLinks' states.
		r455: {
			Driver: r455, CUDA: "11.1", Label: r455, Kubelet: kubelet, MIG: mode, Profiles: inMode, Partitions: partitions,
			WithoutMetrics: []string{"berth_gpu_memory_reserved_bytes", "berth_gpu_nvlinks"},
		},
	}
	reference := newAgentProcess(t, folder, r580)
	reference.start()
	reference.awaitDevices(kubelet)
	metrics := reference.metrics()
	reference.stop()
	for version, want := range tests {
		t.Run(version, func(t *testing.T) {
			a := newAgentProcess(t, folder, version)
			a.start()
			a.awaitDevices(want.Kubelet)
			if diff := cmp.Diff(want, a.variant(metrics)); diff != "" {
				t.Errorf("the agent on driver %s (-want +got):\n%s", version, diff)
			}
			// A fault is found with every driver.
			if err := a.machine.Inject(sim.Fault{GPU: "0", XID: 79}); err != nil {
				t.Fatal(err)
			}
			a.awaitDevices(map[string]int{resource: 6, "nvidia.com/mig-1g.10gb": 1})
			a.stop()
		})
	}
}

// testLibraryAbsent checks that without a library the agent runs, reports what is wrong, and finds the GPUs when the
// library is installed.
func testLibraryAbsent(t *testing.T, folder string) {
	tests := map[string]struct {
		// breakIt makes the library unusable; the message of the fault contains want.
		breakIt func(library string) error
		want    string
	}{
		"no file":               {os.Remove, "libnvidia-ml.so.1 was not found"},
		"a text":                {func(library string) error { return os.WriteFile(library, []byte("hello"), 0o755) }, "cannot be loaded"},
		"another's library":     {func(library string) error { return copyFile("/proc/self/exe", library) }, "cannot be loaded"},
		"a directory":           {func(library string) error { return errors.Join(os.Remove(library), os.Mkdir(library, 0o755)) }, "cannot be loaded"},
		"a dangling link":       {func(library string) error { return errors.Join(os.Remove(library), os.Symlink("nowhere", library)) }, "was not found"},
		"cut off in the middle": {func(library string) error { return os.Truncate(library, 1<<20) }, "cannot be loaded"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			a := newAgentProcess(t, folder, r580)
			library := a.libraryFile()
			away := library + ".away"
			// The file has another name in the driver's folder, whose content stays.
			if err := errors.Join(copyFile(library, away), os.Remove(library), copyFile(away, library), test.breakIt(library)); err != nil {
				t.Fatal(err)
			}
			a.start()
			var state serve.DebugState
			a.await("the fault of a missing driver", func() bool {
				state = a.state()
				return slices.ContainsFunc(state.Inventory.Faults, func(c gpu.Cause) bool {
					return c.Code == "DRIVER_MISSING" && strings.Contains(c.Message, test.want)
				})
			})
			if len(state.Inventory.GPUs) > 0 || state.Inventory.DriverPresent() {
				t.Errorf("without a library the inventory is %+v", state.Inventory)
			}
			if err := errors.Join(os.RemoveAll(library), os.Rename(away, library)); err != nil {
				t.Fatal(err)
			}
			a.awaitDevices(map[string]int{resource: 7, "nvidia.com/mig-1g.10gb": 1})
			a.await("no fault", func() bool { return len(a.state().Inventory.Faults) == 0 })
			a.stop()
		})
	}
}

func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o755)
}

// testLibraryReplaced checks that the agent ends once for each driver that is installed while it runs, and logs for
// which file. The next one opens the new library and advertises the same devices.
func testLibraryReplaced(t *testing.T, folder string) {
	tests := map[string]struct{ from, to string }{
		"by an older one":       {r580, r535},
		"by a newer one":        {r535, r580},
		"by the same one again": {r580, r580},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			devices := map[string]int{resource: 7, "nvidia.com/mig-1g.10gb": 1}
			a := newAgentProcess(t, folder, test.from)
			a.start()
			a.awaitDevices(devices)
			a.await("the label of "+test.from, func() bool { return a.label() == test.from })
			before := a.healthy(devices)

			if err := a.machine.UpgradeDriver(test.to, a.files); err != nil {
				t.Fatal(err)
			}
			err := a.wait()
			if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Fatalf("after the upgrade the agent ended with %v, want exit code 1\n%s", err, a.log())
			}
			if file := "libnvidia-ml.so." + test.to; !strings.Contains(a.log(), "the driver was upgraded while the agent ran") || !strings.Contains(a.log(), file) {
				t.Errorf("the log does not have the reason, with the file %s:\n%s", file, a.log())
			}

			a.start()
			a.awaitDevices(devices)
			a.await("the label of "+test.to, func() bool { return a.label() == test.to })
			if diff := cmp.Diff(before, a.healthy(devices)); diff != "" {
				t.Errorf("the devices after the upgrade (-before +after):\n%s", diff)
			}
			a.stop()
		})
	}
}

// agentProcess is the agent as it ships, in a process of its own: one process can load NVML once. The test process has
// the simulated kubelet, which stays over several agents.
type agentProcess struct {
	t       *testing.T
	program string
	files   sim.Files
	dir     string
	machine *sim.Machine
	kubelet *fakekubelet.Kubelet
	command *exec.Cmd
	ended   chan error
	output  *lockedBuffer
}

// lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// newAgentProcess returns a machine with that driver, and no agent yet. The folder has berth-agent and the driver.
func newAgentProcess(t *testing.T, folder, driver string) *agentProcess {
	t.Helper()
	a := &agentProcess{t: t, program: filepath.Join(folder, "berth-agent"), dir: shortDir(t), output: &lockedBuffer{}}
	var err error
	if a.files, err = sim.FindFiles(folder); err != nil {
		t.Fatal(err)
	}
	a.machine, err = sim.CreateWith(filepath.Join(a.dir, "sim"), "h100x8", sim.Options{Seed: "variants", Driver: driver, Files: a.files})
	if err != nil {
		t.Fatal(err)
	}
	a.partition()
	if a.kubelet, err = fakekubelet.Start(filepath.Join(a.dir, "k"), fakekubelet.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.kubelet.Stop)
	config := "standalone: true\ndeviceListStrategy: [envvar]\npollInterval: 200ms\nsampleInterval: 500ms\nlabels: {output: file, noTimestamp: true, dir: " +
		filepath.Join(a.dir, "labels") + "}\n"
	if err := os.WriteFile(filepath.Join(a.dir, "agent.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return a
}

// partition creates the MIG device of GPU 7, by functions that each driver has.
func (a *agentProcess) partition() {
	a.t.Helper()
	library := a.machine.NVML()
	device, ret := nvml.Device(nil), library.Init()
	step := func(do func() nvml.Return) {
		if ret == nvml.SUCCESS {
			ret = do()
		}
	}
	var instance nvml.GpuInstance
	step(func() (ret nvml.Return) { device, ret = library.DeviceGetHandleByIndex(7); return ret })
	step(func() nvml.Return { _, ret := device.SetMigMode(nvml.DEVICE_MIG_ENABLE); return ret })
	step(func() nvml.Return {
		profile, ret := device.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_1_SLICE)
		if ret != nvml.SUCCESS {
			return ret
		}
		instance, ret = device.CreateGpuInstance(&profile)
		return ret
	})
	step(func() nvml.Return {
		profile, ret := instance.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret != nvml.SUCCESS {
			return ret
		}
		_, ret = instance.CreateComputeInstance(&profile)
		return ret
	})
	step(library.Shutdown)
	if ret != nvml.SUCCESS {
		a.t.Fatalf("create a MIG device: %v", ret)
	}
}

// start starts an agent.
func (a *agentProcess) start() {
	a.t.Helper()
	at := func(name string) string { return filepath.Join(a.dir, name) }
	a.command = exec.Command(a.program, "--sim", a.machine.Dir(), "--config", at("agent.yaml"), "--kubelet-dir", at("k"), "--cdi-dir", at("cdi"),
		"--hook-dir", at("hooks"), "--state-dir", at("state"), "--persistent-dir", at("persistent"), "--mps-root", at("mps"))
	a.command.Stdout, a.command.Stderr = a.output, a.output
	if err := a.command.Start(); err != nil {
		a.t.Fatal(err)
	}
	ended := make(chan error, 1)
	command := a.command
	go func() { ended <- command.Wait() }()
	a.ended = ended
	a.t.Cleanup(func() { _ = command.Process.Kill() })
}

// wait returns how the agent ended.
func (a *agentProcess) wait() error {
	a.t.Helper()
	select {
	case err := <-a.ended:
		return err
	case <-time.After(20 * time.Second):
		a.t.Fatalf("the agent runs on:\n%s", a.log())
		return nil
	}
}

// stop ends the agent in an orderly way.
func (a *agentProcess) stop() {
	a.t.Helper()
	if err := a.command.Process.Signal(syscall.SIGTERM); err != nil {
		a.t.Fatal(err)
	}
	if err := a.wait(); err != nil {
		a.t.Errorf("the agent ended with %v:\n%s", err, a.log())
	}
}

func (a *agentProcess) log() string { return a.output.String() }

// page returns a page of the agent; empty when it does not respond.
func (a *agentProcess) page(path string) []byte {
	text, err := (pages.Client{Socket: filepath.Join(a.dir, "state", pages.Name)}).Get(a.t.Context(), path)
	if err != nil {
		return nil
	}
	return text
}

// state returns the agent's state; zero when it does not respond.
func (a *agentProcess) state() serve.DebugState {
	state := serve.DebugState{Inventory: &gpu.Snapshot{}}
	_ = json.Unmarshal(a.page("/debug/state"), &state)
	return state
}

// await waits until a condition is true while the agent runs.
func (a *agentProcess) await(what string, is func() bool) {
	a.t.Helper()
	for limit := time.Now().Add(20 * time.Second); !is(); {
		select {
		case err := <-a.ended:
			a.t.Fatalf("before %s: the agent ended with %v:\n%s", what, err, a.log())
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(limit) {
			a.t.Fatalf("never saw %s:\n%s", what, a.log())
		}
	}
}

// awaitDevices waits until the kubelet has these numbers of healthy devices of each resource, and the agent is ready.
func (a *agentProcess) awaitDevices(want map[string]int) {
	a.t.Helper()
	for name, count := range want {
		a.await(fmt.Sprintf("%d healthy devices of %s", count, name), func() bool { return len(a.kubelet.State(name).Healthy) == count })
	}
	a.await("an agent that is ready", func() bool { return a.page("/readyz") != nil })
}

// healthy returns the healthy devices of resources.
func (a *agentProcess) healthy(resources map[string]int) map[string][]string {
	devices := map[string][]string{}
	for name := range resources {
		devices[name] = slices.Sorted(slices.Values(a.kubelet.State(name).Healthy))
	}
	return devices
}

// libraryFile returns the path of the library's file below the driver root.
func (a *agentProcess) libraryFile() string {
	a.t.Helper()
	found, err := filepath.Glob(filepath.Join(a.machine.Root(), "usr/lib/*/libnvidia-ml.so.[0-9]*.*"))
	if err != nil || len(found) != 1 {
		a.t.Fatalf("the library's files are %q, %v", found, err)
	}
	return found[0]
}

// label returns the version of the driver in the labels; empty while there is none.
func (a *agentProcess) label() string {
	text, _ := os.ReadFile(filepath.Join(a.dir, "labels", "berth-gpu"))
	for line := range strings.Lines(string(text)) {
		if version, ok := strings.CutPrefix(line, "nvidia.com/cuda.driver-version.full="); ok {
			return strings.TrimSpace(version)
		}
	}
	return ""
}

// metrics returns the names of all metrics after two measurements of the GPUs.
func (a *agentProcess) metrics() []string {
	a.t.Helper()
	var names []string
	const last = "berth_gpu_temperature_celsius"
	a.await("the metrics", func() bool {
		names = nil
		for line := range strings.Lines(string(a.page("/metrics"))) {
			if name, _, ok := strings.Cut(line, "{"); ok && !strings.HasPrefix(line, "#") {
				names = append(names, name)
			}
		}
		return slices.Contains(names, last)
	})
	slices.Sort(names)
	return slices.Compact(names)
}

// variant returns what the agent reports. metrics are those of the newest driver.
func (a *agentProcess) variant(metrics []string) variant {
	a.t.Helper()
	a.await("labels", func() bool { return a.label() != "" })
	own := a.metrics()
	state := a.state()
	driver := state.Inventory.Vendor(gpu.NVIDIA).Driver
	v := variant{Driver: driver.Version, CUDA: driver.CUDA.String(), Label: a.label(), Kubelet: map[string]int{}}
	for _, name := range []string{resource, "nvidia.com/mig-1g.10gb"} {
		v.Kubelet[name] = len(a.kubelet.State(name).Healthy)
	}
	for _, fault := range slices.Concat(state.Inventory.Faults, state.Problems) {
		if os.Geteuid() != 0 && (strings.Contains(fault.Code, "NODE") || fault.Code == "CDI_SPEC_KEPT") {
			continue // only root can make device nodes
		}
		v.Causes = append(v.Causes, fault.Code)
	}
	for i := range state.Inventory.GPUs {
		g := &state.Inventory.GPUs[i]
		if g.Driver != driver {
			a.t.Errorf("GPU %d has the driver %+v, and the vendor %+v", g.Index, g.Driver, driver)
		}
		mode := map[bool]string{true: "on", false: "off"}[g.MIG.Enabled]
		if !g.MIG.Capable || g.MIG.Unknown || g.MIG.Unsure {
			mode = fmt.Sprintf("%+v", g.MIG)
		}
		v.MIG, v.Profiles = append(v.MIG, mode), append(v.Profiles, len(g.MIG.Geometry.Profiles))
		for _, device := range g.MIG.Devices {
			v.Partitions = append(v.Partitions, fmt.Sprintf("%s, %d MiB", device.Profile, device.MemoryBytes>>20))
		}
		for _, cause := range g.Health.Causes {
			v.Causes = append(v.Causes, cause.Code)
		}
	}
	if len(state.Inventory.GPUs) > 0 {
		v.Recovery = state.Inventory.GPUs[0].Health.Recovery
	}
	for _, name := range metrics {
		if !slices.Contains(own, name) {
			v.WithoutMetrics = append(v.WithoutMetrics, name)
		}
	}
	return v
}
