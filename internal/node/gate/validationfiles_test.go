package gate

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gate"
)

func listFiles(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestBringFiles goes through the states forth and back.
func TestBringFiles(t *testing.T) {
	dir := t.TempDir()
	steps := []struct {
		state gate.State
		want  []string
	}{
		{gate.Found, nil}, {gate.DriverReady, []string{"driver-ready"}}, {gate.RuntimeReady, []string{"driver-ready", "toolkit-ready"}},
		{gate.SpecReady, []string{"driver-ready", "toolkit-ready"}}, {gate.Held, []string{"driver-ready", "plugin-ready", "toolkit-ready"}},
		{gate.Validated, []string{"cuda-ready", "driver-ready", "plugin-ready", "toolkit-ready"}}, {gate.Found, nil},
		{gate.Validated, []string{"cuda-ready", "driver-ready", "plugin-ready", "toolkit-ready"}}, {gate.None, nil},
	}
	for i, step := range steps {
		if err := BringFiles(dir, "/", step.state); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, listFiles(t, dir)); diff != "" {
			t.Errorf("step %d, %s (-want +got):\n%s", i, step.state, diff)
		}
	}
}

// TestFilesOfOthers leaves the files of NVIDIA's validator alone, and reports what it cannot write.
func TestFilesOfOthers(t *testing.T) {
	dir := t.TempDir()
	const theirs = "IS_HOST_DRIVER=false\n"
	path := filepath.Join(dir, "driver-ready")
	if err := os.WriteFile(path, []byte(theirs), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, state := range []gate.State{gate.Validated, gate.None} {
		if err := BringFiles(dir, "/opt/driver", state); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != theirs {
			t.Errorf("%s: the file is %q, %v", state, got, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := BringFiles(dir, "/opt/driver", gate.DriverReady); err != nil {
		t.Fatal(err)
	}
	want := "# written by berth-agent\nIS_HOST_DRIVER=true\nNVIDIA_DRIVER_ROOT=/opt/driver\nDRIVER_ROOT_CTR_PATH=/host\nNVIDIA_DEV_ROOT=/opt/driver\nDEV_ROOT_CTR_PATH=/host\n"
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("the file is %q, %v", got, err)
	}
	if err := BringFiles(filepath.Join(dir, "missing"), "/", gate.Validated); err == nil {
		t.Error("no error for a directory that is missing")
	}
	if err := BringFiles("", "/", gate.Validated); err != nil {
		t.Errorf("without a directory: %v", err)
	}
}
