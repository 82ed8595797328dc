package cdi

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/golden"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/google/go-cmp/cmp"
	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"
)

// simulated is a machine with the tree and the snapshot of simulated hardware, read by the real adapter.
type simulated struct {
	*machine
	hardware *sim.Machine
	adapter  *nvidia.Adapter
}

func newSimulated(t testing.TB, profile string) *simulated {
	t.Helper()
	t.Setenv("XDG_DATA_DIRS", "")
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	// The UUIDs and majors are the same wherever the test runs.
	devices := filepath.Join(dir, "devices")
	if err := os.WriteFile(devices, []byte("Character devices:\n  1 mem\n\nBlock devices:\n  7 loop\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	hardware, err := sim.CreateWith(filepath.Join(dir, "sim"), profile, sim.Options{Seed: profile, ProcDevices: devices})
	if err != nil {
		t.Fatal(err)
	}
	root := hardware.Root()
	s := &simulated{
		machine:  &machine{t: t, root: root, dir: filepath.Join(dir, "cdi")},
		hardware: hardware,
		adapter: nvidia.New(nvidia.Deps{Library: hardware.NVML(), Roots: nvidia.Roots{
			Driver: root, Dev: root, Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys"),
		}}),
	}
	s.executable("opt/berth/berth-cdi-hook-0123456789ab")
	s.hook = s.path("opt/berth/berth-cdi-hook-0123456789ab")
	s.scan()
	return s
}

func (s *simulated) scan() {
	s.t.Helper()
	snapshot, err := s.adapter.Scan(s.t.Context())
	s.check(err)
	s.snapshot = &snapshot
}

func (s *simulated) writer() *Writer {
	deps := s.edits()
	deps.Library = s.hardware.NVML()
	return New(s.depsOf(deps))
}

// TestSimulatedMachines compares the specs of simulated machines with golden files, and requests each of their devices
// from the CDI library.
func TestSimulatedMachines(t *testing.T) {
	for name, test := range map[string]struct {
		profile string
		change  func(s *simulated)
	}{
		"a100x8-40g": {profile: "a100x8-40g"},
		"l40sx8":     {profile: "l40sx8"},
		"mixed-one-lost": {profile: "mixed", change: func(s *simulated) {
			s.check(s.hardware.Inject(sim.Fault{GPU: "3", Lost: true}))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSimulated(t, test.profile)
			if test.change != nil {
				test.change(s)
				s.scan()
			}
			w := s.writer()
			s.sync(w)
			data, err := os.ReadFile(w.Path())
			s.check(err)
			spec, err := ReadSpec(s.dir)
			s.check(err)
			if !s.realNodes() || runtime.GOARCH != "amd64" {
				t.Log("the bytes are not compared: this machine has other paths, or does not allow creating device nodes")
			} else {
				compareSpec(t, "sim-"+name, "sim-common", s.normal(data))
			}
			if len(w.Problems()) > 0 {
				t.Errorf("problems: %v", w.Problems())
			}
			for i := range s.snapshot.GPUs {
				g := &s.snapshot.GPUs[i]
				want := slices.Clone(control)
				for _, node := range g.Nodes {
					want = append(want, node.Path)
				}
				slices.Sort(want)
				for _, name := range []string{string(g.UUID), fmt.Sprint(g.Index)} {
					if diff := cmp.Diff(want, devicePaths(inject(t, s.dir, name))); diff != "" {
						t.Errorf("%s (-want +got):\n%s", name, diff)
					}
				}
			}
			if want := 2*len(s.snapshot.GPUs) + 1; len(spec.Devices) != want {
				t.Errorf("%d devices, want %d", len(spec.Devices), want)
			}
		})
	}
}

// partition enables MIG on a simulated GPU and creates two instances of 3 slices.
func (s *simulated) partition(index int) {
	s.t.Helper()
	ok := func(what string, ret nvml.Return) {
		s.t.Helper()
		if ret != nvml.SUCCESS {
			s.t.Fatalf("%s: %v", what, nvml.ErrorString(ret))
		}
	}
	library := s.hardware.NVML()
	ok("init", library.Init())
	defer func() { _ = library.Shutdown() }()
	device, ret := library.DeviceGetHandleByIndex(index)
	ok("get device", ret)
	_, ret = device.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	ok("set MIG mode", ret)
	s.check(s.hardware.ResetGPUs(fmt.Sprint(index))) // an Ampere GPU needs a reset
	device, ret = library.DeviceGetHandleByIndex(index)
	ok("get device again", ret)
	for range 2 {
		profile, ret := device.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_3_SLICE)
		ok("get profile", ret)
		instance, ret := device.CreateGpuInstance(&profile)
		ok("create GPU instance", ret)
		compute, ret := instance.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_3_SLICE, 0)
		ok("get compute profile", ret)
		_, ret = instance.CreateComputeInstance(&compute)
		ok("create compute instance", ret)
	}
	s.scan()
}

// TestSimulatedMIG checks that a MIG device has its GPU's node and its two capabilities, and that the GPU as a whole is
// no longer a device.
func TestSimulatedMIG(t *testing.T) {
	s := newSimulated(t, "a100x8-40g")
	if !s.realNodes() {
		t.Skip("skipped: creating device nodes is not allowed here")
	}
	w := s.writer()
	s.sync(w)
	s.partition(1)
	if !s.sync(w) {
		t.Error("the spec was not rewritten")
	}
	if len(w.Problems()) > 0 {
		t.Errorf("problems: %v", w.Problems())
	}
	g := &s.snapshot.GPUs[1]
	if len(g.MIG.Devices) != 2 {
		t.Fatalf("MIG devices: %+v", g.MIG)
	}
	seen := map[string]bool{}
	for i := range g.MIG.Devices {
		mig := &g.MIG.Devices[i]
		want := append(slices.Clone(control), "/dev/nvidia1", mig.Nodes[0].Path, mig.Nodes[1].Path)
		slices.Sort(want)
		for _, name := range []string{string(mig.UUID), fmt.Sprintf("1:%d", mig.Index)} {
			if diff := cmp.Diff(want, devicePaths(inject(t, s.dir, name))); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
		for _, node := range mig.Nodes {
			if seen[node.Path] || !strings.HasPrefix(node.Path, "/dev/nvidia-caps/") {
				t.Errorf("capability node %s", node.Path)
			}
			seen[node.Path] = true
		}
	}
	spec, err := ReadSpec(s.dir)
	s.check(err)
	for _, name := range []string{"1", string(g.UUID)} {
		if _, ok := spec.device(name); ok {
			t.Errorf("the partitioned g is device %s", name)
		}
	}
	spec.Path = FileName
	golden.File(t, "testdata/sim-mig.txt", spec.Describe())
}

// TestEveryProfile checks that the CDI library accepts the spec of every profile, and that no problem is reported.
func TestEveryProfile(t *testing.T) {
	for _, profile := range sim.Profiles() {
		t.Run(profile, func(t *testing.T) {
			s := newSimulated(t, profile)
			w := s.writer()
			s.sync(w)
			if _, err := cdilib.ReadSpec(w.Path(), 0); err != nil {
				t.Error(err)
			}
			if len(w.Problems()) > 0 {
				t.Errorf("problems: %v", w.Problems())
			}
			all := devicePaths(inject(t, s.dir, All))
			for i := range s.snapshot.GPUs {
				if node := s.snapshot.GPUs[i].Nodes[0].Path; !slices.Contains(all, node) {
					t.Errorf("%s is not in all: %v", node, all)
				}
			}
		})
	}
}

// TestLifeOfAMachine removes and adds GPUs and the driver: the spec is updated or stays.
func TestLifeOfAMachine(t *testing.T) {
	s := newSimulated(t, "a100x8-40g")
	w := s.writer()
	step := func(what string, want bool, problems string) {
		t.Helper()
		s.scan()
		if got := s.sync(w); got != want {
			t.Errorf("%s: written is %v, want %v", what, got, want)
		}
		if got := codes(w.Problems()); got != problems {
			t.Errorf("%s: problems are %q, want %q", what, got, problems)
		}
	}
	step("start", true, "")
	first, err := os.ReadFile(w.Path())
	s.check(err)
	step("nothing happened", false, "")
	s.check(s.hardware.Inject(sim.Fault{GPU: "2", LostSilently: true}))
	step("a g is lost, its node stays", false, "")
	s.check(s.hardware.Clear("2"))
	step("it is back", false, "")
	s.check(s.hardware.Inject(sim.Fault{GPU: "5", Remove: true}))
	s.scan()
	s.sync(w)
	spec, err := ReadSpec(s.dir)
	s.check(err)
	if all, _ := spec.device(All); slices.ContainsFunc(all.Nodes, func(n gpu.DeviceNode) bool { return n.Path == "/dev/nvidia5" }) {
		t.Error("a g that was taken out is in the spec")
	}
	s.check(s.hardware.Clear(sim.ClearAll))
	step("it is added again", true, "")
	if last, err := os.ReadFile(w.Path()); err != nil || string(last) != string(first) {
		t.Error("the spec differs from the first one")
	}
	s.check(s.hardware.Inject(sim.Fault{DriverGone: true}))
	step("the driver was removed", false, "CDI_SPEC_KEPT")
	if last, err := os.ReadFile(w.Path()); err != nil || string(last) != string(first) {
		t.Error("the spec was changed")
	}
	s.check(s.hardware.Clear(sim.ClearDriver))
	step("the driver is back", false, "")
	if !strings.Contains(string(first), "libcuda.so.") {
		t.Error("the spec has no libcuda")
	}
}
