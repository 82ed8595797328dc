package cdi

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/golden"
	"github.com/berth-gpu/berth/internal/hardware/nvidia/cdihook"
	"github.com/google/go-cmp/cmp"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"
)

// inject requests devices from a CDI directory as containerd does.
func inject(t testing.TB, dir string, devices ...string) *oci.Spec {
	t.Helper()
	cache, err := cdilib.NewCache(cdilib.WithSpecDirs(dir), cdilib.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	if errs := cache.GetErrors(); len(errs) > 0 {
		t.Fatalf("the CDI library refuses the spec: %v", errs)
	}
	spec := &oci.Spec{Process: &oci.Process{}, Linux: &oci.Linux{Resources: &oci.LinuxResources{}}}
	var names []string
	for _, d := range devices {
		names = append(names, QualifiedName(d))
	}
	if missing, err := cache.InjectDevices(spec, names...); err != nil {
		t.Fatalf("inject %v: %v (missing: %v)", names, err, missing)
	}
	return spec
}

func devicePaths(spec *oci.Spec) []string {
	var paths []string
	for _, d := range spec.Linux.Devices {
		paths = append(paths, d.Path)
	}
	slices.Sort(paths)
	return paths
}

var control = []string{"/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"}

// TestSpecs renders machines, compares the specs with golden files, and requests devices of them from the CDI library.
func TestSpecs(t *testing.T) {
	for name, test := range map[string]struct {
		machine  func(t *testing.T) *machine
		version  string
		problems string
		// want maps the requested devices of a container to the nodes beside the control nodes.
		want map[string][]string
	}{
		"eight-gpus": {
			machine: func(t *testing.T) *machine { return newMachine(t, 8) },
			version: "0.5.0",
			want: map[string][]string{
				string(uuid(2)) + " " + string(uuid(5)): {"/dev/nvidia2", "/dev/nvidia5"},
				"7":                                     {"/dev/nvidia7"},
				"all": {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia3",
					"/dev/nvidia4", "/dev/nvidia5", "/dev/nvidia6", "/dev/nvidia7"},
			},
		},
		"graphics": {
			machine: func(t *testing.T) *machine {
				m := newMachine(t, 2)
				m.drm(0)
				m.drm(1)
				return m
			},
			version: "0.5.0",
			want: map[string][]string{
				"1":   {"/dev/dri/card1", "/dev/dri/renderD129", "/dev/nvidia1"},
				"all": {"/dev/dri/card0", "/dev/dri/card1", "/dev/dri/renderD128", "/dev/dri/renderD129", "/dev/nvidia0", "/dev/nvidia1"},
			},
		},
		"mig": {
			machine: func(t *testing.T) *machine {
				m := newMachine(t, 3)
				m.drm(0)
				m.mig(0, "3g.20gb", "1g.5gb", "1g.12gb+gfx")
				m.mig(1)
				return m
			},
			version: "0.5.0",
			want: map[string][]string{
				"0:0":                 {"/dev/nvidia-caps/nvidia-cap3", "/dev/nvidia-caps/nvidia-cap4", "/dev/nvidia0"},
				string(migUUID(0, 1)): {"/dev/nvidia-caps/nvidia-cap13", "/dev/nvidia-caps/nvidia-cap14", "/dev/nvidia0"},
				"0:2": {"/dev/dri/card0", "/dev/dri/renderD128",
					"/dev/nvidia-caps/nvidia-cap23", "/dev/nvidia-caps/nvidia-cap24", "/dev/nvidia0"},
				"2": {"/dev/nvidia2"},
			},
		},
		"one-lost": {
			machine: func(t *testing.T) *machine {
				m := newMachine(t, 4)
				// 1 is unhealthy, 2 is lost and has its node, 3 is lost and does not, and its index is that of a GPU
				// that was added.
				m.snapshot.GPUs[1].Health.State = gpu.Unhealthy
				m.snapshot.GPUs[2].Health.State = gpu.Gone
				m.snapshot.GPUs[3].Health.State = gpu.Gone
				m.remove("dev/nvidia3")
				m.addGPU(4).Index = 2
				return m
			},
			version:  "0.5.0",
			problems: "CDI_NODE_MISSING CDI_NAME_TAKEN",
			want: map[string][]string{
				string(uuid(1)): {"/dev/nvidia1"},
				string(uuid(2)): {"/dev/nvidia2"},
				"2":             {"/dev/nvidia4"},
				"all":           {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia4"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := test.machine(t)
			w := m.writer()
			if !m.sync(w) {
				t.Fatal("nothing was written")
			}
			data, err := os.ReadFile(w.Path())
			m.check(err)
			if m.realNodes() {
				compareSpec(t, name, "common", m.normal(data))
			} else {
				t.Log("the bytes are not compared: creating device nodes is not allowed here")
			}
			if got := codes(w.Problems()); got != test.problems {
				t.Errorf("problems are %q, want %q: %v", got, test.problems, w.Problems())
			}

			spec, err := cdilib.ReadSpec(w.Path(), 0)
			m.check(err)
			if spec.Version != test.version {
				t.Errorf("cdiVersion is %s, want the oldest sufficient one: %s", spec.Version, test.version)
			}
			for names, want := range test.want {
				want = append(slices.Clone(want), control...)
				slices.Sort(want)
				injected := inject(t, m.dir, strings.Fields(names)...)
				if diff := cmp.Diff(want, devicePaths(injected)); diff != "" {
					t.Errorf("%s: nodes (-want +got):\n%s", names, diff)
				}
				checkAgainstReader(t, m.dir, strings.Fields(names), injected)
			}
		})
	}
}

// checkAgainstReader compares the edits that the CDI library injects with those that ReadSpec returns.
func checkAgainstReader(t *testing.T, dir string, names []string, injected *oci.Spec) {
	t.Helper()
	spec, err := ReadSpec(dir)
	if err != nil {
		t.Fatal(err)
	}
	edits, err := spec.injected(names...)
	if err != nil {
		t.Fatal(err)
	}
	var nodes, mounts, hooks []string
	for _, n := range edits.Nodes {
		nodes = append(nodes, n.Path)
	}
	slices.Sort(nodes)
	if diff := cmp.Diff(devicePaths(injected), nodes); diff != "" {
		t.Errorf("%v: nodes of the CDI library and of ReadSpec:\n%s", names, diff)
	}
	for _, m := range edits.Mounts {
		mounts = append(mounts, m.ContainerPath)
	}
	var want []string
	for _, m := range injected.Mounts {
		want = append(want, m.Destination)
	}
	slices.Sort(want)
	slices.Sort(mounts)
	if diff := cmp.Diff(want, mounts); diff != "" {
		t.Errorf("%v: mounts of the CDI library and of ReadSpec:\n%s", names, diff)
	}
	if diff := cmp.Diff(injected.Process.Env, edits.Env); diff != "" {
		t.Errorf("%v: env of the CDI library and of ReadSpec:\n%s", names, diff)
	}
	want = nil
	for _, h := range edits.Hooks {
		hooks = append(hooks, strings.Join(h.Args, " "))
		if !slices.Contains(cdihook.Names(), h.Args[1]) {
			t.Errorf("berth-cdi-hook does not have the hook %q", h.Args[1])
		}
	}
	for _, h := range injected.Hooks.CreateContainer {
		want = append(want, strings.Join(h.Args, " "))
	}
	if diff := cmp.Diff(want, hooks); diff != "" {
		t.Errorf("%v: hooks of the CDI library and of ReadSpec:\n%s", names, diff)
	}
}

// TestCgroupRules checks that a container may open only the devices that it has.
func TestCgroupRules(t *testing.T) {
	m := newMachine(t, 3)
	w := m.writer()
	m.sync(w)
	var got []string
	for _, rule := range inject(t, m.dir, string(uuid(1))).Linux.Resources.Devices {
		text, _ := json.Marshal(rule)
		got = append(got, string(text))
	}
	slices.Sort(got)
	want := []string{
		`{"allow":true,"type":"c","major":195,"minor":1,"access":"rw"}`,
		`{"allow":true,"type":"c","major":195,"minor":254,"access":"rw"}`,
		`{"allow":true,"type":"c","major":195,"minor":255,"access":"rw"}`,
		`{"allow":true,"type":"c","major":510,"minor":0,"access":"rw"}`,
		`{"allow":true,"type":"c","major":510,"minor":1,"access":"rw"}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDescribe(t *testing.T) {
	m := newMachine(t, 3)
	m.mig(2, "3g.20gb")
	m.sync(m.writer())
	spec, err := ReadSpec(m.dir)
	m.check(err)
	spec.Path = FileName
	golden.File(t, "testdata/describe.txt", spec.Describe())
}
