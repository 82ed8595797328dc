package statefile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"
)

// Step is a moment of a write at which the process may die.
type Step string

// The steps, in order. Until StepRenamed the old content is in place, from then on the new.
const (
	StepCreated Step = "created" // the temporary file exists, empty
	StepTorn    Step = "torn"    // half of it is written
	StepWritten Step = "written" // all of it is written, not yet synced
	StepRenamed Step = "renamed" // it has the file's name
)

// leftAfter is how much older than the newest write a temporary file must be before it counts as left by a process that
// has ended: during an upgrade two agents may write at the same time.
const leftAfter = time.Minute

// Retry is when a write that failed is repeated: after a second, then after twice as long each time, up to a minute.
type Retry struct{ last time.Duration }

const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// Next returns the time until the next attempt.
func (r *Retry) Next() time.Duration {
	r.last = min(max(2*r.last, firstRetry), lastRetry)
	return r.last
}

// Reset is called after a write that succeeded.
func (r *Retry) Reset() { r.last = 0 }

// Save replaces the content. When it returns without an error, the new content outlasts a power failure.
func (f File[T]) Save(content T) error {
	blob, err := f.Encode(content)
	if err != nil {
		return err
	}
	return f.Write(blob)
}

// Encode returns the bytes of the whole file, for a caller whose content may change before it is written.
func (f File[T]) Encode(content T) ([]byte, error) {
	blob, err := f.encode(content)
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", f.What, err)
	}
	return blob, nil
}

// Write replaces the file by what Encode made.
func (f File[T]) Write(blob []byte) error {
	err := f.write(blob)
	// The name of the temporary file differs each time: an error that repeats would look like another one.
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		err = &fs.PathError{Op: path.Op, Path: f.Path, Err: path.Err}
	} else if link, ok := errors.AsType[*os.LinkError](err); ok {
		err = &fs.PathError{Op: link.Op, Path: f.Path, Err: link.Err}
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", f.What, err)
	}
	return nil
}

func (f File[T]) write(blob []byte) error {
	dir := filepath.Dir(f.Path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	file, err := renameio.NewPendingFile(f.Path, renameio.WithTempDir(dir), renameio.WithStaticPermissions(0o600))
	if err != nil {
		return err
	}
	if err := f.fill(file, blob); err != nil {
		if !errors.Is(err, errDied) {
			_ = file.Cleanup()
		}
		return err
	}
	if err := file.CloseAtomicallyReplace(); err != nil {
		_ = file.Cleanup()
		return err
	}
	if err := f.step(StepRenamed); err != nil {
		return err
	}
	sweep(f.Path)
	return syncFolder(dir)
}

// encode returns the whole file.
func (f File[T]) encode(content T) ([]byte, error) {
	if f.Check != nil {
		if err := f.Check(content); err != nil {
			return nil, err
		}
	}
	inner, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	blob, err := json.Marshal(envelope{
		Format: f.Format, Version: f.Version, BootID: f.BootID, NodeUID: f.NodeUID, Mark: f.Mark, CRC: checksum(inner), Content: inner,
	})
	if err != nil {
		return nil, err
	}
	if int64(len(blob)) >= f.max() {
		return nil, fmt.Errorf("%s would have %d bytes, at most %d are read back", f.Path, len(blob)+1, f.max())
	}
	return append(blob, '\n'), nil
}

// errDied marks a write that a test stopped: the files of an ended process remain.
var errDied = errors.New("stopped by a test")

func (f File[T]) step(at Step) error {
	if f.Fault == nil {
		return nil
	}
	if err := f.Fault(at); err != nil {
		return fmt.Errorf("%w: %w", errDied, err)
	}
	return nil
}

func (f File[T]) fill(file *renameio.PendingFile, blob []byte) error {
	if err := f.step(StepCreated); err != nil {
		return err
	}
	half := len(blob) / 2
	if _, err := file.Write(blob[:half]); err != nil {
		return err
	}
	if err := f.step(StepTorn); err != nil {
		return err
	}
	if _, err := file.Write(blob[half:]); err != nil {
		return err
	}
	return f.step(StepWritten)
}

// sweep removes temporary files of ended writers. It compares the file system's own times.
func sweep(path string) {
	newest, err := os.Stat(path)
	if err != nil {
		return
	}
	for _, path := range leftovers(path) {
		if info, err := os.Lstat(path); err == nil && newest.ModTime().Sub(info.ModTime()) > leftAfter {
			_ = os.Remove(path)
		}
	}
}

// leftovers returns the temporary files of ended and running writers: the name between a dot and digits.
func leftovers(path string) []string {
	dir := filepath.Dir(path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var paths []string
	for _, entry := range entries {
		rest, ok := strings.CutPrefix(entry.Name(), "."+filepath.Base(path))
		if ok && rest != "" && strings.Trim(rest, "0123456789") == "" {
			paths = append(paths, filepath.Join(dir, entry.Name()))
		}
	}
	return paths
}

// Remove removes a state file, its backup and the temporary files of ended writers. Missing files are not an error.
func Remove(path string) error {
	var failed []error
	for _, path := range append(leftovers(path), path, path+backupSuffix) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = append(failed, fmt.Errorf("remove state: %w", err))
		}
	}
	return errors.Join(failed...)
}

// syncFolder syncs the directory, so that names survive a power failure.
func syncFolder(dir string) error {
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	return folder.Sync()
}
