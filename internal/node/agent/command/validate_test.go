package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/hardware/sim/simtest"
)

// newMachine creates a simulated machine with 8 GPUs and a libcuda.so.1.
func newMachine(t *testing.T) *sim.Machine {
	t.Helper()
	machine, err := simtest.CreateComputing(t.TempDir(), "h100x8")
	if err != nil {
		t.Fatal(err)
	}
	return machine
}

// runValidate runs the command on a machine, and returns its result from the output and from the file.
func runValidate(t *testing.T, machine *sim.Machine, args ...string) (printed, written v1alpha1.ValidationResult, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "result")
	var out bytes.Buffer
	cmd := newValidateCommand(machine.Dir)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetOut(&out)
	cmd.SetArgs(append(args, "-o", "json", "--result", file))
	err = cmd.ExecuteContext(t.Context())
	text, readError := os.ReadFile(file)
	if readError := errors.Join(readError, json.Unmarshal(out.Bytes(), &printed), json.Unmarshal(text, &written)); readError != nil {
		t.Fatalf("%v, after %v\n%s", readError, err, out.Bytes())
	}
	return printed, written, err
}

// TestDefects injects each defect that a simulated machine can have, and checks its code, in the output, the file and the error; after
// the repair all steps pass.
func TestDefects(t *testing.T) {
	remove := func(names ...string) func(*testing.T, *sim.Machine) {
		return func(t *testing.T, machine *sim.Machine) {
			for _, name := range names {
				if err := os.Remove(filepath.Join(machine.Root(), "dev", name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	inject := func(fault sim.Fault) func(*testing.T, *sim.Machine) {
		return func(t *testing.T, machine *sim.Machine) {
			if err := machine.Inject(fault); err != nil {
				t.Fatal(err)
			}
		}
	}
	tests := map[string]struct {
		defect   func(*testing.T, *sim.Machine)
		code     string
		evidence string
	}{
		"none":                {func(*testing.T, *sim.Machine) {}, "", ""},
		"a node is missing":   {remove("nvidia5"), "VALIDATE_NODES", "8 devices were requested, and /dev has the device nodes of 7"},
		"no control node":     {remove("nvidiactl"), "VALIDATE_NODES", "open /dev/nvidiactl: no such file"},
		"no library":          {inject(sim.Fault{CUDA: "missing"}), "VALIDATE_LIBRARY", "libcuda.so.1 is in none of the usual folders below "},
		"other module":        {inject(sim.Fault{CUDA: "major=570"}), "VALIDATE_VERSION", "the kernel module is of version 570.95.05"},
		"cuInit fails":        {inject(sim.Fault{CUDA: "cuInit=999"}), "VALIDATE_CUDA_INIT", "cuInit returned 999 (CUDA_ERROR_UNKNOWN)"},
		"cuInit hangs":        {inject(sim.Fault{CUDA: "hang=cuInit"}), "VALIDATE_CUDA_INIT", "cuInit has not returned after "},
		"one device fewer":    {inject(sim.Fault{CUDA: "count=-1"}), "VALIDATE_COUNT", "8 devices were requested, and CUDA shows 7"},
		"one dead GPU":        {inject(sim.Fault{GPU: "6", Lost: true}), "VALIDATE_COMPUTE", "1 of 8 failed: device 6 (GPU-"},
		"a wrong sum":         {inject(sim.Fault{GPU: "2", CUDA: "wrong"}), "VALIDATE_COMPUTE", "1 of 1048593 sums are wrong, the first at 524296"},
		"a GPU that hangs":    {inject(sim.Fault{GPU: "1", CUDA: "hang=cuCtxSynchronize"}), "VALIDATE_COMPUTE", "cuCtxSynchronize of device 1 (GPU-"},
		"no driver":           {inject(sim.Fault{DriverGone: true}), "VALIDATE_LIBRARY", "in none of the usual folders"},
		"a launch that fails": {inject(sim.Fault{CUDA: "cuLaunchKernel=719"}), "VALIDATE_COMPUTE", "8 of 8 failed: device 0 "},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			machine := newMachine(t)
			tc.defect(t, machine)
			printed, written, err := runValidate(t, machine, "--expect", "8", "--resource", "nvidia.com/gpu", "--timeout", "5s")
			if tc.code == "" {
				checkPassed(t, machine, &printed, err)
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.code) || printed.Passed || printed.Code != tc.code || !strings.Contains(printed.Evidence, tc.evidence) {
				t.Errorf("got %v: %+v\nwant %s: %s", err, printed, tc.code, tc.evidence)
			}
			if written.Code != printed.Code || written.Evidence != printed.Evidence {
				t.Errorf("the file has %+v\nwant %+v", written, printed)
			}
		})
	}
}

func checkPassed(t *testing.T, machine *sim.Machine, got *v1alpha1.ValidationResult, err error) {
	t.Helper()
	shown, showError := machine.Show()
	if showError != nil {
		t.Fatal(showError)
	}
	var want []string
	for _, gpu := range shown.GPUs {
		want = append(want, gpu.UUID)
	}
	slices.Sort(want)
	if err != nil || !got.Passed || !slices.Equal(got.Devices, want) || got.DriverVersion != shown.Driver || got.Resource != "nvidia.com/gpu" {
		t.Errorf("got %v: %+v\nwant the devices %q", err, got, want)
	}
}

// TestMIGDevices checks a container that has two MIG devices of one GPU: CUDA shows one of them.
func TestMIGDevices(t *testing.T) {
	machine := newMachine(t)
	nvmlOf := machine.NVML()
	if ret := nvmlOf.Init(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	gpu, _ := nvmlOf.DeviceGetHandleByIndex(0)
	if _, ret := gpu.SetMigMode(nvml.DEVICE_MIG_ENABLE); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	for range 2 {
		profile, _ := gpu.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_1_SLICE)
		instance, ret := gpu.CreateGpuInstance(&profile)
		if ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
		compute, _ := instance.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if _, ret := instance.CreateComputeInstance(&compute); ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
	}
	for i := 1; i < 8; i++ {
		if err := os.Remove(filepath.Join(machine.Root(), "dev", fmt.Sprintf("nvidia%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	capabilities, err := filepath.Glob(filepath.Join(machine.Root(), "proc/driver/nvidia/capabilities/gpu0/mig/gi*/ci*/access"))
	if err != nil || len(capabilities) != 2 {
		t.Fatalf("capabilities %q, %v", capabilities, err)
	}
	caps := filepath.Join(machine.Root(), "dev/nvidia-caps")
	if err := os.MkdirAll(caps, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, file := range capabilities {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "DeviceFileMinor: ")
		minor, _, _ := strings.Cut(rest, "\n")
		if err := os.WriteFile(filepath.Join(caps, "nvidia-cap"+minor), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	shown, err := machine.Show()
	if err != nil {
		t.Fatal(err)
	}
	printed, _, err := runValidate(t, machine, "--expect", "2")
	if err != nil || len(printed.Devices) != 1 || printed.Devices[0] != shown.GPUs[0].MIGDevices[0].UUID {
		t.Errorf("got %v: %+v\nwant the MIG device %s", err, printed, shown.GPUs[0].MIGDevices[0].UUID)
	}
	if printed, _, err = runValidate(t, machine, "--expect", "3"); err == nil || printed.Code != "VALIDATE_NODES" {
		t.Errorf("got %v: %+v\nwant VALIDATE_NODES", err, printed)
	}
}

// TestMistakes checks what is said of wrong flags, before anything is checked.
func TestMistakes(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"no number":     {nil, "--expect 0: want the number of GPUs"},
		"no time":       {[]string{"--expect", "1", "--timeout", "0s"}, "want a positive duration"},
		"other format":  {[]string{"--expect", "1", "-o", "yaml"}, `output format "yaml" does not exist`},
		"no such place": {[]string{"--expect", "1", "--result", "/nowhere/result", "--proc-root", "/nowhere"}, "write result: open /nowhere/result"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			cmd := newValidateCommand(func() string { return "" })
			cmd.SilenceUsage, cmd.SilenceErrors = true, true
			cmd.SetOut(&bytes.Buffer{})
			cmd.SetArgs(tc.args)
			if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// TestValidateTable checks the output for people.
func TestValidateTable(t *testing.T) {
	result := &v1alpha1.ValidationResult{Code: "VALIDATE_NODES", Evidence: "why", Steps: []v1alpha1.ValidationStep{
		{Name: "one", Outcome: v1alpha1.ValidationPassed, Milliseconds: 3, Evidence: "how"},
		{Name: "two", Outcome: v1alpha1.ValidationFailed, Milliseconds: 12}, {Name: "three", Outcome: v1alpha1.ValidationNotRun},
	}}
	var out bytes.Buffer
	if err := (&validateFlags{format: "table"}).print(&out, result); err != nil {
		t.Fatal(err)
	}
	const want = "STEP   OUTCOME  MS  EVIDENCE\none    passed   3   how\ntwo    failed   12  VALIDATE_NODES: why\nthree  notRun   0   \n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
