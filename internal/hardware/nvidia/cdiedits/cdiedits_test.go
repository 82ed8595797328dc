package cdiedits

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// newSource returns a Source of a driver root that has ldconfig and a hook program, whose search returns the given
// edits.
func newSource(t *testing.T, deps Deps, found *specs.ContainerEdits) (*Source, string) {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"sbin/ldconfig", "opt/hook"} {
		file := filepath.Join(root, program)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	deps.DriverRoot, deps.HostRoot, deps.HookPath = root, root, "/opt/hook"
	if deps.Search == nil {
		deps.Search = func(string) (*specs.ContainerEdits, error) { return found, nil }
	}
	return New(deps), root
}

func hook(name string) *specs.Hook {
	return &specs.Hook{HookName: "createContainer", Path: "/opt/hook", Args: []string{"hook", name}}
}

// TestCommon checks that ldconfig is the host's, that the legacy runtime's hook is disabled, and that the search's
// result is not changed, so that a second call returns the same.
func TestCommon(t *testing.T) {
	found := &specs.ContainerEdits{Env: []string{"A=1"}, Hooks: []*specs.Hook{hook("create-symlinks"), hook("update-ldcache")}}
	s, root := newSource(t, Deps{}, found)
	for range 2 {
		edits, missing, err := s.Common(gpu.Driver{Version: "1.2"})
		if err != nil || len(missing) != 0 {
			t.Fatalf("missing %v, %v", missing, err)
		}
		if want := []string{"A=1", "NVIDIA_VISIBLE_DEVICES=void"}; !slices.Equal(edits.Env, want) {
			t.Errorf("environment %v, want %v", edits.Env, want)
		}
		if want := []string{"hook", "update-ldcache", "--ldconfig-path", "/sbin/ldconfig"}; len(edits.Hooks) != 2 || !slices.Equal(edits.Hooks[1].Args, want) {
			t.Errorf("hooks %+v, want the last with %v", edits.Hooks, want)
		}
	}
	if err := os.Remove(filepath.Join(root, "sbin/ldconfig")); err != nil {
		t.Fatal(err)
	}
	edits, missing, err := s.Common(gpu.Driver{Version: "1.2"})
	if err != nil || len(edits.Hooks) != 1 || len(missing) != 1 || missing[0].Code != "CDI_LDCONFIG_MISSING" {
		t.Errorf("without ldconfig: hooks %v, missing %v, %v", edits.Hooks, missing, err)
	}
	if err := os.Remove(filepath.Join(root, "opt/hook")); err != nil {
		t.Fatal(err)
	}
	edits, missing, err = s.Common(gpu.Driver{Version: "1.2"})
	if err != nil || len(edits.Hooks) != 0 || len(missing) != 1 || missing[0].Code != "CDI_HOOK_MISSING" {
		t.Errorf("without the hook program: hooks %v, missing %v, %v", edits.Hooks, missing, err)
	}
	if link := s.Links([]string{"a::b"}); link != nil {
		t.Errorf("without the hook program, links are created by %+v", link)
	}
}

// TestSearches checks that there is one search per driver version and per change of a folder, and that the next call
// searches again after an error.
func TestSearches(t *testing.T) {
	searches, fail := 0, error(nil)
	s, root := newSource(t, Deps{Search: func(string) (*specs.ContainerEdits, error) {
		searches++
		return &specs.ContainerEdits{}, fail
	}}, nil)
	want := func(n int, version, what string) {
		t.Helper()
		for range 2 {
			if _, _, err := s.Common(gpu.Driver{Version: version}); !errors.Is(err, fail) {
				t.Errorf("%s: %v, want %v", what, err, fail)
			}
		}
		if searches != n {
			t.Errorf("%s: searched %d times, want %d", what, searches, n)
		}
	}
	want(1, "1.2", "at first")
	want(2, "1.3", "another driver")
	if err := os.MkdirAll(filepath.Join(root, "usr/share/nvidia"), 0o755); err != nil {
		t.Fatal(err)
	}
	want(3, "1.3", "another folder")
	if _, _, err := s.Common(gpu.Driver{Version: "1.3"}); err != nil || searches != 3 {
		t.Errorf("searched %d times, %v: nothing has changed", searches, err)
	}
	fail = errors.New("no library")
	want(5, "1.4", "after an error")
}

func TestSearchErrors(t *testing.T) {
	for want, search := range map[string]func(string) (*specs.ContainerEdits, error){
		"nvcdi panicked: bad library": func(string) (*specs.ContainerEdits, error) { panic("bad library") },
		"find the files of driver 1.2 below ": func(string) (*specs.ContainerEdits, error) {
			return nil, errors.New("no library")
		},
	} {
		s, _ := newSource(t, Deps{Search: search}, nil)
		if _, _, err := s.Common(gpu.Driver{Version: "1.2"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

func TestPartitionNodes(t *testing.T) {
	device := func(p string) gpu.DeviceNode { return gpu.DeviceNode{Path: p} }
	g := &gpu.GPU{Nodes: []gpu.DeviceNode{device("/dev/nvidia0"), device("/dev/dri/card0")}}
	caps := []gpu.DeviceNode{device("/dev/nvidia-caps/nvidia-cap3"), device("/dev/nvidia-caps/nvidia-cap4")}
	s := New(Deps{})
	for name, test := range map[string]struct {
		g         *gpu.GPU
		partition gpu.MIGDevice
		want      []string
	}{
		"compute":              {g, gpu.MIGDevice{Partition: gpu.Partition{Profile: "1g.10gb", Nodes: caps}}, []string{"/dev/nvidia0", caps[0].Path, caps[1].Path}},
		"graphics":             {g, gpu.MIGDevice{Partition: gpu.Partition{Profile: "1g.10gb+gfx", Nodes: caps}}, []string{"/dev/nvidia0", caps[0].Path, caps[1].Path, "/dev/dri/card0"}},
		"without capabilities": {g, gpu.MIGDevice{Partition: gpu.Partition{Profile: "1g.10gb"}}, nil},
		"without its GPU":      {&gpu.GPU{}, gpu.MIGDevice{Partition: gpu.Partition{Profile: "1g.10gb", Nodes: caps}}, nil},
	} {
		var got []string
		for _, node := range s.PartitionNodes(test.g, &test.partition) {
			got = append(got, node.Path)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func TestLinks(t *testing.T) {
	s, _ := newSource(t, Deps{}, nil)
	made := s.Links([]string{"../card0::/dev/dri/by-path/x"})
	if want := []string{"hook", "create-symlinks", "--link", "../card0::/dev/dri/by-path/x"}; made == nil || !slices.Equal(made.Args, want) {
		t.Errorf("hook %+v, want arguments %v", made, want)
	}
	for _, disabled := range []string{"create-symlinks", "all"} {
		if s, _ := newSource(t, Deps{DisabledHooks: []string{disabled}}, nil); s.Links([]string{"a::b"}) != nil {
			t.Errorf("a hook is returned although %s is disabled", disabled)
		}
	}
}
