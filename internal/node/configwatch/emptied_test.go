package configwatch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	shared   = "resourceName: nvidia.com/shared\n"
	defaults = "apiVersion: berth.dev/v1alpha1\nkind: AgentConfig\n"
)

// TestEmptiedIsRefused: a text without anything does not replace what was in force, whoever emptied it. Defaults are asked for by a kind.
func TestEmptiedIsRefused(t *testing.T) {
	const name = "berth-system/configs"
	fromFile := func(w *world, text string) { w.write(text) }
	fromKey := func(w *world, text string) { w.configMap("configs", map[string]string{"default": text}) }
	tests := map[string]struct {
		name   string // of the ConfigMap
		before func(*world, string)
		empty  func(*world)
		want   string
	}{
		"a file":            {"", fromFile, func(w *world) { w.write("") }, "agent.yaml: it is empty"},
		"a file of blanks":  {"", fromFile, func(w *world) { w.write(" \n\n  \n") }, "it is empty"},
		"a file of remarks": {"", fromFile, func(w *world) { w.write("# gpus: []\n---\n# none\n") }, "it is empty"},
		"a file that is gone": {"", fromFile, func(w *world) {
			if err := os.Remove(w.file); err != nil {
				w.t.Fatal(err)
			}
		}, "no such file"},
		"a key": {name, fromKey, func(w *world) { fromKey(w, "") }, name + "/default: it is empty"},
		"a key that is gone, and another one left": {name, fromKey, func(w *world) {
			w.configMap("configs", map[string]string{"test": "resourceName: nvidia.com/test"})
		}, "has only the key test, and not the one in force, which is " + name + "/default"},
		"the ConfigMap": {name, fromKey, func(w *world) {
			if err := w.api.Resource(configMaps()).Namespace("berth-system").Delete(w.t.Context(), "configs", metav1.DeleteOptions{}); err != nil {
				w.t.Fatal(err)
			}
		}, "does not exist any more"},
		"the key that a label names": {name, func(w *world, text string) {
			w.configMap("configs", map[string]string{"default": text, "empty": "# nothing\n"})
		}, func(w *world) { w.label(map[string]string{LabelConfig: "empty"}) }, name + "/empty: it is empty"},
	}
	for title, test := range tests {
		t.Run(title, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.name = test.name
				w.label(nil)
				test.before(w, shared)
				watcher, stop := w.start()
				w.await(watcher, "the settings", named("nvidia.com/shared"))
				test.empty(w)
				refused := func(s State) bool { return s.Refused != nil }
				state := w.await(watcher, "the refusal", func(s State) bool { return refused(s) || s.Config.ResourceName != "nvidia.com/shared" })
				if !refused(state) || !strings.Contains(state.Refused.Error(), test.want) || state.Config.ResourceName != "nvidia.com/shared" {
					t.Fatalf("refused with %v, in force is %s; want %q and the last good one", state.Refused, state.Config.ResourceName, test.want)
				}
				stop()
				again, stop := w.start()
				if state := w.await(again, "the refusal after a restart", refused); state.Config.ResourceName != "nvidia.com/shared" || state.Waiting {
					t.Errorf("after a restart %s is in force, waiting %v", state.Config.ResourceName, state.Waiting)
				}
				w.label(nil)
				test.before(w, defaults)
				w.await(again, "the defaults, which a kind asks for", named("nvidia.com/gpu"))
				stop()
			})
		})
	}
}

// TestEmptyFromTheStart: where nothing was in force, an empty text means the defaults, also after a restart; with the record lost,
// something may have been.
func TestEmptyFromTheStart(t *testing.T) {
	w := newWorld(t)
	w.write("# Nothing yet.\n")
	for range 2 {
		watcher, err := w.open()
		if err != nil || !named("nvidia.com/gpu")(watcher.Current()) || watcher.Current().Pending {
			t.Fatalf("%+v, %v", watcher.Current(), err)
		}
	}
	if err := os.WriteFile(filepath.Join(w.dir, "state", KeptFile), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.open(); err == nil || !strings.Contains(err.Error(), "it is empty") || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("with the record lost: %v", err)
	}
}

// TestEditInPlace: a file that is written in parts is read when it has come to rest, although each part is a valid file; also at a start.
func TestEditInPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.write("resourceName: nvidia.com/a\n")
		watcher, stop := w.start()
		changes := watcher.Subscribe()
		<-changes.C()
		put := func(text string) {
			if err := os.WriteFile(w.file, []byte(text), 0o600); err != nil {
				t.Error(err)
			}
		}
		edit := func(name string) {
			for _, part := range []string{"", "apiVersion: berth.dev/v1alpha1\n", defaults, defaults + "resourceName: nvidia.com/" + name + "\n"} {
				put(part)
				time.Sleep(rest - time.Millisecond)
			}
		}
		time.Sleep(poll - rest) // The next look is in the middle of the edit.
		edited := time.Now()
		edit("b")
		<-changes.C()
		if state := watcher.Current(); !named("nvidia.com/b")(state) {
			t.Errorf("the first change is %s, refused %v", state.Config.ResourceName, state.Refused)
		}
		if took := time.Since(edited); took > 3*rest+time.Second {
			t.Errorf("the end of the edit was in force %s after its beginning", took)
		}
		changes.Close()
		stop()
		var editor sync.WaitGroup
		editor.Go(func() { edit("c") })
		synctest.Wait()
		watcher, err := w.open()
		if editor.Wait(); err != nil || watcher.given.ResourceName != "nvidia.com/c" {
			t.Errorf("a start during the edit: %v, %v", watcher, err)
		}
		// Without an end of the edit, the start goes on with the last good one.
		opened := make(chan struct{})
		editor.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-opened:
					return
				case <-time.After(rest/2 + time.Millisecond): // Never when the file is read.
					put(fmt.Sprintf("resourceName: nvidia.com/x%d\n", i))
				}
			}
		})
		watcher, err = w.open()
		close(opened)
		if editor.Wait(); err != nil || watcher.Current().Config.ResourceName != "nvidia.com/b" || watcher.Current().Refused != nil {
			t.Errorf("a start during an endless edit: %+v, %v", watcher.Current(), err)
		}
	})
}

// notFiles make what is no file.
func notFiles() map[string]func(string) error {
	return map[string]func(string) error{
		"a pipe":   func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a folder": func(path string) error { return os.Mkdir(path, 0o700) },
	}
}

// TestNotAFile: a pipe or a folder of the name of the file is an error like a missing one.
func TestNotAFile(t *testing.T) {
	for name, put := range notFiles() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.write(shared)
			if _, err := w.open(); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(w.file); err != nil {
				t.Fatal(err)
			}
			if err := put(w.file); err != nil {
				t.Fatal(err)
			}
			watcher, err := w.open()
			if err != nil || watcher.Current().Refused == nil || watcher.Current().Config.ResourceName != "nvidia.com/shared" {
				t.Errorf("%+v, %v", watcher.Current(), err)
			}
		})
	}
}

// TestEditedBeforeTheStart: what was edited while no agent ran is in force as soon as the hardware is known; the last good configuration
// is marked as about to be replaced until then.
func TestEditedBeforeTheStart(t *testing.T) {
	w := newWorld(t)
	w.write("resourceName: nvidia.com/a\n")
	if _, err := w.open(); err != nil {
		t.Fatal(err)
	}
	w.write("resourceName: nvidia.com/b\n")
	hardware := &judge{changed: make(chan struct{}, 1)}
	w.judge = hardware
	watcher, stop := w.start()
	defer stop()
	watcher.AwaitDecision(t.Context())
	if state := watcher.Current(); !state.Pending || state.Config.ResourceName != "nvidia.com/a" {
		t.Errorf("without hardware: pending %v, %s", state.Pending, state.Config.ResourceName)
	}
	hardware.look(true, "")
	watcher.AwaitDecision(t.Context())
	if state := watcher.Current(); state.Pending || !named("nvidia.com/b")(state) {
		t.Errorf("with hardware: pending %v, %s", state.Pending, state.Config.ResourceName)
	}
}

// TestDecisionWithoutTheAPI: a start with the API server away goes on after AnswerTimeout.
func TestDecisionWithoutTheAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.name = "berth-system/configs"
		w.label(nil)
		w.configMap("configs", map[string]string{"default": "resourceName: nvidia.com/a"})
		watcher, stop := w.start()
		watcher.AwaitDecision(t.Context())
		if state := watcher.Current(); !named("nvidia.com/a")(state) {
			t.Errorf("the first decision is %+v", state)
		}
		stop()
		w.away()
		began := time.Now()
		watcher, stop = w.start()
		watcher.AwaitDecision(t.Context())
		if took := time.Since(began); took < AnswerTimeout || watcher.Current().Config.ResourceName != "nvidia.com/a" {
			t.Errorf("after %s: %+v", took, watcher.Current())
		}
		stop()
	})
}

// TestUnsavedIsWrittenAgain: what could not be stored is in force, counts as having been in force, and is stored when that is possible.
func TestUnsavedIsWrittenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.name = "berth-system/configs"
		w.own("uid-1", map[string]string{LabelMIG: "two"})
		w.configMap("configs", map[string]string{"default": "migConfigMap: berth-system/layouts\nresourceName: nvidia.com/a\n"})
		w.configMap("layouts", map[string]string{"config.yaml": twoLayout})
		blocked := filepath.Join(w.dir, "state")
		if err := os.WriteFile(blocked, nil, 0o600); err != nil { // As good as a full disk.
			t.Fatal(err)
		}
		watcher, stop := w.start()
		state := w.await(watcher, "three files that cannot be written", func(s State) bool { return len(s.Unsaved) == 3 })
		if state.Config.ResourceName != "nvidia.com/a" || len(state.MIG.Layouts) != 1 {
			t.Errorf("in force: %s, %d layouts", state.Config.ResourceName, len(state.MIG.Layouts))
		}
		// Without its record: neither the key nor the layouts are forgotten when they are gone.
		w.configMap("layouts", nil)
		w.configMap("configs", nil)
		state = w.await(watcher, "the refusals", func(s State) bool { return s.Refused != nil && s.MIG.Err != nil })
		if state.Config.ResourceName != "nvidia.com/a" || len(state.MIG.Layouts) != 1 {
			t.Errorf("in force: %s, %d layouts", state.Config.ResourceName, len(state.MIG.Layouts))
		}
		if err := os.Remove(blocked); err != nil {
			t.Fatal(err)
		}
		w.await(watcher, "the files", func(s State) bool { return len(s.Unsaved) == 0 })
		stop()
		again, err := w.open()
		if err != nil || again.Current().Config.ResourceName != "nvidia.com/a" || len(again.stored.labels) != 1 || again.stored.layouts.Data != twoLayout {
			t.Errorf("after a restart: %+v, %v", again.Current(), err)
		}
	})
}
