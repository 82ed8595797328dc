package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
)

// modes returns a GPU's MIG mode now and after the next reset.
func modes(t testing.TB, d nvml.Device) string {
	t.Helper()
	current, pending, ret := d.GetMigMode()
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	return fmt.Sprintf("%d>%d", current, pending)
}

// TestMIGModeByGeneration checks that Ampere changes the mode at a reset and keeps it over a reboot, and that Hopper
// changes it at once and loses it.
func TestMIGModeByGeneration(t *testing.T) {
	for name, test := range map[string]struct {
		machine    string
		activation nvml.Return
		// The modes after each step: on, off, on, reset, reboot, off, reboot.
		want string
	}{
		"A100": {"a100x8-40g", nvml.ERROR_RESET_REQUIRED, "0>1 0>0 0>1 1>1 1>1 1>0 0>0"},
		"A30":  {"a30x4", nvml.ERROR_RESET_REQUIRED, "0>1 0>0 0>1 1>1 1>1 1>0 0>0"},
		"H100": {"h100x8", nvml.SUCCESS, "1>1 0>0 1>1 1>1 0>0 0>0 0>0"},
		"B200": {"b200x8", nvml.SUCCESS, "1>1 0>0 1>1 1>1 0>0 0>0 0>0"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, test.machine)
			lib := open(t, m)
			d := gpu(t, lib, 1)
			var got []string
			note := func() { got = append(got, modes(t, d)) }
			if activation, ret := d.SetMigMode(nvml.DEVICE_MIG_ENABLE); ret != nvml.SUCCESS || activation != test.activation {
				t.Errorf("SetMigMode = %v, %v; want %v, SUCCESS", activation, ret, test.activation)
			}
			note()
			d.SetMigMode(nvml.DEVICE_MIG_DISABLE)
			note()
			d.SetMigMode(nvml.DEVICE_MIG_ENABLE)
			note()
			if err := m.ResetGPUs("1"); err != nil {
				t.Fatal(err)
			}
			note()
			reboot := func() {
				if err := m.Reboot(); err != nil {
					t.Fatal(err)
				}
				if _, _, ret := d.GetMigMode(); ret != nvml.ERROR_UNINITIALIZED {
					t.Errorf("a program that ran on over the reboot: %v; want UNINITIALIZED", ret)
				}
				lib.Init()
			}
			reboot()
			note()
			d.SetMigMode(nvml.DEVICE_MIG_DISABLE)
			note()
			reboot()
			note()
			if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("modes (-want +got):\n%s", diff)
			}
			if other := modes(t, gpu(t, lib, 0)); other != "0>0" {
				t.Errorf("another GPU: %s", other)
			}
		})
	}
}

// TestPlacementsWithoutMIG checks that placements can be read with MIG off, and instances cannot be created.
func TestPlacementsWithoutMIG(t *testing.T) {
	m := newMachine(t, "h100x8")
	d := gpu(t, open(t, m), 0)
	info := profileInfo(t, m, d, 0, "2g.20gb")
	placements, ret := d.GetGpuInstancePossiblePlacements(info)
	if diff := cmp.Diff([]nvml.GpuInstancePlacement{{Start: 0, Size: 2}, {Start: 2, Size: 2}, {Start: 4, Size: 2}},
		placements); diff != "" || ret != nvml.SUCCESS {
		t.Errorf("%v (-want +got):\n%s", ret, diff)
	}
	if _, ret := d.CreateGpuInstanceWithPlacement(info, &placements[0]); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("create: %v, want NOT_SUPPORTED", ret)
	}
}

// TestReset checks what a reset repairs and removes, and that it leaves other GPUs alone.
func TestReset(t *testing.T) {
	for name, test := range map[string]struct {
		fault Fault
		want  string // faults and recovery action after the reset
	}{
		"ECC":               {Fault{ECC: 2}, " None"},
		"application XID":   {Fault{XID: 31}, " None"},
		"reset XID":         {Fault{XID: 95}, " None"},
		"row remap pending": {Fault{RowRemap: RowRemapPending}, " None"},
		"row remap failed":  {Fault{RowRemap: RowRemapFailed, XID: 95}, "XID 64;row remap failed GPUReset"},
		"XID of a reboot":   {Fault{XID: 79, Recovery: "node-reboot"}, "XID 79 NodeReboot"},
		"XID and silence":   {Fault{XID: 79}, " None"},
		"no field 230":      {Fault{XID: 79, Recovery: RecoveryUnsupported}, " Unsupported"},
		"contained error":   {Fault{XID: 94}, " None"},
		"heat and a hang":   {Fault{Temperature: 90, Hang: "GetName"}, "90 C;GetName hangs None"},
		"NVLinks":           {Fault{AllNVLinksDown: true}, " None"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, "h100x8")
			d := gpu(t, open(t, m), 2)
			d.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS)
			if err := m.SetTimeSlice("2", 3); err != nil {
				t.Fatal(err)
			}
			firstMIG(t, d)
			test.fault.GPU = "2"
			inject(t, m, test.fault)
			inject(t, m, Fault{GPU: "3", ECC: 1})
			if err := m.ResetGPUs(m.hw.GPUs[2].UUID); err != nil {
				t.Fatal(err)
			}
			shown, _ := m.Show()
			g := shown.GPUs[2]
			if got := strings.Join(g.Faults, ";") + " " + g.Recovery; got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if g.MIG != "on" || len(g.MIGDevices) > 0 || g.ComputeMode != "" || g.TimeSlice != "" || g.NVLinks != 18 {
				t.Errorf("after the reset: %+v; want MIG on without devices, and no settings", g)
			}
			if len(shown.GPUs[3].Faults) == 0 {
				t.Error("another GPU was reset")
			}
		})
	}
}

// TestBusy checks that operations fail on a GPU that a process uses.
func TestBusy(t *testing.T) {
	m := newMachine(t, "h100x8")
	lib := open(t, m)
	d := gpu(t, lib, 0)
	mig, gi, ci := firstMIG(t, d)
	uuid, _ := mig.GetUUID()
	inject(t, m, Fault{GPU: uuid, Busy: true})
	inject(t, m, Fault{GPU: "1", Busy: true})
	inject(t, m, Fault{GPU: "2", LostSilently: true})

	if ret := ci.Destroy(); ret != nvml.ERROR_IN_USE {
		t.Errorf("destroy the compute instance: %v, want IN_USE", ret)
	}
	if activation, ret := gpu(t, lib, 1).SetMigMode(nvml.DEVICE_MIG_ENABLE); activation != nvml.ERROR_IN_USE || ret != nvml.SUCCESS {
		t.Errorf("SetMigMode = %v, %v; want IN_USE, SUCCESS", activation, ret)
	}
	processes, _ := d.GetComputeRunningProcesses()
	id, _ := mig.GetGpuInstanceId()
	if len(processes) != 1 || processes[0].GpuInstanceId != uint32(id) || processes[0].Pid < busyPID {
		t.Errorf("processes %+v; want one in GPU instance %d", processes, id)
	}
	var refusal *ResetError
	if err := m.ResetGPUs("0", "1", "2", "3"); !errors.As(err, &refusal) ||
		err.Error() != "reset GPUs: GPU 0000:1b:00.0: a process uses it; GPU 0000:43:00.0: a process uses it; GPU "+
			"0000:52:00.0: it is lost" {
		t.Errorf("got %v; want the three that refuse", err)
	}
	shown, _ := m.Show()
	if got := strings.Join(append(shown.GPUs[0].Faults, shown.GPUs[1].Faults...), ";"); got != fmt.Sprintf("GI %d busy;busy", id) {
		t.Errorf("shown as %q", got)
	}
	clearAll(t, m)
	if ret := ci.Destroy(); ret != nvml.SUCCESS {
		t.Errorf("destroy the compute instance afterwards: %v", ret)
	}
	if ret := gi.Destroy(); ret != nvml.SUCCESS {
		t.Errorf("destroy the GPU instance afterwards: %v", ret)
	}
	if err := m.ResetGPUs("1"); err != nil {
		t.Error(err)
	}
}

func TestResetRefuses(t *testing.T) {
	m := newMachine(t, "t4x4")
	for want, refs := range map[string][]string{"no GPU named": nil, "no such GPU": {"0", "GPU-x"}} {
		if err := m.ResetGPUs(refs...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ResetGPUs(%v) = %v, want %q", refs, err, want)
		}
	}
	if err := m.SetTimeSlice("0", 4); err == nil || !strings.Contains(err.Error(), "want 0 to 3") {
		t.Errorf("SetTimeSlice = %v", err)
	}
}

// TestReboot checks that a reboot ends faults, keeps permanent ones, and does not bring back a removed GPU.
func TestReboot(t *testing.T) {
	m := newMachine(t, "h100x8")
	firstMIG(t, gpu(t, open(t, m), 0))
	inject(t, m, Fault{GPU: "1", OffBus: true, Busy: true, Hang: AllCalls})
	inject(t, m, Fault{GPU: "2", RowRemap: RowRemapFailed, XID: 79})
	inject(t, m, Fault{GPU: "3", Remove: true})
	inject(t, m, Fault{DriverGone: true})
	if err := m.Reboot(); err != nil {
		t.Fatal(err)
	}
	shown, _ := m.Show()
	var got []string
	for _, g := range shown.GPUs[:4] {
		got = append(got, fmt.Sprintf("%s %d %v", g.MIG, len(g.MIGDevices), g.Faults))
	}
	want := []string{"off 0 []", "off 0 []", "off 0 [XID 64 row remap failed]", "off 0 [removed]"}
	if diff := cmp.Diff(want, got); diff != "" || !shown.DriverLoaded {
		t.Errorf("driver loaded %v (-want +got):\n%s", shown.DriverLoaded, diff)
	}
}

// TestSettings checks that settings survive Clear and a new process, and that Show reports them.
func TestSettings(t *testing.T) {
	m := newMachine(t, "a100x8-40g")
	d := gpu(t, open(t, m), 0)
	for mode, want := range map[nvml.ComputeMode]nvml.Return{
		nvml.COMPUTEMODE_EXCLUSIVE_THREAD: nvml.ERROR_NOT_SUPPORTED, nvml.COMPUTEMODE_COUNT: nvml.ERROR_INVALID_ARGUMENT,
		nvml.COMPUTEMODE_EXCLUSIVE_PROCESS: nvml.SUCCESS,
	} {
		if ret := d.SetComputeMode(mode); ret != want {
			t.Errorf("SetComputeMode(%d) = %v, want %v", mode, ret, want)
		}
	}
	if err := m.SetTimeSlice("0", 1); err != nil {
		t.Fatal(err)
	}
	d.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	clearAll(t, m)
	again, err := Open(m.Dir())
	if err != nil {
		t.Fatal(err)
	}
	shown, _ := again.Show()
	var table strings.Builder
	if err := shown.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	if want := "MIG on after a reset, compute mode EXCLUSIVE_PROCESS, time slice Short"; !strings.Contains(table.String(), want) {
		t.Errorf("the table lacks %q:\n%s", want, &table)
	}
	if mode, ret := gpu(t, open(t, again), 0).GetComputeMode(); mode != nvml.COMPUTEMODE_EXCLUSIVE_PROCESS || ret != nvml.SUCCESS {
		t.Errorf("GetComputeMode = %v, %v", mode, ret)
	}
	enableMIG(t, d)
	if err := again.SetTimeSlice("0", 1); !errors.Is(err, nvml.ERROR_NOT_SUPPORTED) {
		t.Errorf("time slice in MIG mode: %v, want NOT_SUPPORTED", err)
	}
}

// TestOldStateDirectory checks that a machine created before extras and settings existed opens unchanged.
func TestOldStateDirectory(t *testing.T) {
	m := newMachine(t, "h100x8")
	firstMIG(t, gpu(t, open(t, m), 0))
	for file, drop := range map[string][]string{hardwareFile: {"extras"}, stateFile: nil} {
		path := filepath.Join(m.Root(), file)
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var object map[string]any
		if err := json.Unmarshal(content, &object); err != nil {
			t.Fatal(err)
		}
		for _, name := range drop {
			delete(object, name)
		}
		if majors, ok := object["majors"].(map[string]any); ok {
			for _, name := range []string{"gdrdrv", "nvidiaFS", "infinibandVerbs", "nvidiaCapsIMEXChannels"} {
				delete(majors, name)
			}
		}
		if gpus, ok := object["gpus"].([]any); ok && file == stateFile {
			for _, c := range gpus {
				for _, name := range []string{"busy", "migPending", "computeMode", "timeSlice"} {
					delete(c.(map[string]any), name)
				}
			}
		}
		content, _ = json.Marshal(object)
		writeFile(t, path, content)
	}
	old, err := Open(m.Dir())
	if err != nil {
		t.Fatal(err)
	}
	shown, err := old.Show()
	if err != nil || shown.GPUs[0].MIG != "on" || len(shown.GPUs[0].MIGDevices) != 1 {
		t.Errorf("%v: %+v; want MIG on with its device", err, shown.GPUs[0])
	}
	if _, err := os.Stat(filepath.Join(old.Root(), "etc/cufile.json")); !os.IsNotExist(err) {
		t.Errorf("the old machine has new hardware: %v", err)
	}
}

// TestExtras checks the device nodes and numbers of the additional drivers, and that those which need the GPU driver
// disappear with it.
func TestExtras(t *testing.T) {
	listed := func(st *state, hw *hardware) string {
		var names []string
		for _, e := range tree(hw, st) {
			for _, prefix := range []string{"dev/gdrdrv", "dev/nvidia-fs", "dev/infiniband", "dev/nvidia-caps-imex", "etc/", "run/"} {
				if strings.HasPrefix(e.Path, prefix) && !strings.HasPrefix(e.Path, "dev/nvidia-fs1") {
					names = append(names, e.Path)
				}
			}
		}
		return strings.Join(names, " ")
	}
	for name, test := range map[string]struct{ machine, want, gone, devices string }{
		"IMEX": {
			"gb200x4",
			"dev/gdrdrv dev/infiniband/rdma_cm dev/infiniband/uverbs0 dev/nvidia-caps-imex-channels/channel0 " +
				"dev/nvidia-fs0 dev/nvidia-fs2 " +
				"dev/nvidia-fs3 dev/nvidia-fs4 dev/nvidia-fs5 dev/nvidia-fs6 dev/nvidia-fs7 dev/nvidia-fs8 " +
				"dev/nvidia-fs9 etc/cufile.json run/udev/data/c388:0",
			"dev/infiniband/rdma_cm dev/infiniband/uverbs0",
			"387 gdrdrv\n388 nvidia-fs\n389 infiniband_verbs\n390 nvidia-caps-imex-channels\n",
		},
		"none": {"a100x8-40g", "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			hw, st := design1(t, test.machine)
			if diff := cmp.Diff(test.want, listed(st, hw)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if !strings.Contains(hw.procDevices(st), test.devices) || test.devices == "" &&
				strings.Contains(hw.procDevices(st), "nvidia-fs") {
				t.Errorf("/proc/devices:\n%swant in it:\n%s", hw.procDevices(st), test.devices)
			}
			st.DriverGone = true
			if diff := cmp.Diff(test.gone, listed(st, hw)); diff != "" {
				t.Errorf("without a driver (-want +got):\n%s", diff)
			}
		})
	}
}
