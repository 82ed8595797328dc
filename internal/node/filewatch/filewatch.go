// Package filewatch signals changes of files that other programs of the node write or remove.
//
// It guarantees that a change is signalled although the folder was removed or made again in between, at the latest Deps.Pause after the
// folder is there. A node can run out of inotify instances: then it logs that once and signals nothing, so a caller also looks now and
// then. It opens no file. It must not import anything of Berth but signal.
package filewatch

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/node/signal"
)

// Deps are the dependencies of Watch.
type Deps struct {
	// Files are the paths of the files, and Ops what of them is signalled.
	Files []string
	Ops   fsnotify.Op
	// Pause is the time until a folder that does not exist, or cannot be watched, is tried again.
	Pause time.Duration
	Clock clock.Clock
	Log   *slog.Logger
}

// Gone are the changes of a file that its only writer replaces by a rename, when another program changes or removes it.
const Gone = fsnotify.Write | fsnotify.Remove | fsnotify.Rename

// Any are all changes.
const Any = Gone | fsnotify.Create | fsnotify.Chmod

// Watch signals changes until ctx ends, at first, also when a folder was removed, and when it can be watched again.
func Watch(ctx context.Context, deps Deps) <-chan struct{} {
	w := &watch{Deps: deps, changed: signal.New()}
	for _, file := range deps.Files {
		w.folders = append(w.folders, filepath.Dir(file))
	}
	slices.Sort(w.folders)
	w.folders = slices.Compact(w.folders)
	watcher := w.open()
	go func() {
		for {
			if watcher != nil && w.follow(ctx, watcher) {
				w.changed.Set()
			}
			select {
			case <-ctx.Done():
				return
			case <-deps.Clock.After(deps.Pause):
			}
			if watcher = w.open(); watcher != nil {
				w.changed.Set() // For what has changed before.
			}
		}
	}()
	return w.changed.C()
}

type watch struct {
	Deps
	folders []string
	changed *signal.Signal
	// logged is the last error that was logged.
	logged string
}

// open returns a watcher of the folders and of their parents; nil while one of them does not exist or cannot be watched.
func (w *watch) open() *fsnotify.Watcher {
	for _, folder := range w.folders {
		if _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	watcher, err := fsnotify.NewWatcher()
	for _, folder := range w.folders {
		if err == nil {
			// Not every kernel reports the removal of the folder itself; its parent does.
			_ = watcher.Add(filepath.Dir(folder))
			err = watcher.Add(folder)
		}
	}
	if err == nil {
		w.logged = ""
		return watcher
	}
	if watcher != nil {
		watcher.Close()
	}
	if err.Error() != w.logged {
		w.Log.Warn("Could not watch files; they are looked at now and then (fs.inotify.max_user_instances may be too low)", "files", w.Files, "error", err)
		w.logged = err.Error()
	}
	return nil
}

// follow signals changes of the files until a folder is removed or replaced, with true, or ctx ends. It closes the watcher.
func (w *watch) follow(ctx context.Context, watcher *fsnotify.Watcher) (replaced bool) {
	defer watcher.Close()
	for {
		select {
		case <-ctx.Done():
			return false
		case event := <-watcher.Events:
			switch {
			case slices.Contains(w.Files, event.Name) && event.Op&w.Ops != 0:
				w.changed.Set()
			case slices.Contains(w.folders, event.Name) && event.Has(fsnotify.Create|fsnotify.Remove|fsnotify.Rename):
				return true
			}
		case <-watcher.Errors:
			w.changed.Set() // An overflow: an event is missing.
		}
	}
}
