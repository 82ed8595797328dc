package cdi

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/golden"
	"github.com/google/go-cmp/cmp"
)

// daemon creates the directories of an MPS daemon.
func (m *machine) daemon(id gpu.UUID) MPSDevice {
	m.t.Helper()
	one := MPSDevice{GPU: id, PipeDir: m.path("run/berth/mps/" + string(id) + "/pipe"), ShmDir: m.path("run/berth/mps/" + string(id) + "/shm")}
	m.check(os.MkdirAll(one.PipeDir, 0o755))
	m.check(os.MkdirAll(one.ShmDir, 0o755))
	return one
}

// features creates the device nodes and files of every feature.
func (m *machine) features() {
	m.t.Helper()
	for name, minor := range map[string]uint32{
		"nvidia-fs": 0, "nvidia-fs0": 1, "gdrdrv": 2, "infiniband/uverbs0": 3, "infiniband/uverbs1": 4, "infiniband/rdma_cm": 5,
		"infiniband/umad0": 6, "nvidia-caps-imex-channels/channel0": 7, "nvidia-caps-imex-channels/channel1": 8,
	} {
		m.node(name, 240, minor)
	}
	m.file("run/udev/data")
	m.file("etc/cufile.json")
}

// syncWith must succeed; it reports whether the file was written.
func (m *machine) syncWith(w *Writer, extras Extras) bool {
	m.t.Helper()
	changed, err := w.Sync(m.t.Context(), m.snapshot, extras)
	m.check(err)
	return changed
}

func everything(m *machine) Extras {
	m.features()
	return Extras{
		MPS: []MPSDevice{m.daemon(uuid(1)), m.daemon(uuid(0)), m.daemon(uuid(1))},
		GDS: true, GDRCopy: true, MOFED: true, IMEXChannels: []int{1, 0, 1}, IMEXRequired: true,
	}
}

// TestExtras renders a machine with everything that a configuration can add.
func TestExtras(t *testing.T) {
	m := newMachine(t, 3)
	if !m.realNodes() {
		t.Skip("skipped: creating device nodes is not allowed here")
	}
	extras := everything(m)
	w := m.writer()
	m.syncWith(w, extras)
	if len(w.Problems()) > 0 {
		t.Errorf("problems: %v", w.Problems())
	}
	data, err := os.ReadFile(w.Path())
	m.check(err)
	compareSpec(t, "extras-spec", "extras-common", m.normal(data))
	spec, err := ParseSpec(m.normal(data))
	m.check(err)
	golden.File(t, "testdata/extras.txt", spec.Describe())

	slices.Reverse(extras.MPS)
	slices.Reverse(extras.IMEXChannels)
	if m.syncWith(w, extras) {
		t.Error("the order of the extras changes the spec")
	}
	names := []string{string(uuid(1)), mpsName(uuid(1))}
	injected := inject(t, m.dir, names...)
	checkAgainstReader(t, m.dir, names, injected)
	want := slices.Concat(control, []string{
		"/dev/nvidia1", "/dev/nvidia-fs", "/dev/nvidia-fs0", "/dev/gdrdrv", "/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1",
		"/dev/infiniband/rdma_cm", "/dev/nvidia-caps-imex-channels/channel0", "/dev/nvidia-caps-imex-channels/channel1",
	})
	slices.Sort(want)
	if diff := cmp.Diff(want, devicePaths(injected)); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	if env := "CUDA_MPS_PIPE_DIRECTORY=/mps/" + string(uuid(1)) + "/pipe"; !slices.Contains(injected.Process.Env, env) {
		t.Errorf("environment is %v, want %s", injected.Process.Env, env)
	}
	if plain := inject(t, m.dir, string(uuid(2))); slices.ContainsFunc(plain.Process.Env, func(v string) bool { return strings.HasPrefix(v, MPSPipeVariable) }) {
		t.Error("a container without a replica joins an MPS daemon")
	}
	if all := inject(t, m.dir, All); slices.ContainsFunc(all.Process.Env, func(v string) bool { return strings.HasPrefix(v, MPSPipeVariable) }) {
		t.Error("a container with all GPUs joins an MPS daemon")
	}
}

// TestExtrasChange checks that what the configuration enables or disables is in the next spec or not, and that an
// earlier spec is restored byte for byte.
func TestExtrasChange(t *testing.T) {
	m := newMachine(t, 2)
	if !m.realNodes() {
		t.Skip("skipped: creating device nodes is not allowed here")
	}
	m.features()
	w := m.writer()
	m.sync(w)
	plain, err := os.ReadFile(w.Path())
	m.check(err)
	for name, extras := range map[string]Extras{
		"mps": {MPS: []MPSDevice{m.daemon(uuid(0))}}, "gds": {GDS: true}, "gdrcopy": {GDRCopy: true}, "mofed": {MOFED: true}, "imex": {IMEXChannels: []int{0}},
	} {
		if !m.syncWith(w, extras) || m.syncWith(w, extras) {
			t.Errorf("%s: want it to be written once", name)
		}
		if !m.syncWith(w, Extras{}) {
			t.Errorf("%s is off again: not written", name)
		}
		if got, _ := os.ReadFile(w.Path()); string(got) != string(plain) {
			t.Errorf("%s is off again: the spec differs from the first one", name)
		}
	}
}

// TestExtrasMissing checks that what does not exist on the host is left out and reported with the fix, and that the
// rest stays.
func TestExtrasMissing(t *testing.T) {
	for name, test := range map[string]struct {
		change   func(m *machine)
		extras   func(*Extras)
		problems string
		say      string
		absent   string
		present  string
	}{
		"gds":                {change: func(m *machine) { m.remove("dev/nvidia-fs"); m.remove("dev/nvidia-fs0") }, problems: "CDI_GDS_MISSING", say: "load the kernel module nvidia-fs", absent: "cufile.json", present: "gdrdrv"},
		"gdrcopy":            {change: func(m *machine) { m.remove("dev/gdrdrv") }, problems: "CDI_GDRCOPY_MISSING", say: "no /dev/gdrdrv on the host", absent: "gdrdrv", present: "nvidia-fs0"},
		"rdma_cm":            {change: func(m *machine) { m.remove("dev/infiniband/rdma_cm") }, problems: "CDI_MOFED_MISSING", say: "/dev/infiniband/rdma_cm", absent: "rdma_cm", present: "uverbs1"},
		"all of mofed":       {change: func(m *machine) { m.remove("dev/infiniband") }, problems: "CDI_MOFED_MISSING CDI_MOFED_MISSING", absent: "infiniband", present: "gdrdrv"},
		"a required channel": {change: func(m *machine) { m.remove("dev/nvidia-caps-imex-channels/channel1") }, problems: "CDI_IMEX_REQUIRED", say: "IMEX channel 1 is required", absent: "channel1", present: "channel0"},
		"a channel": {
			change: func(m *machine) { m.remove("dev/nvidia-caps-imex-channels") },
			extras: func(e *Extras) { e.IMEXChannels, e.IMEXRequired = []int{0}, false }, problems: "CDI_IMEX_MISSING", say: "containers run without it", absent: "imex",
		},
		"a file, not a node": {change: func(m *machine) { m.remove("dev/gdrdrv"); m.file("dev/gdrdrv") }, problems: "CDI_GDRCOPY_MISSING", say: "not a character device", absent: "gdrdrv"},
		"cufile.json":        {change: func(m *machine) { m.remove("etc/cufile.json") }, absent: "cufile", present: "/run/udev"},
		"pipes":              {change: func(m *machine) { m.remove("run/berth/mps/" + string(uuid(0)) + "/pipe") }, problems: "CDI_MPS_MISSING", say: string(uuid(0)) + "/pipe on the host", absent: mpsName(uuid(0)), present: mpsName(uuid(1))},
		"daemon":             {change: func(m *machine) { m.remove("run/berth/mps/" + string(uuid(0))) }, problems: "CDI_MPS_MISSING", say: "/pipe and no directory ", absent: mpsName(uuid(0)), present: mpsName(uuid(1))},
		"bad UUID":           {extras: func(e *Extras) { e.MPS = append(e.MPS, MPSDevice{GPU: "GPU-a/b"}) }, problems: "CDI_NAME_INVALID", absent: "GPU-a/b"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, 2)
			if !m.realNodes() {
				t.Skip("skipped: creating device nodes is not allowed here")
			}
			extras := everything(m)
			if test.change != nil {
				test.change(m)
			}
			if test.extras != nil {
				test.extras(&extras)
			}
			w := m.writer()
			m.syncWith(w, extras)
			data, err := os.ReadFile(w.Path())
			m.check(err)
			data = m.normal(data) // the folder has the name of the test
			if strings.Contains(string(data), test.absent) {
				t.Errorf("%s is in the spec", test.absent)
			}
			if !strings.Contains(string(data), test.present) {
				t.Errorf("%s is not in the spec", test.present)
			}
			if got := codes(w.Problems()); got != test.problems {
				t.Errorf("problems are %q, want %q: %v", got, test.problems, w.Problems())
			}
			if said := fmt.Sprint(w.Problems()); !strings.Contains(said, test.say) {
				t.Errorf("problems are %s, want %q in them", said, test.say)
			}
			inject(t, m.dir, "0") // the CDI library accepts it
		})
	}
}

// TestExtrasOfDriverRoot checks that, with the driver in a root of its own, the kernel's device nodes are the host's,
// and the spec has the host's paths.
func TestExtrasOfDriverRoot(t *testing.T) {
	m := newMachine(t, 1)
	if !m.realNodes() {
		t.Skip("skipped: creating device nodes is not allowed here")
	}
	deps := m.edits()
	deps.DriverRoot, deps.DevRoot, deps.HostRoot = m.root, m.path("run/nvidia/driver"), m.root
	m.features()
	one := m.daemon(uuid(0))
	one.PipeDir, one.ShmDir = strings.TrimPrefix(one.PipeDir, m.root), strings.TrimPrefix(one.ShmDir, m.root)
	w := New(m.depsOf(deps))
	m.syncWith(w, Extras{GDRCopy: true, MPS: []MPSDevice{one}})
	if len(w.Problems()) > 0 {
		t.Errorf("problems: %v", w.Problems())
	}
	spec, err := ReadSpec(m.dir)
	m.check(err)
	i := slices.IndexFunc(spec.Common.Nodes, func(n gpu.DeviceNode) bool { return n.Path == "/dev/gdrdrv" })
	if i < 0 || spec.Common.Nodes[i].HostPath != "/dev/gdrdrv" {
		t.Errorf("nodes: %+v", spec.Common.Nodes)
	}
	device, _ := spec.device(mpsName(uuid(0)))
	want := []Mount{
		{one.PipeDir, mpsPipePath(uuid(0)), []string{"rw", "nosuid", "nodev", "noexec", "rbind", "rprivate"}},
		{one.ShmDir, MPSShmPath, []string{"rw", "nosuid", "nodev", "noexec", "rbind", "rprivate"}},
	}
	if diff := cmp.Diff(want, device.Mounts); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
}

// TestSimulatedExtras checks that simulated machines have the extras of their profiles, and that the problem is
// reported on a machine without them.
func TestSimulatedExtras(t *testing.T) {
	for profile, test := range map[string]struct {
		extras   Extras
		problems string
		node     string
	}{
		"h100x8":     {Extras{GDS: true, GDRCopy: true, MOFED: true}, "", "/dev/nvidia-fs15"},
		"gb200x4":    {Extras{IMEXChannels: []int{0}, IMEXRequired: true}, "", "/dev/nvidia-caps-imex-channels/channel0"},
		"a100x8-40g": {Extras{GDRCopy: true, IMEXChannels: []int{0}}, "CDI_GDRCOPY_MISSING CDI_IMEX_MISSING", "/dev/nvidia0"},
	} {
		t.Run(profile, func(t *testing.T) {
			s := newSimulated(t, profile)
			if !s.realNodes() {
				t.Skip("skipped: creating device nodes is not allowed here")
			}
			w := s.writer()
			s.syncWith(w, test.extras)
			if got := codes(w.Problems()); got != test.problems {
				t.Errorf("problems are %q, want %q: %v", got, test.problems, w.Problems())
			}
			if got := devicePaths(inject(t, s.dir, "0")); !slices.Contains(got, test.node) {
				t.Errorf("nodes are %v, want %s among them", got, test.node)
			}
		})
	}
}
