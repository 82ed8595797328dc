package sim

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func TestLost(t *testing.T) {
	tests := map[string]struct {
		fault     Fault
		dead      bool // PCI configuration space reads as ones
		eventsXID uint64
	}{
		"with an event": {Fault{GPU: "2", Lost: true}, false, 79},
		"silently":      {Fault{GPU: "2", LostSilently: true}, false, 0},
		"off the bus":   {Fault{GPU: "2", OffBus: true}, true, 79},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, "h100x8")
			lib := open(t, m)
			d, other := gpu(t, lib, 2), gpu(t, lib, 3)
			set := watch(t, lib, d)
			inject(t, m, test.fault)

			if _, ret := d.GetTemperature(nvml.TEMPERATURE_GPU); ret != nvml.ERROR_GPU_IS_LOST {
				t.Errorf("GetTemperature = %v, want GPU_IS_LOST", ret)
			}
			if _, ret := d.GetFanSpeed(); ret != nvml.ERROR_GPU_IS_LOST {
				t.Errorf("a call that is not simulated = %v, want GPU_IS_LOST", ret)
			}
			if _, ret := lib.DeviceGetHandleByIndex(2); ret != nvml.ERROR_GPU_IS_LOST {
				t.Errorf("DeviceGetHandleByIndex = %v, want GPU_IS_LOST", ret)
			}
			if _, ret := other.GetTopologyCommonAncestor(d); ret != nvml.ERROR_GPU_IS_LOST {
				t.Errorf("a neighbour's call about it = %v, want GPU_IS_LOST", ret)
			}
			if _, ret := other.GetTemperature(nvml.TEMPERATURE_GPU); ret != nvml.SUCCESS {
				t.Errorf("a neighbour = %v", ret)
			}
			if count, _ := lib.DeviceGetCount(); count != 8 {
				t.Errorf("count = %d, want 8: a lost GPU is still counted", count)
			}
			config, err := os.ReadFile(filepath.Join(m.Root(), "sys/bus/pci/devices/0000:52:00.0/config"))
			if err != nil || (config[0] == 0xff) != test.dead {
				t.Errorf("config space starts with %x, %v", config[:2], err)
			}
			data, ret := set.Wait(0)
			if got := data.EventData; got != test.eventsXID || (ret == nvml.SUCCESS) != (test.eventsXID != 0) {
				t.Errorf("event: XID %d, %v; want %d", got, ret, test.eventsXID)
			}
			if ret == nvml.SUCCESS {
				if uuid, ret := data.Device.GetUUID(); ret != nvml.SUCCESS || uuid != m.hw.GPUs[2].UUID {
					t.Errorf("the event's GPU: %s, %v", uuid, ret)
				}
			}

			if err := m.Clear(m.hw.GPUs[2].UUID); err != nil {
				t.Fatal(err)
			}
			if _, ret := d.GetTemperature(nvml.TEMPERATURE_GPU); ret != nvml.SUCCESS {
				t.Errorf("after Clear: %v", ret)
			}
		})
	}
}

func TestRecoveryAction(t *testing.T) {
	tests := map[string]struct {
		fault Fault
		want  nvml.DeviceGpuRecoveryAction
	}{
		"XID 13":         {Fault{XID: 13}, nvml.GPU_RECOVERY_ACTION_NONE},
		"XID 48":         {Fault{XID: 48}, nvml.GPU_RECOVERY_ACTION_NONE},
		"XID 79":         {Fault{XID: 79}, nvml.GPU_RECOVERY_ACTION_NONE},
		"said so":        {Fault{XID: 48, Recovery: "gpu-reset"}, nvml.GPU_RECOVERY_ACTION_GPU_RESET},
		"says nothing":   {Fault{ECC: 1, Recovery: "none"}, nvml.GPU_RECOVERY_ACTION_NONE},
		"lags":           {Fault{XID: 119, Recovery: "gpu-reset", RecoveryAfter: time.Hour}, nvml.GPU_RECOVERY_ACTION_NONE},
		"bus reset":      {Fault{Recovery: "bus-reset"}, nvml.GPU_RECOVERY_ACTION_BUS_RESET},
		"contained":      {Fault{XID: 94}, nvml.GPU_RECOVERY_ACTION_NONE},
		"SRAM":           {Fault{ECCSRAM: 1}, nvml.GPU_RECOVERY_ACTION_GPU_RESET},
		"ECC":            {Fault{ECC: 3}, nvml.GPU_RECOVERY_ACTION_GPU_RESET},
		"remap pending":  {Fault{RowRemap: RowRemapPending}, nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET},
		"remap failed":   {Fault{RowRemap: RowRemapFailed}, nvml.GPU_RECOVERY_ACTION_GPU_RESET},
		"NVLink down":    {Fault{NVLinksDown: []int{4}}, nvml.GPU_RECOVERY_ACTION_GPU_RESET},
		"the strongest":  {Fault{RowRemap: RowRemapPending, ECC: 1}, nvml.GPU_RECOVERY_ACTION_GPU_RESET},
		"heat asks none": {Fault{Temperature: 95}, nvml.GPU_RECOVERY_ACTION_NONE},
	}
	m := newMachine(t, "h100x8")
	d := gpu(t, open(t, m), 1)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			test.fault.GPU = "1"
			inject(t, m, test.fault)
			if got, ret := field(t, d, nvml.FI_DEV_GET_GPU_RECOVERY_ACTION,
				0); nvml.DeviceGpuRecoveryAction(got) != test.want || ret != nvml.SUCCESS {
				t.Errorf("recovery action = %d, %v; want %d", got, ret, test.want)
			}
			clearAll(t, m)
			if got, _ := field(t, d, nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, 0); got != 0 {
				t.Errorf("recovery action after Clear = %d", got)
			}
		})
	}
}

// TestRecoveryActionLags simulates a driver whose diagnosis takes as long as three timeouts of the GSP firmware.
func TestRecoveryActionLags(t *testing.T) {
	m := newMachine(t, "h100x8")
	synctest.Test(t, func(t *testing.T) {
		d := gpu(t, open(t, m), 0)
		inject(t, m, Fault{GPU: "0", XID: 119, Recovery: "gpu-reset", RecoveryAfter: 135 * time.Second})
		for _, want := range []struct {
			after  time.Duration
			action uint64
		}{{0, 0}, {134 * time.Second, 0}, {time.Second, 1}, {time.Hour, 1}} {
			time.Sleep(want.after)
			if got, ret := field(t, d, nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, 0); got != want.action || ret != nvml.SUCCESS {
				t.Errorf("recovery action %v later = %d, %v; want %d", want.after, got, ret, want.action)
			}
		}
	})
	inject(t, m, Fault{GPU: "1", Recovery: RecoveryUnsupported})
	if _, ret := field(t, gpu(t, open(t, m), 1), nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, 0); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("recovery action of a driver without it: %v", ret)
	}
}

// TestErrorCountersTellDRAMFromSRAM injects one error of each kind; one of them is contained.
func TestErrorCountersTellDRAMFromSRAM(t *testing.T) {
	m := newMachine(t, "h100x8")
	d := gpu(t, open(t, m), 0)
	inject(t, m, Fault{GPU: "0", ECC: 2, ECCSRAM: 3})
	inject(t, m, Fault{GPU: "0", XID: 94})
	for where, want := range map[nvml.MemoryLocation]uint64{nvml.MEMORY_LOCATION_DRAM: 3, nvml.MEMORY_LOCATION_SRAM: 3} {
		if n, ret := d.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC,
			where); n != want || ret != nvml.SUCCESS {
			t.Errorf("location %d: %d, %v; want %d", where, n, ret, want)
		}
	}
	if n, _ := d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); n != 6 {
		t.Errorf("total %d; want 6", n)
	}
}

// TestLifeOfAGPU checks that a reset restarts the counters, and that each load of the driver has its own module folder.
func TestLifeOfAGPU(t *testing.T) {
	m := newMachine(t, "h100x8")
	lib := open(t, m)
	energy := func(slot int) uint64 {
		n, ret := field(t, gpu(t, lib, slot), nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION, 0)
		if ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
		return n
	}
	module := func() uint64 {
		info, err := os.Stat(filepath.Join(m.Root(), "sys/module/nvidia"))
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t).Ino
	}
	first, other, loads := energy(0), energy(1), []uint64{module()}
	if err := m.ResetGPUs("0"); err != nil {
		t.Fatal(err)
	}
	if now := energy(0); now >= first/2 || energy(1) < other {
		t.Errorf("energy after a reset of GPU 0: %d and %d, before it %d and %d", now, energy(1), first, other)
	}
	if module() != loads[0] {
		t.Error("a reset loaded the driver")
	}
	for range 3 {
		inject(t, m, Fault{DriverGone: true})
		if err := m.Clear(ClearDriver); err != nil {
			t.Fatal(err)
		}
		if ret := lib.Init(); ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
		if now := module(); slices.Contains(loads, now) {
			t.Errorf("module folder %d again, of %v", now, loads)
		} else {
			loads = append(loads, now)
		}
	}
	if energy(1) >= other/2 {
		t.Error("the driver's load did not begin the counters again")
	}
}

func TestReadings(t *testing.T) {
	m := newMachine(t, "a100x8-80g")
	d := gpu(t, open(t, m), 0)
	inject(t, m, Fault{GPU: "0", ECC: 3, Temperature: 94, RowRemap: RowRemapPending})
	if n, _ := d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); n != 3 {
		t.Errorf("ECC errors = %d, want 3", n)
	}
	if n, _ := field(t, d, nvml.FI_DEV_ECC_DBE_VOL_TOTAL, 0); n != 3 {
		t.Errorf("ECC field = %d, want 3", n)
	}
	temperature, _ := d.GetTemperature(nvml.TEMPERATURE_GPU)
	slowdown, _ := d.GetTemperatureThreshold(nvml.TEMPERATURE_THRESHOLD_SLOWDOWN)
	reasons, _ := d.GetCurrentClocksEventReasons()
	if temperature != 94 || slowdown != 92 || reasons&nvml.ClocksThrottleReasonHwThermalSlowdown == 0 {
		t.Errorf("temperature %d, slowdown at %d, reasons %#x", temperature, slowdown, reasons)
	}
	if _, uncorrected, pending, failed, ret := d.GetRemappedRows(); uncorrected != 1 || !pending || failed || ret != nvml.SUCCESS {
		t.Errorf("remapped rows: %d, pending %v, failed %v, %v", uncorrected, pending, failed, ret)
	}
	if _, ret := field(t, d, 9999, 0); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("unknown field: %v", ret)
	}
	if _, _, _, _, ret := gpu(t, open(t, newMachine(t, "t4x4")), 0).GetRemappedRows(); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("remapped rows of a T4: %v", ret)
	}
}

// TestNVLinkDown checks that a link goes down at both ends.
func TestNVLinkDown(t *testing.T) {
	m := newMachine(t, "v100x8-hybrid-mesh")
	lib := open(t, m)
	inject(t, m, Fault{GPU: "0", NVLinksDown: []int{2}}) // the first of two links to GPU 3
	got := matrix(t, lib)
	if got[0][3] != 1 || got[3][0] != 1 || got[0][4] != 2 {
		t.Errorf("links of GPU 0: %v, of GPU 3: %v", got[0], got[3])
	}
	if err := m.Clear("0"); err != nil {
		t.Fatal(err)
	}
	if got := matrix(t, lib); got[0][3] != 2 || got[3][0] != 2 {
		t.Errorf("after Clear: %v", got[0])
	}
	h100 := newMachine(t, "h100x8")
	inject(t, h100, Fault{GPU: "5", AllNVLinksDown: true})
	description, _ := h100.Show()
	if got := description.Topology[5][0] + " " + description.Topology[0][1]; got != "SYS NV18" {
		t.Errorf("topology = %s, want SYS NV18", got)
	}
}

func TestHotRemove(t *testing.T) {
	m := newMachine(t, "l40sx8")
	lib := open(t, m)
	held := gpu(t, lib, 1)
	inject(t, m, Fault{GPU: "1", Remove: true})
	if count, _ := lib.DeviceGetCount(); count != 7 {
		t.Errorf("count = %d, want 7", count)
	}
	if uuid, _ := gpu(t, lib, 1).GetUUID(); uuid != m.hw.GPUs[2].UUID {
		t.Errorf("index 1 is %s, want the next GPU", uuid)
	}
	if _, ret := held.GetName(); ret != nvml.ERROR_GPU_IS_LOST {
		t.Errorf("a handle held = %v, want GPU_IS_LOST", ret)
	}
	if _, ret := lib.DeviceGetHandleByUUID(m.hw.GPUs[1].UUID); ret != nvml.ERROR_NOT_FOUND {
		t.Errorf("by UUID = %v, want NOT_FOUND", ret)
	}
	gone := []string{"sys/bus/pci/devices/" + m.hw.GPUs[1].PCI, "proc/driver/nvidia/gpus/" + m.hw.GPUs[1].PCI}
	for _, name := range gone {
		if _, err := os.Lstat(filepath.Join(m.Root(), name)); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", name, err)
		}
	}
	clearAll(t, m)
	for _, name := range gone {
		if _, err := os.Stat(filepath.Join(m.Root(), name)); err != nil {
			t.Errorf("after hot add: %v", err)
		}
	}
	if uuid, ret := held.GetUUID(); uuid != m.hw.GPUs[1].UUID || ret != nvml.SUCCESS {
		t.Errorf("after hot add: %s, %v", uuid, ret)
	}
}

func TestDriverGone(t *testing.T) {
	m := newMachine(t, "h100x8")
	lib := open(t, m)
	d := gpu(t, lib, 0)
	set := watch(t, lib, d)
	waited := make(chan nvml.Return, 1)
	go func() {
		_, ret := set.Wait(60_000)
		waited <- ret
	}()
	inject(t, m, Fault{DriverGone: true})
	if ret := <-waited; ret != nvml.ERROR_DRIVER_NOT_LOADED {
		t.Errorf("Wait = %v, want DRIVER_NOT_LOADED", ret)
	}
	if _, ret := d.GetName(); ret != nvml.ERROR_DRIVER_NOT_LOADED {
		t.Errorf("GetName = %v, want DRIVER_NOT_LOADED", ret)
	}
	if ret := m.NVML().Init(); ret != nvml.ERROR_LIBRARY_NOT_FOUND {
		t.Errorf("Init = %v, want LIBRARY_NOT_FOUND", ret)
	}
	for _, name := range []string{libraryFolder(), "proc/driver", "lib/firmware", "usr/bin"} {
		if _, err := os.Stat(filepath.Join(m.Root(), name)); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(m.Root(), "sys/bus/pci/devices/0000:1b:00.0/vendor")); err != nil {
		t.Errorf("the GPU left the bus: %v", err)
	}
	if err := m.Clear(ClearDriver); err != nil {
		t.Fatal(err)
	}
	if _, ret := d.GetName(); ret != nvml.ERROR_UNINITIALIZED {
		t.Errorf("GetName before Init = %v, want UNINITIALIZED", ret)
	}
	if ret := lib.Init(); ret != nvml.SUCCESS {
		t.Errorf("Init = %v", ret)
	}
	if _, ret := d.GetName(); ret != nvml.SUCCESS {
		t.Errorf("GetName = %v", ret)
	}
}

func TestHang(t *testing.T) {
	m := newMachine(t, "t4x4")
	synctest.Test(t, func(t *testing.T) { checkHang(t, m) })
}

func checkHang(t *testing.T, m *Machine) {
	lib := open(t, m)
	d := gpu(t, lib, 0)
	inject(t, m, Fault{GPU: "0", Hang: "GetTemperature"})
	done := make(chan nvml.Return, 1)
	go func() {
		_, ret := d.GetTemperature(nvml.TEMPERATURE_GPU)
		done <- ret
	}()
	if _, ret := d.GetName(); ret != nvml.SUCCESS { // other calls succeed
		t.Error(ret)
	}
	select {
	case ret := <-done:
		t.Fatalf("the call returned %v", ret)
	case <-time.After(time.Hour): // virtual time
	}
	if err := m.Clear("0"); err != nil {
		t.Fatal(err)
	}
	if ret := <-done; ret != nvml.SUCCESS {
		t.Errorf("after Clear: %v", ret)
	}

	const slow = 30 * time.Second
	inject(t, m, Fault{GPU: "0", Hang: AllCalls, HangFor: slow})
	for name, call := range map[string]func() nvml.Return{
		"GetUUID":                func() nvml.Return { _, ret := d.GetUUID(); return ret },
		"DeviceGetHandleByIndex": func() nvml.Return { _, ret := lib.DeviceGetHandleByIndex(0); return ret },
	} {
		started := time.Now()
		if ret := call(); ret != nvml.SUCCESS || time.Since(started) != slow {
			t.Errorf("%s: %v after %v, want %v", name, ret, time.Since(started), slow)
		}
	}
}

func TestFaultsRefused(t *testing.T) {
	tests := map[string]struct {
		machine string
		fault   Fault
		want    string
	}{
		"nothing":         {"t4x4", Fault{GPU: "0"}, "no fault given"},
		"no GPU":          {"t4x4", Fault{XID: 79}, "no GPU named"},
		"no such slot":    {"t4x4", Fault{GPU: "4", XID: 79}, "has GPUs 0 to 3"},
		"no such UUID":    {"t4x4", Fault{GPU: "GPU-x", XID: 79}, "no such GPU"},
		"no remapper":     {"t4x4", Fault{GPU: "0", RowRemap: RowRemapPending}, "no row remapper"},
		"remap word":      {"h100x8", Fault{GPU: "0", RowRemap: "maybe"}, "pending or failed"},
		"no NVLink":       {"l40sx8", Fault{GPU: "0", AllNVLinksDown: true}, "no NVLinks"},
		"no such NVLink":  {"h100x8", Fault{GPU: "0", NVLinksDown: []int{18}}, "links 0 to 17"},
		"misspelt call":   {"h100x8", Fault{GPU: "0", Hang: "GetTemprature"}, `did you mean "GetTemperature"?`},
		"no call at all":  {"h100x8", Fault{GPU: "0", Hang: "x"}, "want a call of nvml.Device"},
		"negative length": {"h100x8", Fault{GPU: "0", Hang: AllCalls, HangFor: -1}, "positive duration"},
		"too hot":         {"h100x8", Fault{GPU: "0", Temperature: 9000}, "degrees Celsius"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, test.machine)
			before, _ := m.Show()
			err := m.Inject(test.fault)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Inject = %v, want %q", err, test.want)
			}
			if after, _ := m.Show(); after.Events != before.Events {
				t.Error("a refused fault left an event")
			}
		})
	}
}
