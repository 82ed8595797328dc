package validate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// fakeFiles are the files of a container, by name; the value of a device node is the error of opening it.
type fakeFiles struct {
	texts map[string]string
	nodes map[string]error
	// other is the error of opening a device node that the container made; cannotMake is that of making one.
	other      error
	cannotMake error
}

func (f *fakeFiles) Names(folder string) ([]string, error) {
	names := map[string]bool{}
	for name := range f.nodes {
		if path.Dir(name) == folder {
			names[path.Base(name)] = true
		}
	}
	for name := range f.texts {
		if rest, ok := strings.CutPrefix(name, folder+"/"); ok {
			first, _, _ := strings.Cut(rest, "/")
			names[first] = true
		}
	}
	var list []string
	for name := range names {
		list = append(list, name)
	}
	return list, nil
}

func (f *fakeFiles) Read(name string) (string, error) {
	if text, ok := f.texts[name]; ok {
		return text, nil
	}
	return "", &fs.PathError{Op: "open", Path: name, Err: syscall.ENOENT}
}

func (f *fakeFiles) Open(name string) error {
	err, ok := f.nodes[name]
	if !ok {
		err = syscall.ENOENT
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return nil
}

func (f *fakeFiles) OpenOther(string, int) (made bool, err error) {
	return f.cannotMake == nil, errors.Join(f.cannotMake, f.other)
}

func (f *fakeFiles) Target(name string) (string, error) { return f.texts["link "+name], nil }

// result is an error with a CUresult.
type result int

func (r result) Error() string { return fmt.Sprintf("returned %d", int(r)) }
func (r result) Result() int   { return int(r) }

// fakeLibrary is a libcuda. hangs is the call that does not return until the test ends.
type fakeLibrary struct {
	init  error
	add   error
	count int
	mig   bool
	hangs string
	// the device with a wrong sum, that fails; -1 for none
	wrong  int
	broken int
	end    chan struct{}
}

func (f *fakeLibrary) call(name string) {
	if f.hangs == name {
		<-f.end
	}
}

func (f *fakeLibrary) File() string        { return "/usr/lib/libcuda.so.1" }
func (f *fakeLibrary) Calling() string     { return f.hangs }
func (f *fakeLibrary) Init() error         { f.call("cuInit"); return f.init }
func (f *fakeLibrary) Count() (int, error) { f.call("cuDeviceGetCount"); return f.count, nil }
func (f *fakeLibrary) Device(i int) (uuid, name string, err error) {
	if f.mig {
		return fmt.Sprintf("MIG-%d", i), "A100 MIG 1g.5gb", nil
	}
	return fmt.Sprintf("GPU-%d", 9-i), "H100", nil // not in the order of the UUIDs
}

func (f *fakeLibrary) Add(i int, a, b []uint32) ([]uint32, error) {
	f.call("cuCtxSynchronize")
	if i == f.broken {
		return nil, f.add
	}
	sum := make([]uint32, len(a))
	for k := range a {
		sum[k] = a[k] + b[k]
	}
	if i == f.wrong {
		sum[77]++
	}
	return sum, nil
}

// world is a container with two of a node's four GPUs; the tests break it.
type world struct {
	files   *fakeFiles
	library *fakeLibrary
	load    error
	deps    Deps
	options Options
}

func newWorld() *world {
	files := &fakeFiles{
		texts: map[string]string{
			"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (buildd)\nGCC version: 13.2.0\n",
			"link /usr/lib/libcuda.so.1":  "/usr/lib/libcuda.so.580.95.05",
		},
		nodes: map[string]error{"/dev/nvidiactl": nil, "/dev/nvidia-uvm": nil, "/dev/nvidia1": nil, "/dev/nvidia3": nil, "/dev/null": nil},
		other: syscall.EPERM,
	}
	for minor := range 4 {
		files.texts[fmt.Sprintf("/proc/driver/nvidia/gpus/0000:0%d:00.0/information", minor)] = fmt.Sprintf("Model: \t\t H100\nDevice Minor: \t %d\n", minor)
	}
	w := &world{files: files, library: &fakeLibrary{count: 2, wrong: -1, broken: -1, end: make(chan struct{})}}
	w.deps = Deps{Files: files, Load: func() (Library, error) { return w.library, w.load }}
	w.options = Options{Expect: 2, Resource: "nvidia.com/gpu", Timeout: 30 * time.Second}
	return w
}

// setMIG gives the container two MIG devices of one GPU instead.
func (w *world) setMIG() {
	delete(w.files.nodes, "/dev/nvidia3")
	for _, minor := range []int{3, 4, 12, 13} {
		w.files.nodes[fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor)] = nil
	}
	w.files.texts[migMinorsFile] = "config 1\nmonitor 2\ngpu1/gi0/access 3\ngpu1/gi0/ci0/access 4\ngpu1/gi1/access 12\ngpu1/gi1/ci0/access 13\ngpu2/gi0/ci0/access 100\n"
	w.library.mig, w.library.count = true, 1
}

// TestRun checks which code and which evidence each defect has, and that the steps after it are not taken.
func TestRun(t *testing.T) {
	tests := map[string]struct {
		defect   func(*world)
		code     string
		step     string
		evidence string
		took     time.Duration
	}{
		"passes":                     {func(*world) {}, "", "", "", 0},
		"MIG devices":                {(*world).setMIG, "", "", "", 0},
		"no other GPU":               {func(w *world) { delete(w.files.texts, "/proc/driver/nvidia/gpus"); w.files.other = nil; w.onlyOwn() }, "", "", "", 0},
		"may not make nodes":         {func(w *world) { w.files.cannotMake = syscall.EPERM; w.files.other = nil }, "", "", "", 0},
		"no driver behind the nodes": {func(w *world) { w.setNodes(syscall.ENXIO) }, "", "", "", 0},
		"library without ver":        {func(w *world) { w.files.texts["link /usr/lib/libcuda.so.1"] = "/usr/lib/libcuda.so.1" }, "", "", "", 0},

		"no device nodes":   {func(w *world) { w.files.nodes = nil }, codeNodes, "device nodes", "2 devices were requested, and /dev has the device nodes of 0: none", 0},
		"fewer":             {func(w *world) { w.options.Expect = 3 }, codeNodes, "device nodes", "3 devices were requested, and /dev has the device nodes of 2: /dev/nvidia1, /dev/nvidia3", 0},
		"fewer MIG devices": {func(w *world) { w.setMIG(); w.options.Expect = 3 }, codeNodes, "device nodes", "the device nodes of 2: /dev/nvidia-caps/nvidia-cap4, /dev/nvidia-caps/nvidia-cap13", 0},
		"no mig-minors":     {func(w *world) { w.setMIG(); delete(w.files.texts, migMinorsFile) }, codeNodes, "device nodes", "/dev/nvidia-caps has device nodes", 0},
		"refused":           {func(w *world) { w.setNodes(syscall.EPERM) }, codeNodes, "device nodes", "open /dev/nvidiactl: operation not permitted; open /dev/nvidia-uvm: operation", 0},
		"no control node":   {func(w *world) { delete(w.files.nodes, "/dev/nvidiactl") }, codeNodes, "device nodes", "open /dev/nvidiactl: no such file or directory", 0},

		"one more":           {func(w *world) { w.files.nodes["/dev/nvidia0"] = nil }, codeForeign, "foreign devices", "2 devices were requested, and /dev has the device nodes of 3: /dev/nvidia0, ", 0},
		"others can be used": {func(w *world) { w.files.other = nil }, codeForeign, "foreign devices", "/dev/nvidia0, /dev/nvidia2 of a GPU that was not requested can be opened", 0},
		"others are allowed": {func(w *world) { w.files.other = syscall.ENXIO }, codeForeign, "foreign devices", "can be opened", 0},

		"no library": {func(w *world) { w.load = errors.New("load libcuda.so.1: no such file") }, codeLibrary, "library", "load libcuda.so.1: no such file", 0},

		"no kernel module here": {func(w *world) { delete(w.files.texts, versionFile) }, "", "", "", 0},
		"other text":            {func(w *world) { w.files.texts[versionFile] = "hello\n" }, codeVersion, "version", `/proc/driver/nvidia/version has no version: "hello"`, 0},
		"other version": {func(w *world) { w.files.texts["link /usr/lib/libcuda.so.1"] = "/usr/lib/libcuda.so.570.1" }, codeVersion, "version",
			"the kernel module is of version 580.95.05 (/proc/driver/nvidia/version), the library of version 570.1 (/usr/lib/libcuda.so.570.1)", 0},
		"other version, by the driver": {func(w *world) { w.library.init = result(803) }, codeVersion, "cuInit", "different versions: returned 803", 0},

		"cuInit":       {func(w *world) { w.library.init = result(999) }, codeInit, "cuInit", "returned 999", 0},
		"cuInit hangs": {func(w *world) { w.library.hangs = "cuInit" }, codeInit, "cuInit", "cuInit has not returned after 20s", initLimit},
		"deadline": {func(w *world) { w.library.hangs, w.options.Timeout = "cuInit", 3*time.Second }, codeInit, "cuInit",
			"cuInit has not returned after 3s", 3 * time.Second},

		"fewer in CUDA": {func(w *world) { w.library.count = 1 }, codeCount, "device count", "2 devices were requested, and CUDA shows 1", 0},
		"more in CUDA":  {func(w *world) { w.library.count = 3 }, codeCount, "device count", "CUDA shows 3", 0},

		"one fails": {func(w *world) { w.library.broken, w.library.add = 1, result(46) }, codeCompute, "compute", "1 of 2 failed: device 1 (GPU-8, H100): returned 46", 0},
		"one is wrong": {func(w *world) { w.library.wrong = 0 }, codeCompute, "compute",
			"1 of 2 failed: device 0 (GPU-9, H100): 1 of 1048593 sums are wrong, the first at 77: 77+", 0},
		"one hangs": {func(w *world) { w.library.hangs = "cuCtxSynchronize" }, codeCompute, "compute",
			"cuCtxSynchronize of device 0 (GPU-9, H100) has not returned after 20s", computeLimit},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				tc.defect(w)
				started := time.Now()
				got := Run(t.Context(), w.deps, w.options)
				close(w.library.end)
				if got.Code != tc.code || got.Step != tc.step || !strings.Contains(got.Evidence, tc.evidence) || got.Passed != (tc.code == "") {
					t.Errorf("got %s, step %q: %s\nwant %s, step %q: %s", got.Code, got.Step, got.Evidence, tc.code, tc.step, tc.evidence)
				}
				if took := time.Since(started); took != tc.took {
					t.Errorf("it took %s, want %s", took, tc.took)
				}
				checkSteps(t, got)
				if (Error(got) == nil) != got.Passed {
					t.Errorf("Error() = %v", Error(got))
				}
			})
		})
	}
}

// checkSteps checks that the steps before the one that failed passed, and that none was taken after it.
func checkSteps(t *testing.T, got *v1alpha1.ValidationResult) {
	t.Helper()
	want := v1alpha1.ValidationPassed
	for _, step := range got.Steps {
		if step.Name == got.Step {
			want = v1alpha1.ValidationFailed
		}
		if step.Outcome != want {
			t.Errorf("step %s: %s, want %s", step.Name, step.Outcome, want)
		}
		if want == v1alpha1.ValidationFailed {
			want = v1alpha1.ValidationNotRun
		}
	}
	if len(got.Steps) != len(steps()) {
		t.Errorf("%d steps, want %d", len(got.Steps), len(steps()))
	}
}

func (w *world) setNodes(err error) {
	for name := range w.files.nodes {
		w.files.nodes[name] = err
	}
}

// onlyOwn removes the node's other GPUs.
func (w *world) onlyOwn() {
	for _, minor := range []int{0, 2} {
		delete(w.files.texts, fmt.Sprintf("/proc/driver/nvidia/gpus/0000:0%d:00.0/information", minor))
	}
}

// TestResult checks what a result has when all steps passed.
func TestResult(t *testing.T) {
	w := newWorld()
	got := Run(t.Context(), w.deps, w.options)
	if got.APIVersion != "validation.berth.dev/v1" || got.Kind != "ValidationResult" || got.Resource != "nvidia.com/gpu" || got.Expect != 2 ||
		got.DriverVersion != "580.95.05" || !slices.Equal(got.Devices, []string{"GPU-8", "GPU-9"}) {
		t.Errorf("result %+v", got)
	}
	if at := slices.IndexFunc(got.Steps, func(s v1alpha1.ValidationStep) bool { return s.Name == "foreign devices" }); got.Steps[at].Evidence != "2 other GPUs of the node are refused" {
		t.Errorf("step %+v", got.Steps[at])
	}
	w.setMIG()
	got = Run(t.Context(), w.deps, w.options)
	if at := slices.IndexFunc(got.Steps, func(s v1alpha1.ValidationStep) bool { return s.Name == "device count" }); got.Steps[at].Evidence != "1 of 2 MIG devices, since CUDA shows a process one" {
		t.Errorf("step %+v", got.Steps[at])
	}
}

// TestMessage checks that a message fits, and what it leaves out first.
func TestMessage(t *testing.T) {
	long := strings.Repeat("é", 4000)
	devices := make([]string, 200)
	for i := range devices {
		devices[i] = fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i)
	}
	tests := map[string]struct {
		result       v1alpha1.ValidationResult
		devices      bool // some are left out
		stepEvidence string
	}{
		"short":         {v1alpha1.ValidationResult{Evidence: "e", Devices: devices[:8], Steps: []v1alpha1.ValidationStep{{Evidence: "s"}}}, false, "s"},
		"long evidence": {v1alpha1.ValidationResult{Evidence: long, Devices: devices[:8], Steps: []v1alpha1.ValidationStep{{Evidence: "s"}}}, false, ""},
		"long steps":    {v1alpha1.ValidationResult{Evidence: "e", Steps: []v1alpha1.ValidationStep{{Evidence: long}}}, false, ""},
		"many devices":  {v1alpha1.ValidationResult{Evidence: long, Devices: devices, Steps: []v1alpha1.ValidationStep{{Evidence: long}}}, true, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			text, err := Message(&tc.result, v1alpha1.MaxValidationResult)
			if err != nil || len(text) > v1alpha1.MaxValidationResult {
				t.Fatalf("%d bytes, %v", len(text), err)
			}
			var back v1alpha1.ValidationResult
			if err := json.Unmarshal(text, &back); err != nil {
				t.Fatal(err)
			}
			if back.DevicesLeftOut+len(back.Devices) != len(tc.result.Devices) || (back.DevicesLeftOut > 0) != tc.devices || back.Steps[0].Evidence != tc.stepEvidence {
				t.Errorf("%d devices and %d left out of %d, evidence of the step %q", len(back.Devices), back.DevicesLeftOut, len(tc.result.Devices), back.Steps[0].Evidence)
			}
			if strings.ContainsRune(back.Evidence, '\uFFFD') {
				t.Errorf("the evidence ends within a character: %q", back.Evidence)
			}
		})
	}
}
