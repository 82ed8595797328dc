package tools_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/hardware/sim/tools"
)

// smiMachine creates a machine without device nodes.
func smiMachine(t testing.TB, profile string) *sim.Machine {
	t.Helper()
	m, err := sim.CreateWith(filepath.Join(t.TempDir(), "sim"), profile, sim.Options{Seed: "smi", NoDeviceNodes: true})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// runSMI runs nvidia-smi. It returns the output, with each GPU's UUID as @N, as in args, and the exit code.
func runSMI(t testing.TB, m *sim.Machine, args ...string) (string, int) {
	t.Helper()
	shown, err := m.Show()
	if err != nil {
		t.Fatal(err)
	}
	for i, arg := range args {
		for _, g := range shown.GPUs {
			arg = strings.ReplaceAll(arg, fmt.Sprintf("@%d", g.Slot), g.UUID)
		}
		args[i] = arg
	}
	var stdout, stderr bytes.Buffer
	code := tools.SMI(m.Root(), args, strings.NewReader(""), &stdout, &stderr)
	if stderr.Len() > 0 {
		t.Errorf("stderr: %s", &stderr)
	}
	text := stdout.String()
	for _, g := range shown.GPUs {
		text = strings.ReplaceAll(text, g.UUID, fmt.Sprintf("@%d", g.Slot))
		for _, d := range g.MIGDevices {
			text = strings.ReplaceAll(text, d.UUID, "MIG-x")
		}
	}
	return text, code
}

func TestSMI(t *testing.T) {
	const usage = "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n"
	policies := func(values ...string) string {
		text := "+-------------------------------------+\n| GPU compute policies:               |\n" +
			"| GPU    Name              Value      |\n|=====================================|\n"
		for i := 0; i < len(values); i += 2 {
			text += "|   " + values[i] + "    Timeslice         " + (values[i+1] + "          ")[:10] +
				" |\n+-------------------------------------+\n"
		}
		return text
	}
	for name, test := range map[string]struct {
		faults []sim.Fault
		args   string
		code   int
		want   string
	}{
		"no arguments":       {nil, "", 2, usage},
		"unknown":            {nil, "--query", 2, usage},
		"two at once":        {nil, "-L --gpu-reset", 2, usage},
		"a slice that is no": {nil, "compute-policy --set-timeslice=4", 2, usage},
		"no value":           {nil, "compute-policy --set-timeslice", 2, usage},
		"a value too many":   {nil, "--gpu-reset=1", 2, usage},
		"misplaced":          {nil, "--set-timeslice=1", 2, usage},
		"list": {
			[]sim.Fault{{GPU: "1", Remove: true}}, "-L", 0,
			"GPU 0: Tesla T4 (UUID: @0)\nGPU 1: Tesla T4 (UUID: @2)\nGPU 2: Tesla T4 (UUID: @3)\n",
		},
		"time slice": {nil, "compute-policy -i @2 --set-timeslice=3", 0, "Timeslice set to Long for GPU 00000000:AF:00.0.\n"},
		"time slice, spaced": {nil, "compute-policy --id=1,0000:3b:00.0 --set-timeslice 1", 0,
			"Timeslice set to Short for GPU 00000000:3B:00.0.\nTimeslice set to Short for GPU 00000000:5E:00.0.\n"},
		"time slice, lost": {[]sim.Fault{{GPU: "0", Lost: true}}, "compute-policy -i 0 --set-timeslice=0", 15,
			"Unable to determine the device handle for GPU 00000000:3B:00.0: GPU is lost.  Reboot the system to " +
				"recover this GPU\n"},
		"policies":        {nil, "compute-policy --list", 0, policies("0", "Default", "1", "Default", "2", "Default", "3", "Default")},
		"policies of one": {nil, "compute-policy -l -i 3", 0, policies("3", "Default")},
		"no such GPU":     {nil, "--gpu-reset -i @0,@x", 6, "No devices were found\n"},
		"no such index":   {nil, "compute-policy -i 4 --list", 6, "No devices were found\n"},
		"reset": {nil, "--gpu-reset -i @3,@0", 0,
			"GPU 00000000:3B:00.0 was successfully reset.\nGPU 00000000:D8:00.0 was successfully reset.\n" +
				"All done.\n"},
		"reset, one in use": {
			[]sim.Fault{{GPU: "1", Busy: true}}, "--gpu-reset -i 0,1", 255,
			"The following GPUs could not be reset:\n  GPU 00000000:5E:00.0: In use by another client\n\n" +
				"1 device is currently being used by one or more other processes " +
				"(e.g., Fabric Manager, CUDA application, graphics application such as an X server, or a " +
				"monitoring application such as another instance of nvidia-smi). " +
				"Please first kill all processes using this device and all compute applications running in the system.\n",
		},
		"reset, lost": {
			[]sim.Fault{{GPU: "2", LostSilently: true}}, "-r", 255,
			"The following GPUs could not be reset:\n  GPU 00000000:AF:00.0: GPU is lost\n",
		},
		"no driver": {
			[]sim.Fault{{DriverGone: true}}, "-L", 9,
			"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the " +
				"latest NVIDIA driver is installed and running.\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := smiMachine(t, "t4x4")
			for _, fault := range test.faults {
				if err := m.Inject(fault); err != nil {
					t.Fatal(err)
				}
			}
			got, code := runSMI(t, m, strings.Fields(test.args)...)
			if diff := cmp.Diff(test.want, got); diff != "" || code != test.code {
				t.Errorf("exit code %d, want %d; output (-want +got):\n%s", code, test.code, diff)
			}
		})
	}
}

// TestSMIOnMIG checks that the list has MIG devices, that a reset applies the pending mode, and that a GPU in MIG mode
// has no time slice.
func TestSMIOnMIG(t *testing.T) {
	m := smiMachine(t, "a30x4")
	library := m.NVML()
	library.Init()
	d, _ := library.DeviceGetHandleByIndex(1)
	d.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	if _, code := runSMI(t, m, "--gpu-reset", "-i", "@1"); code != 0 {
		t.Errorf("reset: exit code %d", code)
	}
	info, _ := d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_2_SLICE_REV1)
	gi, _ := d.CreateGpuInstance(&info)
	compute, _ := gi.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
	gi.CreateComputeInstance(&compute)
	got, code := runSMI(t, m, "-L")
	want := "GPU 0: NVIDIA A30 (UUID: @0)\nGPU 1: NVIDIA A30 (UUID: @1)\n  MIG 2g.12gb+me  Device  0: (UUID: MIG-x)\n" +
		"GPU 2: NVIDIA A30 (UUID: @2)\nGPU 3: NVIDIA A30 (UUID: @3)\n"
	if diff := cmp.Diff(want, got); diff != "" || code != 0 {
		t.Errorf("list: exit code %d (-want +got):\n%s", code, diff)
	}
	got, code = runSMI(t, m, "compute-policy", "-i", "1", "--set-timeslice=2")
	if code != 3 || got != "Unable to set timeslice for GPU 00000000:65:00.0: Not Supported\n" {
		t.Errorf("time slice: exit code %d, %s", code, got)
	}
}

func TestSMIWithoutMachine(t *testing.T) {
	var stdout, stderr bytes.Buffer
	code := tools.SMI(t.TempDir(), []string{"-L"}, os.Stdin, &stdout, &stderr)
	if code != 255 || !strings.Contains(stderr.String(), "berth sim create") {
		t.Errorf("exit code %d, %s", code, &stderr)
	}
}

// FuzzSMI checks that no arguments cause a panic, or change the machine without exit code 0.
func FuzzSMI(f *testing.F) {
	for _, seed := range []string{"-L", "compute-policy -i 0 --set-timeslice=1", "--gpu-reset -i 0,1",
		"compute-policy --list", "-i", "=", "--id= -r"} {
		f.Add(seed)
	}
	m := smiMachine(f, "t4x4")
	f.Fuzz(func(t *testing.T, line string) {
		before, err := m.Show()
		if err != nil {
			t.Fatal(err)
		}
		var output bytes.Buffer
		code := tools.SMI(m.Root(), strings.Fields(line), strings.NewReader(""), &output, &output)
		after, err := m.Show()
		if err != nil {
			t.Fatal(err)
		}
		if code != 0 && before.Events != after.Events || output.Len() == 0 {
			t.Errorf("%q: exit code %d, %d events, then %d; output %q", line, code, before.Events, after.Events, &output)
		}
	})
}
