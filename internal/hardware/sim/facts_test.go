package sim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// TestFactsOfHealth checks what each fault changes in a scan, and that Clear reverts it.
func TestFactsOfHealth(t *testing.T) {
	reasons := func(d nvml.Device) any { r, _ := d.GetCurrentClocksThrottleReasons(); return r }
	fabric := func(d nvml.Device) any { f, _ := d.GetGpuFabricInfo(); return [2]uint32{uint32(f.State), f.Status} }
	pages := func(d nvml.Device) any { p, _ := d.GetRetiredPagesPendingStatus(); return p }
	idle := uint64(nvml.ClocksEventReasonGpuIdle)
	for name, test := range map[string]struct {
		profile string
		fault   Fault
		read    func(nvml.Device) any
		want    any
	}{
		"retired pages": {"v100x8-hybrid-mesh", Fault{RetiredPages: true}, pages, nvml.FEATURE_ENABLED},
		"hardware":      {"h100x8", Fault{Throttle: ThrottleHW}, reasons, idle | nvml.ClocksThrottleReasonHwSlowdown},
		"heat": {"h100x8", Fault{Throttle: ThrottleThermal}, reasons,
			idle | nvml.ClocksThrottleReasonHwSlowdown | nvml.ClocksThrottleReasonHwThermalSlowdown},
		"power brake": {"h100x8", Fault{Throttle: ThrottlePowerBrake}, reasons,
			idle | nvml.ClocksThrottleReasonHwSlowdown | nvml.ClocksThrottleReasonHwPowerBrakeSlowdown},
		"fabric not started": {"h100x8", Fault{Fabric: FabricNotStarted}, fabric, [2]uint32{uint32(nvml.GPU_FABRIC_STATE_NOT_STARTED), 0}},
		"fabric in progress": {"h100x8", Fault{Fabric: FabricInProgress}, fabric, [2]uint32{uint32(nvml.GPU_FABRIC_STATE_IN_PROGRESS), 0}},
		"fabric failed": {"h100x8", Fault{Fabric: FabricFailed}, fabric,
			[2]uint32{uint32(nvml.GPU_FABRIC_STATE_COMPLETED), uint32(nvml.ERROR_UNKNOWN)}},
		"link errors": {"h100x8", Fault{NVLinkErrors: 7}, func(d nvml.Device) any {
			number, _ := field(t, d, nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, 0)
			return number
		}, uint64(7)},
		"recovery action": {"h100x8", Fault{Recovery: "drain-p2p"}, func(d nvml.Device) any {
			number, _ := field(t, d, nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, 0)
			return number
		}, uint64(nvml.GPU_RECOVERY_ACTION_DRAIN_P2P)},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, test.profile)
			d := gpu(t, open(t, m), 1)
			before := test.read(d)
			test.fault.GPU = "1"
			inject(t, m, test.fault)
			if got := test.read(d); got != test.want {
				t.Errorf("got %v; want %v", got, test.want)
			}
			clearAll(t, m)
			if got := test.read(d); got != before {
				t.Errorf("after the repair: %v; want %v", got, before)
			}
		})
	}
}

// TestKernelLog checks that /dev/kmsg has each line once, also after a crash before the line was written.
func TestKernelLog(t *testing.T) {
	m := newMachine(t, "h100x8")
	lib := open(t, m)
	set := watch(t, lib, gpu(t, lib, 0))
	inject(t, m, Fault{GPU: "0", XID: 79})
	inject(t, m, Fault{GPU: "0", XID: 119, LogOnly: true})
	inject(t, m, Fault{GPU: "0", Log: "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30"})
	inject(t, m, Fault{GPU: "0", Temperature: 60})
	if data, ret := set.Wait(1000); ret != nvml.SUCCESS || data.EventData != 79 {
		t.Errorf("event %d, %v; want 79", data.EventData, ret)
	}
	if data, ret := set.Wait(0); ret != nvml.ERROR_TIMEOUT {
		t.Errorf("a second event: %d, %v; want none", data.EventData, ret)
	}
	path := filepath.Join(m.Root(), "dev/kmsg")
	bus := strings.TrimSuffix(m.hw.GPUs[0].PCI, ".0")
	want := []string{
		"NVRM: Xid (PCI:" + bus + "): 79, pid='<unknown>', name=<unknown>, injected",
		"NVRM: Xid (PCI:" + bus + "): 119, pid='<unknown>', name=<unknown>, injected",
		"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30",
	}
	check := func(when string) {
		t.Helper()
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for line := range strings.Lines(string(content)) {
			_, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ";")
			got = append(got, text)
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s: got %q; want %q", when, got, want)
		}
	}
	check("after the faults")
	// Simulate a crash between the commit and the log.
	inject(t, m, Fault{GPU: "0", XID: 62})
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, int64(len(content))-10); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(m.Dir()); err != nil {
		t.Fatal(err)
	}
	want = append(want, "NVRM: Xid (PCI:"+bus+"): 62, pid='<unknown>', name=<unknown>, injected")
	check("after a crash")
	clearAll(t, m)
	check("after the repair")
}

func TestFactsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		profile string
		fault   Fault
		want    string
	}{
		"pages of an H100":     {"h100x8", Fault{RetiredPages: true}, "remaps rows instead"},
		"no fabric":            {"t4x4", Fault{Fabric: FabricFailed}, "has no NVLink fabric"},
		"no links":             {"t4x4", Fault{NVLinkErrors: 1}, "has no NVLinks"},
		"throttle word":        {"t4x4", Fault{Throttle: "cold"}, `throttle "cold": want one of hw, thermal, power-brake`},
		"fabric word":          {"h100x8", Fault{Fabric: "up"}, `fabric "up": want one of not-started, in-progress, failed`},
		"recovery word":        {"t4x4", Fault{Recovery: "pray"}, `recovery action "pray": want one of none, gpu-reset`},
		"log of two lines":     {"t4x4", Fault{Log: "a\nb"}, "want one line"},
		"log only, of nothing": {"t4x4", Fault{LogOnly: true, Temperature: 50}, "want the XID"},
	} {
		t.Run(name, func(t *testing.T) {
			test.fault.GPU = "0"
			if err := newMachine(t, test.profile).Inject(test.fault); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v; want %q in it", err, test.want)
			}
		})
	}
}
