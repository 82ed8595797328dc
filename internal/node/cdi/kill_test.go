package cdi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"
)

// victimEnv makes this test binary a writer that is killed at a step.
const victimEnv = "BERTH_TEST_CDI_VICTIM"

type victim struct {
	Step     string
	Root     string
	Dir      string
	Hook     string
	Snapshot *gpu.Snapshot
}

func runVictim() {
	text, ok := os.LookupEnv(victimEnv)
	if !ok {
		return
	}
	var v victim
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	m := &machine{root: v.Root, dir: v.Dir, hook: v.Hook}
	w := m.writer()
	w.step = func(name string) {
		if name == v.Step {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	_, err := w.Sync(context.Background(), v.Snapshot, Extras{})
	fmt.Println(err)
	os.Exit(0)
}

// TestKilledAtEachStep checks that, at whichever step the agent is killed, runtimes find the old spec or the new one,
// and the next agent writes the new one.
func TestKilledAtEachStep(t *testing.T) {
	for step, want := range map[string]string{
		"opened": "old", "half written": "old", "written": "old", "checked": "old", "replaced": "new",
		"none": "new",
	} {
		t.Run(step, func(t *testing.T) {
			m := newMachine(t, 2)
			w := m.writer()
			m.sync(w)
			specs := map[string][]byte{}
			specs["old"], _ = os.ReadFile(w.Path())
			m.addGPU(2)
			specs["new"] = m.render(w)

			text, err := json.Marshal(victim{step, m.root, m.dir, m.hook, m.snapshot})
			m.check(err)
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), victimEnv+"="+string(text))
			out, err := cmd.CombinedOutput()
			if killed := cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled(); killed != (step != "none") {
				t.Fatalf("killed: %v (%v)\n%s", killed, err, out)
			}

			found, err := os.ReadFile(w.Path())
			m.check(err)
			if !bytes.Equal(found, specs[want]) {
				t.Errorf("the spec is not the %s one:\n%s", want, found)
			}
			cache, err := cdilib.NewCache(cdilib.WithSpecDirs(m.dir), cdilib.WithAutoRefresh(false))
			m.check(err)
			if errs := cache.GetErrors(); len(errs) > 0 {
				t.Errorf("a runtime cannot read the directory: %v", errs)
			}
			// Present runtimes watch the folder for renames, so the temporary file must be in it.
			left, _ := filepath.Glob(filepath.Join(m.dir, ".*"))
			if torn := want == "old"; torn != (len(left) == 1) {
				t.Errorf("temporary files in the CDI directory: %v", left)
			}
			if changed := m.sync(w); changed != (want == "old") {
				t.Errorf("the next sync wrote: %v", changed)
			}
			if left, _ = filepath.Glob(filepath.Join(m.dir, "*.json")); len(left) != 1 {
				t.Errorf("specs in the directory: %v", left)
			}
		})
	}
}
