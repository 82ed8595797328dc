package filewatch_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/node/filewatch"
)

func TestWatch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	file, other := filepath.Join(dir, "file"), filepath.Join(dir, "b", "file")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(path string) { t.Helper(); must(os.WriteFile(path, nil, 0o600)) }
	changed := filewatch.Watch(t.Context(), filewatch.Deps{
		Files: []string{file, other}, Ops: filewatch.Gone, Pause: 10 * time.Millisecond, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
	})
	await := func(what string) {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s was not signalled", what)
		}
	}
	await("the start")
	must(os.MkdirAll(filepath.Dir(other), 0o700))
	await("a folder that is there") // What was written before it was watched may have been missed.
	for range 2 {
		write(file + ".new")
		must(os.Rename(file+".new", file)) // The writer's own change.
		write(filepath.Join(dir, "another"))
		select {
		case <-changed:
			t.Error("a change that is not asked for was signalled")
		case <-time.After(30 * time.Millisecond):
		}
		must(os.Remove(file))
		await("a removal")
	}
	write(other)
	must(os.Remove(other))
	await("a removal in the other folder")
	must(os.RemoveAll(dir))
	await("the removal of the folder")
	must(os.MkdirAll(filepath.Dir(other), 0o700))
	write(file)
	await("the next folder")
	must(os.Remove(file))
	await("a removal in the next folder")
}
