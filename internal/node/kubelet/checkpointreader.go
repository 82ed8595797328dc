package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// settled is how old a file has to be for its times to show a later change: the kernel's clock for them ticks 100 times
// a second at least.
const settled = 20 * time.Millisecond

// CheckpointReader reads the kubelet's checkpoint again only when it has changed. It may be used by several goroutines.
type CheckpointReader struct {
	kubeletDir string

	mu    sync.Mutex
	stamp string // of last and err; empty when there is none
	last  *Checkpoint
	err   error
}

// NewCheckpointReader returns a reader for the kubelet with this directory, without reading anything.
func NewCheckpointReader(kubeletDir string) *CheckpointReader {
	return &CheckpointReader{kubeletDir: kubeletDir}
}

// Read is [ReadCheckpoint]. The result is shared with other callers, who only read it.
func (r *CheckpointReader) Read() (*Checkpoint, error) {
	stamp := r.Stamp()
	r.mu.Lock()
	last, failed, known := r.last, r.err, stamp != "" && stamp == r.stamp
	r.mu.Unlock()
	if known {
		return last, failed
	}
	checkpoint, err := ReadCheckpoint(r.kubeletDir)
	if stamp == "" || r.Stamp() != stamp || err != nil && !lasting(err) {
		return checkpoint, err
	}
	r.mu.Lock()
	r.stamp, r.last, r.err = stamp, checkpoint, err
	r.mu.Unlock()
	return checkpoint, err
}

// lasting reports whether an error lasts until the file is written: it does not exist, or is invalid.
func lasting(err error) bool {
	var corrupt *corruptError
	return errors.Is(err, ErrNoCheckpoint) || errors.As(err, &corrupt)
}

// Stamp identifies the content of the checkpoint: while it is the same, the kubelet has not written the file. It is
// empty when the file, or without a file its directory, was changed too recently to be sure.
func (r *CheckpointReader) Stamp() string {
	path := filepath.Join(r.kubeletDir, CheckpointFile)
	kind := "file"
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		kind = "folder"
		info, err = os.Lstat(filepath.Dir(path))
	}
	if err != nil || !info.Mode().IsRegular() && !info.IsDir() {
		return ""
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || time.Since(time.Unix(stat.Ctim.Sec, stat.Ctim.Nsec)) < settled {
		return ""
	}
	return fmt.Sprint(kind, stat.Dev, stat.Ino, stat.Size, stat.Mtim, stat.Ctim)
}
