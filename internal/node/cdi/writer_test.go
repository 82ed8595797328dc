package cdi

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	testclock "k8s.io/utils/clock/testing"
	"tags.cncf.io/container-device-interface/specs-go"
)

func TestMain(m *testing.M) {
	runVictim()
	goleak.VerifyTestMain(m)
}

func TestSyncWritesOnlyWhatDiffers(t *testing.T) {
	m := newMachine(t, 2)
	w := m.writer()
	if !m.sync(w) {
		t.Fatal("the first sync wrote nothing")
	}
	before, err := os.Stat(w.Path())
	m.check(err)
	if mode := before.Mode().Perm(); mode != 0o644 {
		t.Errorf("mode is %o", mode)
	}
	if m.sync(w) || m.sync(m.writer()) {
		t.Error("written again although nothing changed")
	}
	after, err := os.Stat(w.Path())
	m.check(err)
	if !os.SameFile(before, after) {
		t.Error("the file was replaced although nothing changed")
	}
	m.addGPU(2)
	if !m.sync(w) {
		t.Error("a new GPU was not written")
	}
	m.check(os.WriteFile(w.Path(), []byte("{}"), 0o644))
	if !m.sync(w) {
		t.Error("a file changed by another program was not corrected")
	}
	m.check(os.RemoveAll(m.dir))
	if !m.sync(w) {
		t.Error("a removed directory was not made again")
	}
	entries, err := os.ReadDir(m.dir)
	m.check(err)
	if len(entries) != 1 {
		t.Errorf("there is more than the spec: %v", entries)
	}
}

// TestSyncKeeps checks that the last spec stays when there is nothing to write, or when it cannot be written.
func TestSyncKeeps(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(m *machine)
		wantErr string
		want    string // part of the problem
	}{
		"driver gone": {
			change: func(m *machine) { m.snapshot = &gpu.Snapshot{} },
			want:   "no NVIDIA driver answers",
		},
		"no GPU": {
			change: func(m *machine) { m.snapshot.GPUs = nil },
			want:   "no GPU of this node has a device node",
		},
		"all nodes removed": {
			change: func(m *machine) { m.remove("dev") },
			want:   "no GPU of this node has a device node",
		},
		"driver files are of another version": {
			change:  func(m *machine) { m.snapshot.Vendors[0].Driver.Version = "999.99.99" },
			wantErr: "find the files of driver 999.99.99",
			want:    "find the files of driver 999.99.99",
		},
		"directory is a file": {
			change: func(m *machine) {
				m.check(os.RemoveAll(m.dir))
				m.check(os.WriteFile(m.dir, nil, 0o644))
			},
			wantErr: "make CDI directory",
			want:    "make CDI directory",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, 2)
			w := m.writer()
			m.sync(w)
			before, _ := os.ReadFile(w.Path())
			test.change(m)
			// The files that the change left, if any.
			if data, err := os.ReadFile(w.Path()); err != nil {
				before = data
			}

			changed, err := w.Sync(t.Context(), m.snapshot, Extras{})
			if changed {
				t.Error("it reports that it wrote")
			}
			if text := errorText(err); (test.wantErr == "") != (err == nil) || !strings.Contains(text, test.wantErr) {
				t.Errorf("error is %q, want %q", text, test.wantErr)
			}
			problems := w.Problems()
			if i := len(problems) - 1; i < 0 || problems[i].Code != "CDI_SPEC_KEPT" || !strings.Contains(problems[i].Message, test.want) {
				t.Errorf("problems: %v, want the last to be CDI_SPEC_KEPT with %q", problems, test.want)
			}
			if after, _ := os.ReadFile(w.Path()); !bytes.Equal(before, after) {
				t.Error("the last spec was touched")
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestRenderWithoutDevices(t *testing.T) {
	m := newMachine(t, 0)
	w := m.writer()
	if _, err := w.Render(t.Context(), m.snapshot, Extras{}); !errors.Is(err, errNoDevices) {
		t.Errorf("no GPUs: %v", err)
	}
	if _, err := w.Render(t.Context(), &gpu.Snapshot{}, Extras{}); !errors.Is(err, errNoDriver) {
		t.Errorf("no driver: %v", err)
	}
	if m.sync(w) {
		t.Error("a spec without devices was written, which no runtime loads")
	}
	if _, err := ReadSpec(m.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadSpec of nothing: %v", err)
	}
}

// TestSearchIsCached checks that nvcdi runs once per change of the driver or its folders.
func TestSearchIsCached(t *testing.T) {
	m := newMachine(t, 2)
	searches := 0
	w := m.searching(func(version string, real search) (*specs.ContainerEdits, error) {
		searches++
		return real(version)
	})
	want := func(n int, what string) {
		t.Helper()
		m.sync(w)
		m.sync(w)
		if searches != n {
			t.Errorf("%s: searched %d times, want %d", what, searches, n)
		}
	}
	want(1, "nothing changed")
	m.addGPU(2)
	want(1, "a GPU was added")
	m.file(libFolder + "/libnvidia-new.so." + driverVersion)
	want(2, "a library was added")
	if !strings.Contains(string(m.render(w)), "libnvidia-new") {
		t.Error("the new library is not in the spec")
	}
	m.remove("run/nvidia-persistenced")
	want(3, "a socket went")
	m.file("run/nvidia-persistenced/socket")
	want(4, "a socket came")
	m.file("etc/vulkan/icd.d/nvidia_icd.json")
	want(5, "a folder came")
}

// TestSearchHangs checks that a file system that hangs delays a call only until its deadline, and that no second search
// is started beside the first.
func TestSearchHangs(t *testing.T) {
	m := newMachine(t, 1)
	searches := 0
	entered, release := make(chan struct{}), make(chan struct{})
	w := m.searching(func(version string, real search) (*specs.ContainerEdits, error) {
		searches++
		close(entered)
		<-release
		return real(version)
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-entered; cancel() }()
	if _, err := w.Sync(ctx, m.snapshot, Extras{}); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), m.root) {
		t.Errorf("error is %v, want one that names the driver root and the end of the context", err)
	}
	if _, err := w.Sync(ctx, m.snapshot, Extras{}); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "earlier search") {
		t.Errorf("error is %v, want one about the earlier search that still runs", err)
	}
	close(release)
	m.sync(w)
	if searches != 1 {
		t.Errorf("searched %d times: the result of the first search was thrown away", searches)
	}
}

// TestSearchPanics checks that a driver library that makes nvcdi panic results in an error.
func TestSearchPanics(t *testing.T) {
	m := newMachine(t, 1)
	w := m.searching(func(string, search) (*specs.ContainerEdits, error) { panic("bad library") })
	if _, err := w.Sync(t.Context(), m.snapshot, Extras{}); err == nil || !strings.Contains(err.Error(), "bad library") {
		t.Errorf("error is %v", err)
	}
}

// TestHostRoot checks that the spec has the host's paths although an agent in a container sees the host below a folder.
func TestHostRoot(t *testing.T) {
	m := newMachine(t, 1)
	deps := m.edits()
	deps.HostRoot = m.root
	w := New(m.depsOf(deps))
	// A link of the host: absolute, from the host's root.
	m.remove("run/nvidia-persistenced")
	m.file("var/lib/sockets/socket")
	m.link("run/nvidia-persistenced", "/var/lib/sockets")
	data := string(m.render(w))
	if strings.Contains(data, m.root) {
		t.Errorf("the spec has paths of this container:\n%s", data)
	}
	m.sync(w)
	spec, err := ReadSpec(m.dir)
	m.check(err)
	edits, err := spec.injected("0")
	m.check(err)
	if got := edits.Nodes[len(edits.Nodes)-1]; got.HostPath != "/dev/nvidia0" {
		t.Errorf("node is %+v", got)
	}
	i := slices.IndexFunc(edits.Mounts, func(mount Mount) bool { return strings.Contains(mount.ContainerPath, "libcuda") })
	if want := "/" + libFolder + "/libcuda.so." + driverVersion; i < 0 || edits.Mounts[i].HostPath != want {
		t.Errorf("libcuda is not mounted from %s: %+v", want, edits.Mounts)
	}
	hook := edits.Hooks[0]
	if hook.Path != "/opt/berth/berth-cdi-hook-0123456789ab" {
		t.Errorf("hook is %s", hook.Path)
	}
	i = slices.IndexFunc(edits.Hooks, func(h Hook) bool { return h.Args[1] == "update-ldcache" })
	if i < 0 || edits.Hooks[i].Args[3] != "/sbin/ldconfig" {
		t.Errorf("ldconfig is not the host's: %+v", edits.Hooks)
	}

	// A host without ldconfig.
	m.remove("sbin/ldconfig")
	m.sync(w)
	data = string(m.render(w))
	if strings.Contains(data, "update-ldcache") || codes(w.Problems()) != "CDI_LDCONFIG_MISSING" {
		t.Errorf("without ldconfig: problems are %v", w.Problems())
	}
}

func TestLeftoversAreRemoved(t *testing.T) {
	m := newMachine(t, 1)
	clock := testclock.NewFakePassiveClock(time.Now())
	deps := m.deps()
	deps.Clock = clock
	w := New(deps)
	m.check(os.MkdirAll(m.dir, 0o755))
	for _, name := range []string{"." + FileName + "12345", "." + FileName, "other.json"} {
		m.check(os.WriteFile(filepath.Join(m.dir, name), []byte("{"), 0o644))
	}
	m.sync(w)
	clock.SetTime(time.Now().Add(2 * leftoverAge))
	names := func() (list []string) {
		entries, err := os.ReadDir(m.dir)
		m.check(err)
		for _, e := range entries {
			list = append(list, e.Name())
		}
		return list
	}
	if diff := cmp.Diff([]string{"." + FileName, "." + FileName + "12345", FileName, "other.json"}, names()); diff != "" {
		t.Errorf("young leftovers may be those of a write that goes on:\n%s", diff)
	}
	m.sync(w)
	if diff := cmp.Diff([]string{"." + FileName, FileName, "other.json"}, names()); diff != "" {
		t.Error(diff)
	}
}

func TestRemove(t *testing.T) {
	m := newMachine(t, 1)
	w := m.writer()
	m.file("opt/berth/berth-cdi-hook-fedcba987654") // of an older agent
	m.file("opt/berth/.berth-cdi-hook-fedcba98765477")
	m.file("opt/berth/berth-cdi-hook")
	m.sync(w)
	for range 2 { // the second call has nothing left to remove
		m.check(w.Remove())
		m.check(RemoveHooks(m.path("opt/berth")))
	}
	left, err := filepath.Glob(m.path("opt/berth/*"))
	m.check(err)
	if diff := cmp.Diff([]string{m.path("opt/berth/berth-cdi-hook")}, left); diff != "" {
		t.Errorf("hooks left (-want +got):\n%s", diff)
	}
	if entries, _ := os.ReadDir(m.dir); len(entries) != 0 {
		t.Errorf("left in the CDI directory: %v", entries)
	}
}
