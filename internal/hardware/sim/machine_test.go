package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
)

func TestCreateRefuses(t *testing.T) {
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "thesis.txt"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	existing := newMachine(t, "t4x4").Dir()
	tests := map[string]struct{ dir, profile, want string }{
		"unknown profile": {t.TempDir(), "h100x88", `did you mean "h100x8"?`},
		"foreign folder":  {foreign, "t4x4", "not empty (it has thesis.txt)"},
		"another machine": {existing, "h100x8", "already holds a t4x4"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := Create(test.dir, test.profile); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Create = %v, want %q", err, test.want)
			}
		})
	}
	if _, err := Open(foreign); err == nil || !strings.Contains(err.Error(), "berth sim create") {
		t.Errorf("Open = %v, want advice", err)
	}
}

func TestCreateAgainKeepsTheMachine(t *testing.T) {
	m := newMachine(t, "t4x4")
	inject(t, m, Fault{GPU: "1", Lost: true})
	again, err := Create(m.Dir(), "t4x4")
	if err != nil {
		t.Fatal(err)
	}
	before, _ := m.Show()
	after, _ := again.Show()
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

// files lists the tree on disk with the names that tree() uses.
func files(t *testing.T, root string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		name, _ := filepath.Rel(root, path)
		target, _ := os.Readlink(path)
		found[name] = fmt.Sprintf("%v %s", info.Mode(), target)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestCrashes interrupts a change after each of its steps and opens the machine again.
func TestCrashes(t *testing.T) {
	tests := map[string]func(t *testing.T, m *Machine, before []byte){
		"state written, nothing else": func(t *testing.T, m *Machine, log []byte) {
			writeFile(t, filepath.Join(m.Root(), eventsFile), log)
			breakTree(t, m)
		},
		"half a line of the log": func(t *testing.T, m *Machine, log []byte) {
			full, _ := os.ReadFile(filepath.Join(m.Root(), eventsFile))
			writeFile(t, filepath.Join(m.Root(), eventsFile), full[:len(log)+10])
			breakTree(t, m)
		},
		"log written, tree half done": func(t *testing.T, m *Machine, _ []byte) { breakTree(t, m) },
		"a temporary file is left": func(t *testing.T, m *Machine, _ []byte) {
			breakTree(t, m)
			writeFile(t, filepath.Join(m.Root(), "proc/.devices.new"), nil)
			os.Remove(filepath.Join(m.Root(), "proc/devices"))
		},
	}
	for name, crash := range tests {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, "t4x4")
			lib := open(t, m)
			inject(t, m, Fault{GPU: "0", XID: 13})
			set := watch(t, lib, gpu(t, lib, 0), gpu(t, lib, 1))
			log, _ := os.ReadFile(filepath.Join(m.Root(), eventsFile))
			inject(t, m, Fault{GPU: "1", XID: 79, Remove: true})
			want := files(t, m.Root())
			wantLog, _ := os.ReadFile(filepath.Join(m.Root(), eventsFile))
			crash(t, m, log)

			if _, err := Open(m.Dir()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, files(t, m.Root())); diff != "" {
				t.Errorf("tree (-want +got):\n%s", diff)
			}
			gotLog, _ := os.ReadFile(filepath.Join(m.Root(), eventsFile))
			if diff := cmp.Diff(string(wantLog), string(gotLog)); diff != "" {
				t.Errorf("log (-want +got):\n%s", diff)
			}
			data, ret := set.Wait(0)
			if ret != nvml.SUCCESS || data.EventData != 79 {
				t.Errorf("the event: %d, %v", data.EventData, ret)
			}
			if more := drain(set); len(more) > 0 {
				t.Errorf("delivered twice: %v", more)
			}
		})
	}
}

func writeFile(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// breakTree leaves the tree as a crash during an update does: the record has no digest, one file has the old content,
// and one is missing.
func breakTree(t *testing.T, m *Machine) {
	t.Helper()
	var record treeRecord
	path := filepath.Join(m.Root(), treeFile)
	if err := readJSON(path, &record); err != nil {
		t.Fatal(err)
	}
	leftover := "proc/driver/nvidia/gpus/" + m.hw.GPUs[1].PCI + "/information"
	record.Digest, record.Paths = "", append(record.Paths, leftover)
	if err := writeJSON(path, record); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(filepath.Join(m.Root(), leftover)), 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(m.Root(), leftover), nil)
	if err := os.Remove(filepath.Join(m.Root(), "proc/driver/nvidia/version")); err != nil {
		t.Fatal(err)
	}
}

// TestCreateAfterCrash checks that an incomplete machine does not open, and that Create completes it.
func TestCreateAfterCrash(t *testing.T) {
	m := newMachine(t, "t4x4")
	want := files(t, m.Root())
	for _, name := range []string{stateFile, "proc/devices", treeFile} {
		if err := os.Remove(filepath.Join(m.Root(), name)); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(m.Dir()); err == nil {
			t.Error("Open accepts half a machine")
		}
	}
	again, err := CreateWith(m.Dir(), "t4x4", Options{Seed: "test", NoDeviceNodes: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, files(t, again.Root())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestConcurrentChanges checks that no change of any process is lost, and that readers see complete states.
func TestConcurrentChanges(t *testing.T) {
	m := newMachine(t, "v100x8-hybrid-mesh")
	lib := open(t, m)
	set := watch(t, lib, gpu(t, lib, 0), gpu(t, lib, 1), gpu(t, lib, 2), gpu(t, lib, 3))
	const writers, each = 4, 10
	var group, readers sync.WaitGroup
	stop := make(chan struct{})
	readers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := m.Show(); err != nil {
					t.Error(err)
				}
				if _, ret := gpu(t, lib, 5).GetNvLinkState(0); ret != nvml.SUCCESS {
					t.Error(ret)
				}
			}
		}
	})
	for w := range writers {
		group.Go(func() {
			own, err := Open(m.Dir())
			if err != nil {
				t.Error(err)
				return
			}
			for i := range each {
				if err := own.Inject(Fault{GPU: fmt.Sprint(w), XID: uint64(100 + i), ECC: 1}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	close(stop)
	readers.Wait()
	description, err := m.Show()
	if err != nil {
		t.Fatal(err)
	}
	for w := range writers {
		if want := fmt.Sprintf("%d double-bit ECC", each); !strings.Contains(strings.Join(description.GPUs[w].Faults, ";"), want) {
			t.Errorf("GPU %d: %v, want %s", w, description.GPUs[w].Faults, want)
		}
	}
	if got := drain(set); len(got) != 2*writers*each { // the XID, and XID 48 for the ECC error
		t.Errorf("%d XIDs, want %d", len(got), 2*writers*each)
	}
	events, _, _ := readEvents(filepath.Join(m.Root(), eventsFile), 0)
	for i, q := range events {
		if q.event.Seq != uint64(i+1) {
			t.Fatalf("line %d of the log has number %d", i+1, q.event.Seq)
		}
	}
}
