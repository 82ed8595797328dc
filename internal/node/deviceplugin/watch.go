package deviceplugin

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/utils/clock"
)

// dirWatch calls changed when the directory of the sockets may have changed: after events, now and then without one, and often where the
// directory cannot be watched (a node can run out of inotify instances).
type dirWatch struct {
	dir     string
	timing  timing
	clock   clock.WithTicker
	log     *slog.Logger
	changed func()

	watcher *fsnotify.Watcher
	// watched is the directory that is watched; absent when there is none.
	watched fileID
	warned  bool
}

// run calls changed after every event until ctx ends.
func (w *dirWatch) run(ctx context.Context) {
	defer w.close()
	for {
		// The watch comes first, so that no change between the two is missed.
		w.attach()
		w.changed()
		if !w.wait(ctx) {
			return
		}
	}
}

// wait returns true when the directory may have changed, and false when ctx has ended.
func (w *dirWatch) wait(ctx context.Context) bool {
	var events chan fsnotify.Event
	var errs chan error
	pause := w.timing.pollUnwatched
	if !w.watched.absent() {
		events, errs, pause = w.watcher.Events, w.watcher.Errors, w.timing.poll
	}
	timer := w.clock.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C():
			return true
		case event := <-events:
			if event.Name == w.dir {
				// It was removed, or replaced, perhaps by one with the same inode.
				w.close()
				return true
			}
			// The kubelet's checkpoint is written beside the sockets, with every allocation.
			if strings.HasSuffix(event.Name, socketSuffix) {
				return true
			}
		case <-errs:
			return true
		}
	}
}

// attach watches the directory, and replaces the watch when the directory is another one.
func (w *dirWatch) attach() {
	now := identifyDir(w.dir)
	if now.absent() || now == w.watched {
		if now.absent() {
			w.close()
		}
		return
	}
	w.close()
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		// Not every kernel reports the removal of the directory itself; its parent does. Where the parent cannot be watched, polling finds
		// out.
		_ = watcher.Add(filepath.Dir(w.dir))
		if err = watcher.Add(w.dir); err != nil {
			watcher.Close()
		}
	}
	if err != nil {
		if !w.warned {
			w.log.Warn("Could not watch the kubelet's device plugin directory; polling it instead (fs.inotify.max_user_instances may be too low)", "directory", w.dir, "error", err)
			w.warned = true
		}
		return
	}
	w.watcher, w.watched, w.warned = watcher, now, false
}

func (w *dirWatch) close() {
	if w.watcher != nil {
		w.watcher.Close()
	}
	w.watcher, w.watched = nil, fileID{}
}

// identifyDir distinguishes a directory from another one with the same name. Its times do not count, since they change with its entries.
func identifyDir(path string) fileID {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return fileID{}
	}
	id := identify(path)
	return fileID{inode: id.inode, second: int64(time.Second)}
}
