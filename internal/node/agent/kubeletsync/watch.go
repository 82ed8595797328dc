package kubeletsync

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"

	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// watchCheckpoint signals changes of the kubelet's checkpoint. While its directory does not exist, or cannot be watched,
// the periodic looks remain, and it tries again after each interval.
func (s *Sync) watchCheckpoint(ctx context.Context) <-chan struct{} {
	changed := signal.New()
	path := filepath.Join(s.deps.KubeletDir, kubelet.CheckpointFile)
	watcher, logged := s.openWatcher(filepath.Dir(path), "")
	go func() {
		for {
			if watcher != nil {
				follow(ctx, watcher, path, changed)
			}
			select {
			case <-ctx.Done():
				return
			case <-s.deps.Clock.After(lookInterval):
			}
			if watcher, logged = s.openWatcher(filepath.Dir(path), logged); watcher != nil {
				changed.Set() // For what was written before.
			}
		}
	}()
	return changed.C()
}

// openWatcher returns a watcher of a directory and of its parent; nil if there is none. It logs why, unless the directory
// does not exist, which is a problem of its own, or the reason is the last one, and returns the reason.
func (s *Sync) openWatcher(dir, last string) (*fsnotify.Watcher, string) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, ""
	}
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		// Not every kernel reports the removal of the directory itself; its parent does.
		_ = watcher.Add(filepath.Dir(dir))
		if err = watcher.Add(dir); err == nil {
			return watcher, ""
		}
		watcher.Close()
	}
	if err.Error() != last {
		s.deps.Log.Warn("Polling the kubelet's checkpoint, since it cannot be watched", "error", err)
	}
	return nil, err.Error()
}

// follow signals changes of path until its directory is removed or replaced, or ctx ends. It closes the watcher.
func follow(ctx context.Context, watcher *fsnotify.Watcher, path string, changed *signal.Signal) {
	defer watcher.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-watcher.Events:
			switch event.Name {
			case path:
				changed.Set()
			case filepath.Dir(path):
				if event.Has(fsnotify.Create | fsnotify.Remove | fsnotify.Rename) {
					return
				}
			}
		case <-watcher.Errors: // An overflow; the next look comes soon.
		}
	}
}
