package sim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// TestCUDAFaults checks which faults of libcuda exist, of a machine and of a GPU.
func TestCUDAFaults(t *testing.T) {
	const machine, gpu = "want CALL=RESULT such as cuInit=999, count=-1, major=N, wrong, hang=CALL, missing", "for one GPU"
	tests := map[string]struct {
		fault string
		// parts of the error; "" for none
		ofMachine string
		gpu       string
	}{
		"nothing":        {"", "", ""},
		"result":         {"cuInit=999", "", gpu},
		"of a device":    {"cuCtxCreate_v2=46", "", ""},
		"success":        {"cuInit=0", machine, gpu},
		"no result":      {"cuInit", machine, gpu},
		"hang":           {"hang=cuLaunchKernel", "", ""},
		"hang, nothing":  {"hang=", machine, gpu},
		"hang, misspelt": {"hang=cuLaunchKernal", `did you mean "cuLaunchKernel"`, `did you mean "cuLaunchKernel"`},
		"misspelt":       {"cuinit=1", `did you mean "cuInit"`, gpu},
		"wrong":          {"wrong", "", ""},
		"wrong, more":    {"wrong=1", machine, gpu},
		"fewer":          {"count=-1", "", gpu},
		"more":           {"count=2", "", gpu},
		"none":           {"count=0", machine, gpu},
		"major":          {"major=570", "", gpu},
		"no major":       {"major=new", machine, gpu},
		"missing":        {"missing", "", gpu},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for device, want := range map[bool]string{false: tc.ofMachine, true: tc.gpu} {
				err := checkCUDA(tc.fault, device)
				if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("of a GPU: %v: got %v, want %q", device, err, want)
				}
			}
		})
	}
}

// TestCUDALibrary checks what the library's file says of the machine, with and without MIG, and that it comes and goes with the faults.
func TestCUDALibrary(t *testing.T) {
	stub := filepath.Join(t.TempDir(), "library")
	if err := os.WriteFile(stub, []byte("code"), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := CreateWith(temporary(t), "h100x8", Options{Seed: "test", NoDeviceNodes: true, Files: Files{Library: stub, Programs: stub, CUDA: stub}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(m.Root(), libraryFolder(), "libcuda.so.1")
	check := func(when string, want ...string) {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		content := string(text)
		for _, part := range append(want, "code\nlibrary\t580.95.05\t13000\n") {
			if !strings.Contains(content, part) {
				t.Errorf("%s: no %q in\n%s", when, part, content)
			}
		}
		at := strings.LastIndex(content, cudaEnd)
		if last := content[at:]; len(last) != len(cudaEnd)+10 || last[len(last)-1] != '\n' {
			t.Errorf("%s: the last line is %q", when, last)
		}
	}
	uuid := m.hw.GPUs[0].UUID
	check("at first", "module\t580.95.05\nfault\t\n", "gpu\t0\t-\t"+uuid+"\tNVIDIA H100 80GB HBM3\t\n")
	inject(t, m, Fault{CUDA: "major=570"})
	check("module", "module\t570.95.05\nfault\tmajor=570\n")
	if text, err := os.ReadFile(filepath.Join(m.Root(), "proc/driver/nvidia/version")); err != nil || !strings.Contains(string(text), "  570.95.05  ") {
		t.Errorf("the kernel module is %q, %v", text, err)
	}
	inject(t, m, Fault{GPU: "0", CUDA: "wrong"})
	check("GPU", "gpu\t0\t-\t"+uuid+"\tNVIDIA H100 80GB HBM3\twrong\n")
	inject(t, m, Fault{CUDA: "missing"})
	if _, err := os.Lstat(file); err == nil {
		t.Error("the library is still there")
	}
	clearAll(t, m)
	check("after the repair", "fault\t\n", "gpu\t0\t-\t"+uuid+"\tNVIDIA H100 80GB HBM3\t\n")

	d := gpu(t, open(t, m), 0)
	mig, _, _ := firstMIG(t, d)
	migUUID, ret := mig.GetUUID()
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	check("MIG", "\t"+migUUID+"\tNVIDIA H100 80GB HBM3 MIG ")
	if text, _ := os.ReadFile(file); strings.Contains(string(text), uuid) {
		t.Error("a GPU in MIG mode is a device of CUDA")
	}
}
