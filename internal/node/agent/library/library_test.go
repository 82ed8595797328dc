package library

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

// run starts a Watch as a new agent does and reports a file twice.
func run(t *testing.T, dir, boot, file string) (logged string, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var log bytes.Buffer
	w := New(Deps{StateDir: dir, BootID: boot, Clock: clock.RealClock{}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	w.Replaced(file)
	w.Replaced(file) // never blocks
	err = w.Run(ctx)
	return log.String(), err
}

// TestReplaced: the agent ends once for each library file and boot.
func TestReplaced(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		for _, file := range []string{"/lib/libnvidia-ml.so.580", "/lib/libnvidia-ml.so.590"} {
			if _, err := run(t, dir, "boot", file); err == nil || !strings.Contains(err.Error(), file) {
				t.Errorf("%s: %v; want that the agent ends for it", file, err)
			}
			log, err := run(t, dir, "boot", file)
			if err != nil || !strings.Contains(log, "before") || !strings.Contains(log, file) {
				t.Errorf("%s again: %v, and the log %q; want that the agent runs on and logs the file", file, err, log)
			}
		}
		if _, err := run(t, dir, "the next boot", "/lib/libnvidia-ml.so.590"); err == nil {
			t.Error("after a boot: the agent runs on, want that it ends")
		}
	})
}

// TestReplacedWithoutRecord: an agent that cannot record that it ends runs on, or it would restart forever.
func TestReplacedWithoutRecord(t *testing.T) {
	tests := map[string]func(t *testing.T, dir string){
		"a damaged file":   func(t *testing.T, dir string) { write(t, filepath.Join(dir, fileName), "{") },
		"no directory":     func(t *testing.T, dir string) { write(t, filepath.Join(dir, "state"), "a file") },
		"a folder instead": func(t *testing.T, dir string) { write(t, filepath.Join(dir, fileName, "file"), "") },
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			prepare(t, dir)
			if name == "no directory" {
				dir = filepath.Join(dir, "state")
			}
			synctest.Test(t, func(t *testing.T) {
				log, err := run(t, dir, "boot", "/lib/libnvidia-ml.so.580")
				if err != nil || !strings.Contains(log, "restart the agent's pod") {
					t.Errorf("%v, and the log %q; want that the agent runs on and logs the fix", err, log)
				}
			})
		})
	}
}

// TestRecordedLater: the record is written again until that succeeds; then the agent ends.
func TestRecordedLater(t *testing.T) {
	dir := t.TempDir()
	blocked := filepath.Join(dir, "state")
	write(t, blocked, "a file")
	synctest.Test(t, func(t *testing.T) {
		time.AfterFunc(30*time.Second, func() {
			if err := os.Remove(blocked); err != nil {
				t.Error(err)
			}
		})
		began := time.Now()
		if _, err := run(t, blocked, "boot", "/lib/libnvidia-ml.so.580"); err == nil || time.Since(began) > time.Minute {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestRemove: nothing is left, and a missing file is not an error.
func TestRemove(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		if _, err := run(t, dir, "boot", "/lib/libnvidia-ml.so.580"); err == nil {
			t.Fatal("the agent runs on, want that it ends")
		}
	})
	for range 2 {
		if err := Remove(dir); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left in %s: %v, %v", dir, left, err)
	}
}
