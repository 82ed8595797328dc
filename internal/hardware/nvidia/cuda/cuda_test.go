package cuda

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/hardware/sim/simtest"
)

// newMachine creates a simulated machine with a libcuda.so.1.
func newMachine(t *testing.T, profile string) *sim.Machine {
	t.Helper()
	machine, err := simtest.CreateComputing(t.TempDir(), profile)
	if err != nil {
		t.Fatal(err)
	}
	return machine
}

// open loads the library of a machine.
func open(t *testing.T, machine *sim.Machine) *Library {
	t.Helper()
	return openAs(t, machine, LibraryName)
}

// openAs loads it by one of its names: the dynamic loader does not open a file again that it knows by its name.
func openAs(t *testing.T, machine *sim.Machine, name string) *Library {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(machine.Root(), "usr/lib/*", name))
	if err != nil || len(found) != 1 {
		t.Fatalf("libraries %q, %v", found, err)
	}
	library, err := Open(found[0])
	if err != nil {
		t.Fatal(err)
	}
	if library.File() != found[0] {
		t.Errorf("File() = %s, want %s", library.File(), found[0])
	}
	return library
}

// vectors returns two vectors and their sum.
func vectors(n int) (a, b, sum []uint32) {
	for i := range uint32(n) {
		a, b, sum = append(a, i), append(b, 7*i+3), append(sum, 8*i+3)
	}
	return a, b, sum
}

// TestEveryDeviceAdds checks that each device has the UUID of the machine's GPU and adds two vectors.
func TestEveryDeviceAdds(t *testing.T) {
	machine := newMachine(t, "h100x8")
	library := open(t, machine)
	if err := library.Init(); err != nil {
		t.Fatal(err)
	}
	version, err := library.Version()
	if err != nil || version != 13000 {
		t.Errorf("Version() = %d, %v; want 13000", version, err)
	}
	count, err := library.Count()
	if err != nil || count != 8 {
		t.Fatalf("Count() = %d, %v; want 8", count, err)
	}
	shown, err := machine.Show()
	if err != nil {
		t.Fatal(err)
	}
	a, b, want := vectors(1000)
	for i := range count {
		uuid, name, err := library.Device(i)
		if err != nil || uuid != shown.GPUs[i].UUID || name != shown.GPUs[i].Product {
			t.Errorf("Device(%d) = %s, %s, %v; want %s, %s", i, uuid, name, err, shown.GPUs[i].UUID, shown.GPUs[i].Product)
		}
		sum, err := library.Add(i, a, b)
		if err != nil || !slices.Equal(sum, want) {
			t.Errorf("Add(%d) = %v..., %v", i, sum[:min(len(sum), 4)], err)
		}
	}
	if _, err := library.Add(8, a, b); err == nil || !strings.Contains(err.Error(), "cuDeviceGet returned 101 (CUDA_ERROR_INVALID_DEVICE)") {
		t.Errorf("Add(8): %v", err)
	}
	if _, err := library.Add(0, a, b[1:]); err == nil {
		t.Error("vectors of two lengths were added")
	}
}

// TestVisibleDevices checks that devices are those whose nodes exist, and that a process sees one MIG device.
func TestVisibleDevices(t *testing.T) {
	tests := map[string]struct {
		remove []string
		want   []int // slots
	}{
		"all but one": {[]string{"nvidia3"}, []int{0, 1, 2, 4, 5, 6, 7}},
		"one":         {[]string{"nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidia4", "nvidia5", "nvidia6"}, []int{7}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			machine := newMachine(t, "h100x8")
			for _, node := range tc.remove {
				if err := os.Remove(filepath.Join(machine.Root(), "dev", node)); err != nil {
					t.Fatal(err)
				}
			}
			library := open(t, machine)
			if err := library.Init(); err != nil {
				t.Fatal(err)
			}
			shown, err := machine.Show()
			if err != nil {
				t.Fatal(err)
			}
			var got, want []string
			count, err := library.Count()
			if err != nil {
				t.Fatal(err)
			}
			for i := range count {
				uuid, _, err := library.Device(i)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, uuid)
			}
			for _, slot := range tc.want {
				want = append(want, shown.GPUs[slot].UUID)
			}
			if !slices.Equal(got, want) {
				t.Errorf("devices %q, want %q", got, want)
			}
		})
	}
}

// TestFaults checks that each fault is an error that names the call and the result, on the GPUs that it concerns.
func TestFaults(t *testing.T) {
	tests := map[string]struct {
		fault sim.Fault
		want  string // the first error; "" when only the sum is wrong
	}{
		"init":           {sim.Fault{CUDA: "cuInit=999"}, "cuInit returned 999 (CUDA_ERROR_UNKNOWN)"},
		"without a name": {sim.Fault{CUDA: "cuInit=12345"}, "cuInit returned 12345"},
		"kernel module":  {sim.Fault{CUDA: "major=570"}, "cuInit returned 803 (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)"},
		"count":          {sim.Fault{CUDA: "count=-1"}, "7 devices"},
		"more":           {sim.Fault{CUDA: "count=1"}, "9 devices"},
		"launch":         {sim.Fault{CUDA: "cuLaunchKernel=719"}, "cuLaunchKernel returned 719 (CUDA_ERROR_LAUNCH_FAILED)"},
		"free":           {sim.Fault{CUDA: "cuMemFree_v2=1"}, "cuMemFree_v2 returned 1 (CUDA_ERROR_INVALID_VALUE)"},
		"wrong":          {sim.Fault{CUDA: "wrong"}, "device 0: wrong sum"},
		"one GPU":        {sim.Fault{GPU: "3", CUDA: "cuMemAlloc_v2=2"}, "device 3: cuMemAlloc_v2 returned 2 (CUDA_ERROR_OUT_OF_MEMORY)"},
		"one GPU, wrong": {sim.Fault{GPU: "7", CUDA: "wrong"}, "device 7: wrong sum"},
		"lost GPU":       {sim.Fault{GPU: "2", Lost: true}, "device 2: cuCtxCreate_v2 returned 999 (CUDA_ERROR_UNKNOWN)"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			machine := newMachine(t, "h100x8")
			if err := machine.Inject(tc.fault); err != nil {
				t.Fatal(err)
			}
			if got := firstError(open(t, machine)); !strings.HasSuffix(got, tc.want) || got == "" {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if err := machine.Clear(sim.ClearAll); err != nil {
				t.Fatal(err)
			}
			if got := firstError(openAs(t, machine, "libcuda.so.*.*")); got != "" {
				t.Errorf("after the repair: %s", got)
			}
		})
	}
}

// firstError uses each device, and says what failed first.
func firstError(library *Library) string {
	if err := library.Init(); err != nil {
		return err.Error()
	}
	count, err := library.Count()
	if err != nil {
		return err.Error()
	}
	if count != 8 {
		return string(rune('0'+count)) + " devices"
	}
	a, b, want := vectors(10)
	for i := range count {
		sum, err := library.Add(i, a, b)
		if err != nil {
			return "device " + string(rune('0'+i)) + ": " + err.Error()
		}
		if !slices.Equal(sum, want) {
			return "device " + string(rune('0'+i)) + ": wrong sum"
		}
	}
	return ""
}

// TestHangIsNamed checks that a call that hangs is known by its name.
func TestHangIsNamed(t *testing.T) {
	machine := newMachine(t, "h100x8")
	if err := machine.Inject(sim.Fault{CUDA: "hang=cuCtxSynchronize"}); err != nil {
		t.Fatal(err)
	}
	library := open(t, machine)
	if err := library.Init(); err != nil {
		t.Fatal(err)
	}
	a, b, _ := vectors(1)
	go func() { _, _ = library.Add(0, a, b) }() // it never returns
	for range 1000 {
		if library.Calling() == "cuCtxSynchronize" {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("Calling() = %q, want cuCtxSynchronize", library.Calling())
}

// TestOpen checks the errors of files that are no libcuda.
func TestOpen(t *testing.T) {
	text := filepath.Join(t.TempDir(), LibraryName)
	if err := os.WriteFile(text, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct{ file, want string }{
		"missing":       {"/nowhere/libcuda.so.1", "No such file"},
		"a text":        {text, "file too short"},
		"other library": {"libc.so.6", "it has no function cuInit"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := Open(tc.file); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.file) {
				t.Errorf("Open(%s): %v, want %q", tc.file, err, tc.want)
			}
		})
	}
}

// TestFormatUUID checks the two kinds of devices.
func TestFormatUUID(t *testing.T) {
	number := []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255}
	tests := map[string]string{
		"NVIDIA A100-SXM4-40GB":             "GPU-00010203-0405-0607-0809-0a0b0c0d0eff",
		"NVIDIA A100-SXM4-40GB MIG 1g.5gb":  "MIG-00010203-0405-0607-0809-0a0b0c0d0eff",
		"NVIDIA H100 80GB HBM3 MIG 1g.10gb": "MIG-00010203-0405-0607-0809-0a0b0c0d0eff",
	}
	for name, want := range tests {
		if got := formatUUID(number, name); got != want {
			t.Errorf("formatUUID(%s) = %s, want %s", name, got, want)
		}
	}
}

// TestResult checks that the number of a result can be found in an error.
func TestResult(t *testing.T) {
	var with interface{ Result() int }
	if err := error(&Error{Call: "cuInit", Number: 803}); !errors.As(err, &with) || with.Result() != 803 {
		t.Errorf("no result in %v", err)
	}
}
