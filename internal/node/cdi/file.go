package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/berth-gpu/berth/internal/node/hostconfig"
	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"
)

// maxSpecBytes limits how much of a spec is read: that of 16 GPUs with 7 MIG devices each has 200 KB.
const maxSpecBytes = 4 << 20

// leftoverAge is the age at which the file of an interrupted write is removed: older than any write of another agent
// that is still in progress.
const leftoverAge = time.Hour

// Path is the file that Sync writes.
func (w *Writer) Path() string { return path.Join(w.deps.Dir, FileName) }

// Files are the files of a CDI directory and of a hook program, empty for none, without which containers cannot be started.
func Files(dir, hook string) []string {
	files := []string{path.Join(dir, FileName)}
	if hook != "" {
		files = append(files, hook)
	}
	return files
}

// write replaces the spec with one rename. The temporary file is in the same folder, so that runtimes that watch it for
// renames see the new spec, and its name does not end in .json, so that none reads an incomplete file. The CDI library
// must be able to read it before it replaces the last one.
func (w *Writer) write(data []byte) error {
	if err := os.MkdirAll(w.deps.Dir, 0o755); err != nil {
		return fmt.Errorf("make CDI directory: %w", err)
	}
	file, err := renameio.NewPendingFile(w.Path(), renameio.WithTempDir(w.deps.Dir), renameio.WithStaticPermissions(0o644))
	if err != nil {
		return fmt.Errorf("write CDI spec: %w", err)
	}
	defer func() { _ = file.Cleanup() }()
	w.step("opened")
	half := len(data) / 2
	if _, err := file.Write(data[:half]); err != nil {
		return fmt.Errorf("write CDI spec: %w", err)
	}
	w.step("half written")
	if _, err := file.Write(data[half:]); err != nil {
		return fmt.Errorf("write CDI spec: %w", err)
	}
	w.step("written")
	if _, err := cdilib.ReadSpec(file.Name(), 0); err != nil {
		return fmt.Errorf("check CDI spec: %w", err)
	}
	w.step("checked")
	if err := file.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("replace CDI spec: %w", err)
	}
	w.step("replaced")
	return nil
}

// readFile reads the spec of a CDI directory.
func readFile(dir string) ([]byte, error) {
	data, err := hostconfig.ReadIn(dir, FileName)
	if err != nil {
		return nil, fmt.Errorf("read CDI spec: %w", err)
	}
	if len(data) >= maxSpecBytes {
		return nil, fmt.Errorf("read CDI spec %s: %d bytes or more", path.Join(dir, FileName), maxSpecBytes)
	}
	return data, nil
}

// removeLeftovers removes temporary files of writers that were killed.
func (w *Writer) removeLeftovers() {
	for _, name := range w.leftovers() {
		info, err := os.Lstat(path.Join(w.deps.Dir, name))
		if err == nil && w.deps.Clock.Since(info.ModTime()) > leftoverAge {
			_ = os.Remove(path.Join(w.deps.Dir, name))
		}
	}
}

// leftovers returns the names of temporary files of writes: renameio's ".name" and a number.
func (w *Writer) leftovers() []string {
	entries, err := os.ReadDir(w.deps.Dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, entry := range entries {
		number, ok := strings.CutPrefix(entry.Name(), "."+FileName)
		if ok && number != "" && strings.Trim(number, "0123456789") == "" {
			names = append(names, entry.Name())
		}
	}
	return names
}

// Remove removes the file of Sync: for uninstalling only, since containers that hold GPUs cannot be restarted without
// the spec. A missing file is not an error.
func (w *Writer) Remove() error {
	w.syncing <- struct{}{}
	defer func() { <-w.syncing }()
	var failed []error
	for _, name := range append(w.leftovers(), FileName) {
		if err := os.Remove(path.Join(w.deps.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = append(failed, fmt.Errorf("remove CDI spec: %w", err))
		}
	}
	return errors.Join(failed...)
}
