package nvidia_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
)

func TestScanReadsFacts(t *testing.T) {
	n := newNode(t, gpus.Multiple(2, gpus.A100_SXM4_40GB)...)
	onSwitches(12, n.gpus...)
	write(t, filepath.Join(n.roots.Sys, "devices/pci0000:00", n.gpus[1].pci, "numa_node"), "-1\n")
	n.gpus[0].fabric = nvml.GpuFabricInfo{
		ClusterUuid: [16]uint8{0x0a, 15: 0x0b}, CliqueId: 7, State: nvml.GPU_FABRIC_STATE_COMPLETED,
	}
	n.gpus[1].fabric = nvml.GpuFabricInfo{ClusterUuid: [16]uint8{1}, CliqueId: 7, State: nvml.GPU_FABRIC_STATE_IN_PROGRESS}

	got := scan(t, n.adapter())
	driver := gpu.Driver{Version: "580.95.05", CUDA: gpu.Version{Major: 13}}
	want := &gpu.Snapshot{
		Vendors: []gpu.VendorState{{Name: gpu.NVIDIA, Driver: driver, Scanned: true}},
		GPUs: []gpu.GPU{
			{
				UUID: gpu.UUID(n.gpus[0].UUID), Vendor: gpu.NVIDIA, Driver: driver, PCI: gpu.PCIAddress{Bus: 0x10}, DeviceID: 0x20b010de, Product: "Mock NVIDIA A100-SXM4-40GB",
				Architecture: "Ampere", ComputeCapability: gpu.Version{Major: 8}, MemoryBytes: 40960 << 20,
				PCIeRoot: "pci0000:00",
				Clique:   gpu.Clique{ClusterUUID: "0a000000-0000-0000-0000-00000000000b", ID: 7},
				MIG:      gpu.MIG{Capable: true, ModeNeedsReset: true, Geometry: geometryA100()},
				Nodes:    []gpu.DeviceNode{{Path: "/dev/nvidia0", Major: 195}},
				Health:   gpu.Health{Recovery: gpu.RecoveryNone},
			},
			{
				UUID: gpu.UUID(n.gpus[1].UUID), Vendor: gpu.NVIDIA, Driver: driver, Index: 1, Minor: 1, PCI: gpu.PCIAddress{Bus: 0x20}, DeviceID: 0x20b010de, Product: "Mock NVIDIA A100-SXM4-40GB",
				Architecture: "Ampere", ComputeCapability: gpu.Version{Major: 8}, MemoryBytes: 40960 << 20,
				NUMANode: gpu.NoNUMANode, PCIeRoot: "pci0000:00",
				MIG:   gpu.MIG{Capable: true, ModeNeedsReset: true, Geometry: geometryA100()},
				Nodes: []gpu.DeviceNode{{Path: "/dev/nvidia1", Major: 195, Minor: 1}},
				Health: gpu.Health{Recovery: gpu.RecoveryNone, Causes: []gpu.Cause{{
					Code: "FABRIC_NOT_READY", Message: "the GPU has not joined its NVLink fabric yet (nvmlDeviceGetGpuFabricInfo), and CUDA does not start before it has",
				}}},
			},
		},
		Topology: gpu.Topology{
			{{}, {Kind: gpu.LinkNVLink, Count: 12, Switched: true, Path: gpu.PathSystem}},
			{{Kind: gpu.LinkNVLink, Count: 12, Switched: true, Path: gpu.PathSystem}, {}},
		},
	}
	if diff := cmp.Diff(want, got, anyLife()); diff != "" {
		t.Errorf("snapshot (-want +got):\n%s", diff)
	}
}

// TestOldLibrary has a library that lacks the functions of newer drivers. go-nvml ends the process on a call of a missing
// function; the mock panics.
func TestOldLibrary(t *testing.T) {
	n := newNode(t, gpus.A100_SXM4_40GB)
	for _, symbol := range []string{
		"nvmlDeviceGetArchitecture", "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetMigMode",
		"nvmlDeviceGetRemappedRows", "nvmlDeviceGetNvLinkRemoteDeviceType",
	} {
		n.missing[symbol] = true
	}
	d := n.gpus[0].Device
	d.GetArchitectureFunc, d.GetGpuFabricInfoFunc, d.GetMigModeFunc = nil, nil, nil
	d.GetRemappedRowsFunc, d.GetNvLinkRemoteDeviceTypeFunc = nil, nil
	n.gpus[0].noRecovery = true
	n.gpus[0].links = []fakeLink{{to: "0000:90:00.0"}}
	got := scan(t, n.adapter())
	if len(got.GPUs) != 1 || got.GPUs[0].Health.Recovery != "" || len(got.GPUs[0].Health.Causes) > 0 {
		t.Errorf("got %+v; want one GPU, healthy, without a recovery action", got.GPUs)
	}
}

func TestLevelCauses(t *testing.T) {
	for name, test := range map[string]struct {
		trouble  func(*fakeGPU)
		want     []string
		state    gpu.State
		recovery gpu.Recovery
	}{
		"well":              {func(*fakeGPU) {}, nil, "", gpu.RecoveryNone},
		"ecc":               {func(c *fakeGPU) { c.ecc = 3 }, []string{"ECC_DOUBLE_BIT"}, "", gpu.RecoveryNone},
		"row remap pending": {func(c *fakeGPU) { c.pending = true }, []string{"ROW_REMAP_PENDING"}, "", gpu.RecoveryNone},
		"row remap failure": {func(c *fakeGPU) { c.failed = true }, []string{"ROW_REMAP_FAILURE"}, "", gpu.RecoveryNone},
		"recovery action": {
			func(c *fakeGPU) { c.recovery = nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET },
			[]string{"RECOVERY_ACTION"}, "", gpu.RecoveryDrainAndReset,
		},
		"unknown recovery action": {
			func(c *fakeGPU) { c.recovery = 42 }, []string{"RECOVERY_ACTION"}, "", "Action42",
		},
		"lost":        {func(c *fakeGPU) { c.broken = nvml.ERROR_GPU_IS_LOST }, []string{"GPU_LOST"}, gpu.Gone, ""},
		"lost handle": {func(c *fakeGPU) { c.handle = nvml.ERROR_GPU_IS_LOST }, []string{"GPU_LOST"}, gpu.Gone, ""},
		"unreadable":  {func(c *fakeGPU) { c.handle = nvml.ERROR_UNKNOWN }, []string{"GPU_READ_FAILED"}, "", gpu.RecoveryNone},
		"reset required": {
			func(c *fakeGPU) {
				c.Device.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) {
					return 0, 0, false, false, nvml.ERROR_RESET_REQUIRED
				}
			}, []string{"GPU_RESET_REQUIRED"}, "", gpu.RecoveryNone,
		},
		"lost in the middle": {
			func(c *fakeGPU) {
				c.Device.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
					return 0, nvml.ERROR_GPU_IS_LOST
				}
			}, []string{"GPU_LOST"}, gpu.Gone, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, gpus.Multiple(3, gpus.A100_SXM4_40GB)...)
			a := n.adapter()
			before := scan(t, a)
			test.trouble(n.gpus[1])
			after := scan(t, a)
			var codes []string
			for _, cause := range after.GPUs[1].Health.Causes {
				codes = append(codes, cause.Code)
			}
			health := after.GPUs[1].Health
			if diff := cmp.Diff(test.want, codes); diff != "" || health.State != test.state || health.Recovery != test.recovery {
				t.Errorf("got %+v; want state %q, recovery %q, causes (-want +got):\n%s", health, test.state, test.recovery, diff)
			}
			after.GPUs[1].Health, after.GPUs[1].MIG.Unsure = before.GPUs[1].Health, false
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("more than that GPU's health changed (-before +after):\n%s", diff)
			}
		})
	}
}

// TestFacts injects each fault that scans find into one GPU, and repairs it.
func TestFacts(t *testing.T) {
	type step struct {
		after   time.Duration
		trouble func(*fakeGPU)
		want    string
	}
	throttle := func(reasons uint64) func(*fakeGPU) { return func(c *fakeGPU) { c.throttle = reasons } }
	hot := func(degrees uint32) func(*fakeGPU) { return func(c *fakeGPU) { c.temperature = degrees } }
	errors := func(count uint64) func(*fakeGPU) { return func(c *fakeGPU) { c.linkErrors = count } }
	link := func(down bool) func(*fakeGPU) { return func(c *fakeGPU) { c.links[2].down = down } }
	fabric := func(state uint8, status nvml.Return) func(*fakeGPU) {
		return func(c *fakeGPU) { c.fabric = nvml.GpuFabricInfo{State: state, Status: uint32(status)} }
	}
	same := func(*fakeGPU) {}
	for name, steps := range map[string][]step{
		"retired pages": {
			{0, func(c *fakeGPU) { c.pagesPending = nvml.FEATURE_ENABLED }, "RETIRED_PAGES_PENDING"},
			{5 * time.Second, func(c *fakeGPU) { c.pagesPending = nvml.FEATURE_DISABLED }, ""},
		},
		"no pages to retire": {{0, func(c *fakeGPU) { c.pagesPending = nvml.FEATURE_ENABLED }, ""}},
		"temperature": {
			{0, hot(91), ""},
			{5 * time.Second, hot(92), "TEMPERATURE_SLOWDOWN"},
			{5 * time.Second, hot(88), "TEMPERATURE_SLOWDOWN"},
			{5 * time.Second, hot(95), "TEMPERATURE_SHUTDOWN"},
			{5 * time.Second, hot(91), "TEMPERATURE_SHUTDOWN"},
			{5 * time.Second, hot(89), "TEMPERATURE_SLOWDOWN"},
			{5 * time.Second, hot(86), ""},
		},
		"a moment of heat": {
			{0, throttle(nvml.ClocksThrottleReasonHwSlowdown | nvml.ClocksThrottleReasonHwThermalSlowdown), ""},
			{5 * time.Second, throttle(0), ""},
			{5 * time.Second, throttle(nvml.ClocksThrottleReasonHwSlowdown | nvml.ClocksThrottleReasonHwThermalSlowdown), ""},
		},
		"throttled by heat": {
			{0, throttle(nvml.ClocksThrottleReasonHwSlowdown | nvml.ClocksThrottleReasonHwThermalSlowdown), ""},
			{10 * time.Second, same, "THROTTLE_THERMAL"},
			{5 * time.Second, throttle(0), "THROTTLE_THERMAL"},
			{60 * time.Second, same, ""},
		},
		"power brake": {
			{0, throttle(nvml.ClocksThrottleReasonHwSlowdown | nvml.ClocksThrottleReasonHwPowerBrakeSlowdown), ""},
			{10 * time.Second, same, "THROTTLE_POWER_BRAKE"},
		},
		"slowed down": {
			{0, throttle(nvml.ClocksThrottleReasonHwSlowdown), ""},
			{10 * time.Second, same, "THROTTLE_HW_SLOWDOWN"},
		},
		"idle": {{0, throttle(nvml.ClocksEventReasonGpuIdle), ""}, {time.Minute, same, ""}},
		"link down": {
			{0, link(true), "NVLINK_DOWN"},
			{5 * time.Second, link(false), ""},
		},
		"link errors": {
			{0, errors(5000), "NVLINK_ERRORS"},
			{9 * time.Minute, same, "NVLINK_ERRORS"},
			{time.Minute, same, ""},
			{5 * time.Second, errors(5099), ""},
			{5 * time.Second, errors(5100), "NVLINK_ERRORS"},
			{5 * time.Second, errors(0), ""},
		},
		"fabric": {
			{0, fabric(nvml.GPU_FABRIC_STATE_NOT_STARTED, nvml.SUCCESS), "FABRIC_NOT_READY"},
			{5 * time.Second, fabric(nvml.GPU_FABRIC_STATE_IN_PROGRESS, nvml.SUCCESS), "FABRIC_NOT_READY"},
			{5 * time.Second, fabric(nvml.GPU_FABRIC_STATE_COMPLETED, nvml.ERROR_UNKNOWN), "FABRIC_ERROR"},
			{5 * time.Second, fabric(nvml.GPU_FABRIC_STATE_COMPLETED, nvml.SUCCESS), ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, gpus.Multiple(2, gpus.A100_SXM4_40GB)...)
			onSwitches(4, n.gpus...)
			now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			n.now = func() time.Time { return now }
			if name == "retired pages" {
				n.gpus[1].pages = nvml.SUCCESS
			}
			a := n.adapter()
			scan(t, a)
			now = now.Add(5 * time.Second)
			for i, step := range steps {
				now = now.Add(step.after)
				step.trouble(n.gpus[1])
				after := scan(t, a)
				if got := strings.TrimSpace(verdict(after, after.GPUs[1].UUID)); got != step.want {
					t.Errorf("step %d: got %q; want %q", i, got, step.want)
				}
				if got := verdict(after, after.GPUs[0].UUID); got != "" {
					t.Errorf("step %d: the other GPU: %q; want nothing", i, got)
				}
			}
		})
	}
}

// TestFewerLinksThanPeers finds links that were down before the first scan.
func TestFewerLinksThanPeers(t *testing.T) {
	n := newNode(t, gpus.Multiple(3, gpus.A100_SXM4_40GB)...)
	onSwitches(4, n.gpus...)
	n.gpus[1].links[3].down = true
	first := scan(t, n.adapter())
	for i, want := range []string{"", " NVLINK_DOWN", ""} {
		if got := verdict(first, first.GPUs[i].UUID); got != want {
			t.Errorf("GPU %d: got %q; want %q", i, got, want)
		}
	}
}

// TestLostGPUOfANewProcess starts an adapter when a GPU is already lost: its UUID is in the driver's list only.
func TestLostGPUOfANewProcess(t *testing.T) {
	for name, test := range map[string]struct {
		trouble func(*testing.T, *node)
		want    string
	}{
		"handle fails": {
			func(_ *testing.T, n *node) { n.gpus[1].handle = nvml.ERROR_GPU_IS_LOST },
			"1 GPU-00000001 Gone GPU_LOST",
		},
		"off the bus and not counted": {
			func(t *testing.T, n *node) {
				write(t, filepath.Join(n.roots.Sys, "devices/pci0000:00", n.gpus[1].pci, "config"), "\xff\xff\xff\xff")
				n.gpus = append(n.gpus[:1:1], n.gpus[2])
			},
			"2 GPU-00000001 Gone OFF_BUS", // after the two that NVML counts
		},
		"not counted, but responds": {
			func(_ *testing.T, n *node) { n.gpus = append(n.gpus[:1:1], n.gpus[2]) },
			"fault GPU_NOT_COUNTED",
		},
		"never named": {
			func(t *testing.T, n *node) {
				n.gpus[1].handle = nvml.ERROR_GPU_IS_LOST
				write(t, filepath.Join(n.roots.Proc, "driver/nvidia/gpus", n.gpus[1].pci, "information"),
					"Model: \t\t Unknown\nGPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t 1\n")
			},
			"fault GPU_UNIDENTIFIED",
		},
		"excluded": {
			func(t *testing.T, n *node) {
				write(t, filepath.Join(n.roots.Proc, "driver/nvidia/gpus", n.gpus[1].pci, "information"),
					"GPU UUID: \t "+n.gpus[1].UUID+"\nDevice Minor: \t 1\nGPU Excluded:\t Yes\n")
				n.gpus = append(n.gpus[:1:1], n.gpus[2])
			},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, gpus.Multiple(3, gpus.A100_SXM4_40GB)...)
			test.trouble(t, n)
			snapshot := scan(t, n.adapter())
			var got []string
			well := 0
			for _, g := range snapshot.GPUs {
				if g.Health.State == "" {
					well++
					continue
				}
				got = append(got, fmt.Sprintf("%d %.12s %s %s", g.Index, g.UUID, g.Health.State, g.Health.Causes[0].Code))
			}
			for _, fault := range snapshot.Faults {
				got = append(got, "fault "+fault.Code)
			}
			if diff := cmp.Diff(test.want, strings.Join(got, "; ")); diff != "" || well != 2 {
				t.Errorf("%d GPUs are healthy, want 2; the rest (-want +got):\n%s", well, diff)
			}
		})
	}
}

// TestRemovedAndAdded takes a GPU out of the machine and puts it back.
func TestRemovedAndAdded(t *testing.T) {
	n := newNode(t, gpus.Multiple(3, gpus.A100_SXM4_40GB)...)
	a := n.adapter()
	before := scan(t, a)
	all, taken := n.gpus, n.gpus[1]

	n.gpus = append(n.gpus[:1:1], n.gpus[2])
	counted := scan(t, a)
	if len(counted.GPUs) != 3 || counted.GPUs[2].UUID != gpu.UUID(taken.UUID) || counted.GPUs[2].Health.State != gpu.Gone {
		t.Errorf("a GPU that NVML does not count while sysfs has it: got %+v; want it last, Gone", counted.GPUs)
	}
	n.pullOut(t, taken)
	if got := scan(t, a); len(got.GPUs) != 2 || len(got.Topology) != 2 || len(got.Faults) != 0 {
		t.Errorf("a GPU taken out: got %d GPUs, faults %v; want 2, none", len(got.GPUs), got.Faults)
	}
	n.gpus = all
	n.plugIn(t, taken, 0)
	if diff := cmp.Diff(before, scan(t, a)); diff != "" {
		t.Errorf("the GPU put back (-before +after):\n%s", diff)
	}
}

// TestReplacedGPU has another GPU in the same slot: the old one is no longer reported.
func TestReplacedGPU(t *testing.T) {
	n := newNode(t, gpus.Multiple(2, gpus.A100_SXM4_40GB)...)
	a := n.adapter()
	scan(t, a)
	n.gpus[1].UUID = "GPU-new"
	if got := scan(t, a); len(got.GPUs) != 2 || got.GPUs[1].UUID != "GPU-new" || len(got.Faults) != 0 {
		t.Errorf("got %+v, faults %v; want the new GPU in place of the old", got.GPUs, got.Faults)
	}
}

// TestDriverComesAndGoes starts without a driver, which is loaded, unloaded and loaded again.
func TestDriverComesAndGoes(t *testing.T) {
	n := newNode(t, gpus.Multiple(2, gpus.A100_SXM4_40GB)...)
	a := n.adapter()
	expect := func(when string, list int, state gpu.State, faults ...string) {
		t.Helper()
		got := scan(t, a)
		var codes []string
		for _, fault := range got.Faults {
			codes = append(codes, fault.Code)
		}
		if diff := cmp.Diff(faults, codes); diff != "" || len(got.GPUs) != list || len(got.Topology) != list {
			t.Errorf("%s: %d GPUs, want %d; faults (-want +got):\n%s", when, len(got.GPUs), list, diff)
		}
		for _, g := range got.GPUs {
			if g.Health.State != state {
				t.Errorf("%s: GPU %d is %q, want %q", when, g.Index, g.Health.State, state)
			}
		}
	}
	n.initReturn = nvml.ERROR_LIBRARY_NOT_FOUND
	expect("no library yet", 0, "", "DRIVER_MISSING")
	n.initReturn = nvml.SUCCESS
	expect("library found", 2, "")
	n.callReturn = nvml.ERROR_DRIVER_NOT_LOADED
	expect("driver gone", 2, gpu.Gone, "DRIVER_MISSING")
	n.callReturn, n.initReturn = nvml.SUCCESS, nvml.ERROR_DRIVER_NOT_LOADED
	expect("still gone", 2, gpu.Gone, "DRIVER_MISSING")
	n.initReturn = nvml.SUCCESS
	n.library.DriverVersion, n.gpus[0].Config.Name = "590.1", "another name for it"
	expect("back", 2, "")
	if got := scan(t, a); got.Vendor(gpu.NVIDIA).Driver.Version != "590.1" || got.GPUs[0].Product != "another name for it" {
		t.Errorf("driver %s says %q; want what the new driver says", got.Vendor(gpu.NVIDIA).Driver.Version, got.GPUs[0].Product)
	}
	n.gpus[1].broken = nvml.ERROR_UNINITIALIZED
	expect("gone in the middle", 2, gpu.Gone, "DRIVER_MISSING")
	n.gpus[1].broken = nvml.SUCCESS
	n.pullOut(t, n.gpus[0])
	n.initReturn = nvml.ERROR_DRIVER_NOT_LOADED
	expect("a GPU removed meanwhile", 1, gpu.Gone, "DRIVER_MISSING")
	if inits, ends := len(n.library.InitCalls()), len(n.library.ShutdownCalls()); inits != 5 || ends != 2 {
		t.Errorf("%d Init, %d Shutdown; want 5 (2 of them without success) and 2", inits, ends)
	}
}

// TestSteadyScanIsCheap counts the calls of a scan once all fixed values were read.
func TestSteadyScanIsCheap(t *testing.T) {
	n := newNode(t, gpus.Multiple(8, gpus.A100_SXM4_40GB)...)
	onSwitches(12, n.gpus...)
	a := n.adapter()
	scan(t, a)
	first := n.calls()
	scan(t, a)
	second := n.calls()
	steady := map[string]int{}
	for name, count := range second {
		if made := count - first[name]; made > 0 {
			steady[name] = made
		}
	}
	t.Logf("8 GPUs: first scan %d NVML calls, steady scan %d: %v", total(first), total(steady), steady)
	if first["GetTopologyCommonAncestor"] != 8*7/2 {
		t.Errorf("the first scan asked %d pairs; want 28, each once", first["GetTopologyCommonAncestor"])
	}
	for _, name := range []string{
		"GetTopologyCommonAncestor", "GetNvLinkRemoteDeviceType", "GetNvLinkRemotePciInfo", "GetName", "GetMemoryInfo", "Init",
		"GetGpuInstanceProfileInfo", "GetGpuInstancePossiblePlacements", "GetTemperatureThreshold", "GetRetiredPagesPendingStatus",
	} {
		if steady[name] != 0 {
			t.Errorf("a steady scan calls %s %d times; want 0", name, steady[name])
		}
	}
	for _, name := range []string{
		"GetRemappedRows", "GetTotalEccErrors", "GetTemperature", "GetCurrentClocksThrottleReasons", "GetFieldValues", "GetGpuFabricInfo",
	} {
		if steady[name] != 8 {
			t.Errorf("a steady scan calls %s %d times; want once for each GPU", name, steady[name])
		}
	}
	if got := total(steady); got > 8*30 {
		t.Errorf("a steady scan makes %d calls; want at most 30 for each GPU", got)
	}
	// A link that goes down is found, without further calls for pairs.
	n.gpus[3].links[0].down = true
	if got := scan(t, a).Topology[0][3].Count; got != 11 {
		t.Errorf("a link down: the pair has %d links; want 11", got)
	}
	if got := n.calls()["GetTopologyCommonAncestor"]; got != 28 {
		t.Errorf("a link down: %d pairs asked in all; want still 28", got)
	}
	// A new GPU adds calls for its own pairs only.
	added := n.makeGPU(8, gpus.A100_SXM4_40GB)
	n.plugIn(t, added, 1)
	n.gpus = append(n.gpus, added)
	scan(t, a)
	if got := n.calls()["GetTopologyCommonAncestor"]; got != 28+8 {
		t.Errorf("a GPU added: %d pairs asked in all; want 36", got)
	}
}

func TestScanEndsWithItsContext(t *testing.T) {
	n := newNode(t, gpus.A100_SXM4_40GB)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.adapter().Scan(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v; want context.Canceled", err)
	}
}

// TestDoingNamesTheHungCall calls Doing from within a call.
func TestDoingNamesTheHungCall(t *testing.T) {
	n := newNode(t, gpus.Multiple(2, gpus.A100_SXM4_40GB)...)
	var a *nvidia.Adapter
	var g gpu.UUID
	var call string
	n.gpus[1].Device.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
		g, call = a.Doing()
		return 0, nvml.SUCCESS
	}
	a = n.adapter()
	scan(t, a)
	if g != gpu.UUID(n.gpus[1].UUID) || call != "nvmlDeviceGetTotalEccErrors" {
		t.Errorf("Doing() = %q, %q; want the second GPU in nvmlDeviceGetTotalEccErrors", g, call)
	}
	if g, call := a.Doing(); g != "" || call != "" {
		t.Errorf("between scans Doing() = %q, %q; want nothing", g, call)
	}
}

// BenchmarkScan8 is a steady scan of 8 switched GPUs over the mock, which keeps a record of each call: the adapter's own cost
// is lower.
func BenchmarkScan8(b *testing.B) {
	n := newNode(b, gpus.Multiple(8, gpus.A100_SXM4_40GB)...)
	onSwitches(12, n.gpus...)
	a := n.adapter()
	scan(b, a)
	before := total(n.calls())
	b.ReportAllocs()
	for b.Loop() {
		scan(b, a)
	}
	b.ReportMetric(float64(total(n.calls())-before)/float64(b.N), "NVML-calls/op")
}
