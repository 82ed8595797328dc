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

// dirWatch says when to look at the directory of the sockets. Its calls are hints: what is
// there decides. It looks now and then by itself, and often where the kernel gives no
// watch (a node can run out of them).
type dirWatch struct {
	dir     string
	timing  timing
	clock   clock.WithTicker
	log     *slog.Logger
	changed func()

	watcher *fsnotify.Watcher
	// watched is the directory that the watcher has; absent when it has none.
	watched fileID
	said    bool
}

// run calls changed after every event until ctx ends.
func (w *dirWatch) run(ctx context.Context) {
	defer w.close()
	for {
		// First the watch, then the look: what happens between them is seen twice, not never.
		w.attach()
		w.changed()
		if !w.wait(ctx) {
			return
		}
	}
}

// wait returns when there is a reason to look; false when ctx has ended.
func (w *dirWatch) wait(ctx context.Context) bool {
	var events chan fsnotify.Event
	var errs chan error
	pause := w.timing.pollBlind
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
				// Gone, or made again, and then perhaps with the same inode.
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

// attach makes the watch, or makes it anew when the directory is another one.
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
		// The directory's own end is not told everywhere, but by its parent. Where the
		// parent cannot be watched, the look now and then must do.
		_ = watcher.Add(filepath.Dir(w.dir))
		if err = watcher.Add(w.dir); err != nil {
			watcher.Close()
		}
	}
	if err != nil {
		if !w.said {
			w.log.Warn("cannot watch the kubelet's device plugin directory; looking at it again and again instead (fs.inotify.max_user_instances may be too low)", "directory", w.dir, "error", err)
			w.said = true
		}
		return
	}
	w.watcher, w.watched, w.said = watcher, now, false
}

func (w *dirWatch) close() {
	if w.watcher != nil {
		w.watcher.Close()
	}
	w.watcher, w.watched = nil, fileID{}
}

// identifyDir tells a directory from another one of the same name; its times change with
// its entries and say nothing.
func identifyDir(path string) fileID {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return fileID{}
	}
	id := identify(path)
	return fileID{inode: id.inode, second: int64(time.Second)}
}
