package smi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/hardware/sim/tools"
)

// TestMain lets the test binary replace nvidia-smi.
func TestMain(m *testing.M) {
	switch os.Getenv("STAND_IN") {
	case "":
		os.Exit(m.Run())
	case "sim":
		os.Exit(tools.SMI(os.Getenv("MACHINE"), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	case "print":
		fmt.Printf("args %q\nenv %q\n", os.Args[1:], os.Environ())
		os.Exit(7)
	case "flood":
		for i := range 100_000 {
			fmt.Printf("line %d of an output without an end\n", i)
		}
		fmt.Fprintln(os.Stderr, "the reason")
		os.Exit(1)
	case "hang":
		fmt.Println("about to hang")
		select {}
	case "leave a child": // which keeps the output open, and ends only with its process group
		child := exec.Command(os.Args[0])
		child.Env = []string{"STAND_IN=hang"}
		child.Stdout = os.Stdout
		if child.Start() != nil {
			os.Exit(1)
		}
		select {}
	}
}

const one, other = gpu.UUID("GPU-00000000-0000-0000-0000-000000000001"), gpu.UUID("GPU-00000000-0000-0000-0000-000000000002")

// replaced returns an SMI whose program is this test binary.
func replaced(t testing.TB, kind string, env ...string) *SMI {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return New(Deps{Program: []string{self}, Env: append(env, "STAND_IN="+kind)})
}

// simulated returns a machine with an SMI on it.
func simulated(t testing.TB, profile string) (*sim.Machine, *SMI) {
	t.Helper()
	m, err := sim.CreateWith(filepath.Join(t.TempDir(), "sim"), profile, sim.Options{NoDeviceNodes: true})
	if err != nil {
		t.Fatal(err)
	}
	return m, replaced(t, "sim", "MACHINE="+m.Root())
}

func gpus(t testing.TB, m *sim.Machine) []sim.GPUDescription {
	t.Helper()
	shown, err := m.Show()
	if err != nil {
		t.Fatal(err)
	}
	return shown.GPUs
}

func TestTimeSliceOnSimulatedHardware(t *testing.T) {
	m, s := simulated(t, "t4x4")
	id := gpu.UUID(gpus(t, m)[1].UUID)
	for _, step := range []struct{ slice, want string }{{"long", "Long"}, {"short", "Short"}, {"medium", "Medium"}, {"default", ""}, {"long", "Long"}, {"", ""}} {
		if err := s.SetTimeSlice(t.Context(), id, step.slice); err != nil {
			t.Error(err)
		}
		var got []string
		for _, g := range gpus(t, m) {
			got = append(got, g.TimeSlice)
		}
		if diff := cmp.Diff([]string{"", step.want, "", ""}, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", step.slice, diff)
		}
	}
}

func TestResetOnSimulatedHardware(t *testing.T) {
	m, s := simulated(t, "a100x8-40g")
	shown := gpus(t, m)
	ids := []gpu.UUID{gpu.UUID(shown[5].UUID), gpu.UUID(shown[2].UUID)}
	if err := m.Inject(sim.Fault{GPU: "5", ECC: 1}); err != nil {
		t.Fatal(err)
	}
	if err := m.Inject(sim.Fault{GPU: "2", Busy: true}); err != nil {
		t.Fatal(err)
	}
	err := s.ResetGPUs(t.Context(), ids)
	if err == nil || !strings.Contains(err.Error(), "In use by another client") || !strings.Contains(err.Error(), "exit status 255") ||
		!strings.Contains(err.Error(), "; end what has the GPU open") {
		t.Errorf("got %v; want nvidia-smi's output and the fix", err)
	}
	if len(gpus(t, m)[5].Faults) == 0 {
		t.Error("one GPU was reset although the other refused")
	}
	if err := m.Clear("2"); err != nil {
		t.Fatal(err)
	}
	if err := s.ResetGPUs(t.Context(), ids); err != nil {
		t.Error(err)
	}
	if faults := gpus(t, m)[5].Faults; len(faults) > 0 {
		t.Errorf("faults %v after the reset; want none", faults)
	}
	if err := s.Touch(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestErrors checks that each failure has the program's output and the fix.
func TestErrors(t *testing.T) {
	gone, onGone := simulated(t, "t4x4")
	if err := gone.Inject(sim.Fault{DriverGone: true}); err != nil {
		t.Fatal(err)
	}
	_, onT4 := simulated(t, "t4x4")
	mig, onMIG := simulated(t, "h100x8")
	library := mig.NVML()
	library.Init()
	d, _ := library.DeviceGetHandleByIndex(0)
	d.SetMigMode(1)
	migUUID := gpu.UUID(gpus(t, mig)[0].UUID)
	for name, test := range map[string]struct {
		do   func(context.Context) error
		want []string
	}{
		"no such slice": {
			func(ctx context.Context) error { return onT4.SetTimeSlice(ctx, one, "longer") }, []string{`"longer" is not a time slice; use default, short, medium, long`},
		},
		"no GPU given": {func(ctx context.Context) error { return onT4.ResetGPUs(ctx, nil) }, []string{"no GPU was given"}},
		"an option for a UUID": {
			func(ctx context.Context) error { return onT4.SetTimeSlice(ctx, "--id=0", "short") }, []string{`"--id=0" is not the UUID of a GPU`},
		},
		"two in one": {
			func(ctx context.Context) error { return onT4.ResetGPUs(ctx, []gpu.UUID{one + "," + other}) }, []string{"is not the UUID of a GPU"},
		},
		"a MIG device": {
			func(ctx context.Context) error { return onT4.SetTimeSlice(ctx, "MIG-1", "short") }, []string{"is not the UUID of a GPU"},
		},
		"unknown GPU": {
			func(ctx context.Context) error { return onT4.SetTimeSlice(ctx, one, "short") },
			[]string{"set time slice of GPU " + string(one) + " to short", "exit status 6", "No devices were found", "it was removed, or it is lost"},
		},
		"MIG mode": {
			func(ctx context.Context) error { return onMIG.SetTimeSlice(ctx, migUUID, "short") },
			[]string{"exit status 3", "Not Supported", "in its present mode"},
		},
		"no driver": {
			func(ctx context.Context) error { return onGone.Touch(ctx) }, []string{"exit status 9", "couldn't communicate", "load the NVIDIA driver"},
		},
		"nothing of this process gets through": {
			func(ctx context.Context) error { return replaced(t, "print").ResetGPUs(ctx, []gpu.UUID{one, other}) },
			[]string{`args ["--gpu-reset" "-i" "` + string(one) + "," + string(other) + `"]`, `env ["STAND_IN=print"]`, "exit status 7"},
		},
		"how a time slice is requested": {
			func(ctx context.Context) error { return replaced(t, "print").SetTimeSlice(ctx, one, "medium") },
			[]string{`args ["compute-policy" "-i" "` + string(one) + `" "--set-timeslice=2"]`},
		},
		"a long output": {
			func(ctx context.Context) error { return replaced(t, "flood").Touch(ctx) }, []string{"line 99999 of an output", "the reason"},
		},
		"no program": {
			func(ctx context.Context) error {
				return New(Deps{DriverRoot: "/nonexistent"}).Touch(ctx)
			}, []string{"the driver root /nonexistent has none of /usr/bin/nvidia-smi", "install the driver's tools"},
		},
		"a program that cannot be started": {
			func(ctx context.Context) error { return New(Deps{Program: []string{"/nonexistent"}}).Touch(ctx) }, []string{"was not started", "no such file"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.do(t.Context())
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v\nwant %q in it", err, want)
				}
			}
			if len(err.Error()) > 2500 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

// TestHang checks that a program that does not end is killed with its children, and that the next call runs.
func TestHang(t *testing.T) {
	for _, kind := range []string{"hang", "leave a child"} {
		t.Run(kind, func(t *testing.T) {
			s := replaced(t, kind)
			s.deps.Timeout = 100 * time.Millisecond
			err := s.Touch(t.Context())
			if err == nil || !strings.Contains(err.Error(), "was killed: the time of 100ms is over") {
				t.Errorf("got %v; want that it was killed", err)
			}
			s.deps.Timeout, s.deps.Env = 0, []string{"STAND_IN=print"}
			if err := s.Touch(t.Context()); err == nil || !strings.Contains(err.Error(), "exit status 7") {
				t.Errorf("the next call: %v; want it to run", err)
			}
		})
	}
}

// TestCanceled checks that the caller's context ends the call.
func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := replaced(t, "hang").Touch(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v; want context.Canceled", err)
	}
}

// TestOneAtATime checks that while a program runs that cannot be killed, a call returns an error instead of starting a
// second.
func TestOneAtATime(t *testing.T) {
	s := replaced(t, "hang")
	s.slot <- struct{}{}
	what := "nvidia-smi -L (process 42, started long ago)"
	s.running.Store(&what)
	s.deps.Timeout = time.Millisecond
	err := s.SetTimeSlice(t.Context(), one, "short")
	if err == nil || !strings.Contains(err.Error(), "was not started: "+what+" has not ended") || !strings.Contains(err.Error(), "reboot the node") {
		t.Errorf("got %v; want the program that still runs", err)
	}
}

func TestFind(t *testing.T) {
	for name, test := range map[string]struct {
		file string
		link string
		env  []string
	}{
		"distribution":  {file: "/usr/bin/nvidia-smi"},
		"alternatives":  {file: "/usr/bin/nvidia-smi", link: "/etc/alternatives/nvidia--nvidia-smi"},
		"Flatcar":       {file: "/opt/bin/nvidia-smi"},
		"Container OS":  {file: "/home/kubernetes/bin/nvidia/bin/nvidia-smi", env: []string{"LD_LIBRARY_PATH=/home/kubernetes/bin/nvidia/lib64"}},
		"NixOS":         {file: "/run/current-system/sw/bin/nvidia-smi", env: []string{"LD_LIBRARY_PATH=/run/opengl-driver/lib"}},
		"driver folder": {file: "/usr/local/nvidia/bin/nvidia-smi", env: []string{"LD_LIBRARY_PATH=/usr/local/nvidia/lib64"}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			path := filepath.Join(root, test.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			err := os.WriteFile(path, nil, 0o755)
			if test.link != "" {
				err = errors.Join(os.Remove(path), os.Symlink(test.link, path))
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := find(root)
			if err != nil {
				t.Fatal(err)
			}
			want := program{args: []string{test.file}, root: root, env: test.env}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(program{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestChroot runs a program with the driver root as its root directory, where it finds itself at its own path.
func TestChroot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("changing the root needs root")
	}
	root := t.TempDir()
	source := filepath.Join(root, "main.go")
	text := `package main
import ("fmt"; "os")
func main() { _, err := os.Stat("/usr/bin/nvidia-smi"); fmt.Println("sees itself:", err == nil, os.Environ()); os.Exit(5) }`
	if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(root, "usr/bin/nvidia-smi"), source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	err := New(Deps{DriverRoot: root, Env: []string{"A=b"}}).Touch(t.Context())
	if errors.Is(err, syscall.EPERM) {
		t.Skip("changing the root needs CAP_SYS_CHROOT")
	}
	if err == nil || !strings.Contains(err.Error(), "exit status 5: sees itself: true [A=b]") {
		t.Errorf("got %v; want the program to have run within the root", err)
	}
}

func TestTail(t *testing.T) {
	for name, test := range map[string]struct {
		writes []string
		want   string
	}{
		"nothing":            {nil, ""},
		"blanks":             {[]string{" \n\t\n"}, ""},
		"few lines":          {[]string{"a\n\n  b ", "c\n"}, ": a / b c"},
		"many":               {[]string{strings.Repeat("x\n", 100), "end"}, ": x / x / x / x / x / x / x / end"},
		"one write":          {[]string{strings.Repeat("y", maxOutput) + "\nend"}, ": …" + strings.Repeat("y", maxText-len(" / end")) + " / end"},
		"not UTF-8":          {[]string{"\xff\xfe\n", "a\xffb\n"}, ": ab"},
		"control characters": {[]string{"a\x1b[2J\u202eb\n"}, ": a [2Jb"},
	} {
		t.Run(name, func(t *testing.T) {
			tail := &tail{}
			for _, text := range test.writes {
				if n, err := tail.Write([]byte(text)); n != len(text) || err != nil {
					t.Errorf("Write = %d, %v", n, err)
				}
			}
			if got := tail.quote(); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if len(tail.String()) > maxOutput {
				t.Errorf("%d bytes were kept", len(tail.String()))
			}
		})
	}
}
