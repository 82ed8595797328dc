package cdi

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia/cdiedits"
	"github.com/google/go-cmp/cmp"
	"tags.cncf.io/container-device-interface/specs-go"
)

// TestLeftOut checks that what is missing on the host is not in the spec, and is reported, and that the rest can be
// injected.
func TestLeftOut(t *testing.T) {
	allHooks := []string{"create-symlinks", "create-symlinks", "enable-cuda-compat", "update-ldcache",
		"disable-device-node-modification", "update-application-profile"}
	for name, test := range map[string]struct {
		before   func(m *machine) // files that never existed
		after    func(m *machine) // files that are removed after nvcdi found them
		deps     func(d *cdiedits.Deps)
		problems string
		absent   string
		hooks    []string
	}{
		"nothing": {hooks: allHooks},
		"socket": {
			after:  func(m *machine) { m.remove("run/nvidia-persistenced/socket") },
			absent: "nvidia-persistenced", problems: "CDI_PATH_MISSING", hooks: allHooks,
		},
		"library": {
			after:  func(m *machine) { m.remove(libFolder + "/libnvidia-ml.so." + driverVersion) },
			absent: "libnvidia-ml.so." + driverVersion, problems: "CDI_PATH_MISSING", hooks: allHooks,
		},
		"control node": {
			before: func(m *machine) { m.remove("dev/nvidia-modeset") },
			absent: "nvidia-modeset", problems: "CDI_NODE_MISSING", hooks: allHooks,
		},
		"DRM node": {
			before: func(m *machine) { m.remove("dev/dri/card0") },
			absent: "card0", problems: "CDI_NODE_MISSING", hooks: allHooks,
		},
		"hook binary": {
			before: func(m *machine) { m.check(os.Remove(m.hook)) },
			absent: "berth-cdi-hook", problems: "CDI_HOOK_MISSING",
		},
		"hook binary not executable": {
			before: func(m *machine) { m.check(os.Chmod(m.hook, 0o644)) },
			absent: "berth-cdi-hook", problems: "CDI_HOOK_MISSING",
		},
		"no hooks wanted": {
			deps:   func(d *cdiedits.Deps) { d.HookPath = "" },
			absent: "berth-cdi-hook",
		},
		"all hooks disabled": {
			deps:   func(d *cdiedits.Deps) { d.DisabledHooks = []string{"all"} },
			absent: "berth-cdi-hook",
		},
		"one hook disabled": {
			deps:   func(d *cdiedits.Deps) { d.DisabledHooks = []string{"create-symlinks"} },
			absent: "create-symlinks", hooks: allHooks[2:],
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, 2)
			m.drm(0)
			deps := m.edits()
			if test.deps != nil {
				test.deps(&deps)
			}
			if test.before != nil {
				test.before(m)
			}
			real := cdiedits.Nvcdi(deps)
			deps.Search = func(version string) (*specs.ContainerEdits, error) {
				edits, err := real(version)
				if test.after != nil {
					test.after(m)
				}
				return edits, err
			}
			w := New(m.depsOf(deps))
			m.sync(w)
			data, err := os.ReadFile(w.Path())
			m.check(err)
			if test.absent != "" && strings.Contains(string(data), test.absent) {
				t.Errorf("%s is in the spec", test.absent)
			}
			if got := codes(w.Problems()); test.problems != got {
				t.Errorf("problems are %q, want %q", got, test.problems)
			}
			var hooks []string
			injected := inject(t, m.dir, "1")
			if injected.Hooks != nil {
				for _, h := range injected.Hooks.CreateContainer {
					hooks = append(hooks, h.Args[1])
				}
			}
			if diff := cmp.Diff(test.hooks, hooks); diff != "" {
				t.Errorf("hooks (-want +got):\n%s", diff)
			}
			for _, mount := range injected.Mounts {
				if _, err := os.Stat(mount.Source); err != nil {
					t.Errorf("the spec mounts a missing file: %v", err)
				}
			}
		})
	}
}

// TestIncompleteMIG checks that a MIG device is left out unless it has its GPU's node and both capabilities, and that
// the others stay.
func TestIncompleteMIG(t *testing.T) {
	for name, change := range map[string]func(m *machine, g *gpu.GPU){
		"one capability missing":   func(m *machine, g *gpu.GPU) { m.remove("dev/nvidia-caps/nvidia-cap14") },
		"capabilities not known":   func(m *machine, g *gpu.GPU) { g.MIG.Devices[1].Nodes = nil },
		"capability without major": func(m *machine, g *gpu.GPU) { m.plain(&g.MIG.Devices[1].Nodes[0]) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, 2)
			m.mig(0, "3g.20gb", "3g.20gb")
			change(m, &m.snapshot.GPUs[0])
			w := m.writer()
			m.sync(w)
			spec, err := ReadSpec(m.dir)
			m.check(err)
			var names []string
			for _, d := range spec.Devices {
				names = append(names, d.Name)
			}
			if diff := cmp.Diff([]string{string(migUUID(0, 0)), string(uuid(1)), "0:0", "1", "all"}, names); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
			if got := codes(w.Problems()); got != "CDI_NODE_MISSING" {
				t.Errorf("problems: %v", w.Problems())
			}
		})
	}
	m := newMachine(t, 2)
	m.mig(0, "3g.20gb")
	m.snapshot.GPUs[0].Nodes = nil
	m.sync(m.writer())
	spec, err := ReadSpec(m.dir)
	m.check(err)
	if _, ok := spec.device("0:0"); ok {
		t.Error("a MIG device without its GPU's node is in the spec")
	}
}

// TestGroups checks that a node that is not open to everyone adds its group to the container.
func TestGroups(t *testing.T) {
	for name, test := range map[string]struct {
		mode    os.FileMode
		gids    []uint32
		version string
	}{
		"group only": {0o660, []uint32{44}, "0.7.0"},
		"everyone":   {0o666, nil, "0.5.0"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, 1)
			if !m.realNodes() || os.Chown(m.path("dev/nvidia0"), 0, 44) != nil {
				t.Skip("skipped: creating device nodes of other groups is not allowed here")
			}
			m.check(os.Chmod(m.path("dev/nvidia0"), test.mode))
			m.sync(m.writer())
			for _, name := range []string{"0", "all"} {
				injected := inject(t, m.dir, name)
				if diff := cmp.Diff(test.gids, injected.Process.User.AdditionalGids); diff != "" {
					t.Errorf("%s: groups (-want +got):\n%s", name, diff)
				}
			}
			spec, err := ReadSpec(m.dir)
			m.check(err)
			if spec.Version != test.version {
				t.Errorf("cdiVersion %s, want %s", spec.Version, test.version)
			}
		})
	}
}

// TestLeftOutOfCached checks that a file that is removed while the search is cached is left out and reported
// immediately.
func TestLeftOutOfCached(t *testing.T) {
	m := newMachine(t, 1)
	w := m.searching(func(string, search) (*specs.ContainerEdits, error) {
		return &specs.ContainerEdits{Mounts: []*specs.Mount{
			{HostPath: m.path("here"), ContainerPath: "/here"},
			{HostPath: m.path("not/here"), ContainerPath: "/not/here"},
			{HostPath: m.path("dangling"), ContainerPath: "/dangling"},
			{HostPath: m.path("again"), ContainerPath: "/here"},
		}}, nil
	})
	m.file("here")
	m.file("again")
	m.link("dangling", "nowhere")
	m.sync(w)
	var mounts []string
	for _, mount := range inject(t, m.dir, "0").Mounts {
		mounts = append(mounts, mount.Source)
	}
	// The legacy runtime hook must stay disabled, whatever nvcdi returns.
	if got := inject(t, m.dir, "0").Process.Env; !slices.Contains(got, "NVIDIA_VISIBLE_DEVICES=void") {
		t.Errorf("environment is %v", got)
	}
	if diff := cmp.Diff([]string{m.path("here")}, mounts); diff != "" {
		t.Error(diff)
	}
	if got := codes(w.Problems()); got != "CDI_PATH_MISSING CDI_PATH_MISSING" {
		t.Errorf("problems: %s", got)
	}
}
