package nvidia_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// TestOpeners finds the processes that have a GPU's device node open, whether NVML lists them or not, and none of another GPU.
func TestOpeners(t *testing.T) {
	m, a := machine(t, "a30x4")
	roots := nvidia.Roots{Driver: m.Root(), Dev: m.Root(), Proc: filepath.Join(m.Root(), "proc"), Sys: filepath.Join(m.Root(), "sys")}
	act := nvidia.NewActions(nvidia.Deps{Library: m.NVML(), Roots: roots})
	must(t, m.OpenGPU("1", sim.Opener{PID: 4711, Program: "nv-hostengine"}))
	must(t, m.OpenGPU("2", sim.Opener{PID: 4711, Program: "nv-hostengine"}))
	must(t, m.OpenGPU("2", sim.Opener{PID: 77, Program: "Xorg"}))
	inject(t, m, sim.Fault{GPU: "3", Busy: true})
	now := scan(t, a)
	if len(now.GPUs[1].Nodes) == 0 || now.GPUs[1].Nodes[0].HostPath == "" {
		t.Skip("making device nodes needs root with CAP_MKNOD")
	}
	for index, want := range [][]gpu.Process{
		nil,
		{{PID: 4711, Program: "nv-hostengine"}},
		{{PID: 77, Program: "Xorg"}, {PID: 4711, Program: "nv-hostengine"}},
		{{PID: 1 << 22}}, // listed by NVML alone
	} {
		got, err := act.Openers(&now.GPUs[index])
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("GPU %d (-want +got):\n%s", index, diff)
		}
	}
	must(t, m.CloseGPU("1", 4711))
	if got, err := act.Openers(&now.GPUs[1]); err != nil || len(got) > 0 {
		t.Errorf("closed: %v, %v; want none", got, err)
	}
	// A process that cannot be read may have the GPU open.
	must(t, os.WriteFile(filepath.Join(roots.Proc, "99"), nil, 0o600))
	if got, err := act.Openers(&now.GPUs[0]); err == nil {
		t.Errorf("a process that cannot be read: %v; want an error", got)
	}
}

// TestOpenersOfTheHost finds a real process by the device that it has open, whatever the name of the node.
func TestOpenersOfTheHost(t *testing.T) {
	m, a := machine(t, "a30x4")
	scan(t, a)
	null, err := os.Open(os.DevNull)
	must(t, err)
	defer null.Close()
	act := nvidia.NewActions(nvidia.Deps{Library: m.NVML(), Roots: nvidia.Roots{Proc: "/proc"}})
	g := gpu.GPU{UUID: scan(t, a).GPUs[0].UUID, Nodes: []gpu.DeviceNode{{Path: "/dev/nvidia0", Major: 1, Minor: 3}}} // which is /dev/null
	child, err := os.StartProcess("/bin/sleep", []string{"sleep", "60"}, &os.ProcAttr{Files: []*os.File{null}})
	must(t, err)
	defer func() { _ = child.Kill(); _, _ = child.Wait() }()
	got, err := act.Openers(&g)
	if os.IsPermission(err) {
		t.Skip("reading the file descriptors of all processes needs root")
	}
	must(t, err)
	found := false
	for _, o := range got {
		found = found || o == gpu.Process{PID: child.Pid, Program: "sleep", Parent: os.Getpid()}
		if o.PID == os.Getpid() {
			t.Error("this process is among them")
		}
	}
	if !found {
		t.Errorf("%s is not among %v", strconv.Itoa(child.Pid), got)
	}
}
