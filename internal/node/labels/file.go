package labels

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/berth-gpu/berth/internal/node/hostconfig"
)

// fileName is the file's name in the folder of Node Feature Discovery.
const fileName = "berth-gpu"

// maxFeatureFile limits what is read back: Node Feature Discovery itself accepts 64 KiB.
const maxFeatureFile = 64 << 10

// fileWriter writes a feature file. The name of the temporary file begins with a dot, so that it is not read as one.
type fileWriter struct{ dir string }

func (w *fileWriter) Place() string { return "file " + filepath.Join(w.dir, fileName) }

func (w *fileWriter) Read(context.Context) (Labels, error) {
	content, err := hostconfig.ReadIn(w.dir, fileName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", w.Place(), err)
	}
	return parseText(content[:min(len(content), maxFeatureFile)]), nil
}

// parseText reads what Text writes. It leaves out lines that Text would not write, so that a file that was changed differs.
func parseText(content []byte) Labels {
	labels := Labels{}
	for row := range bytes.Lines(content) {
		if key, value, ok := strings.Cut(strings.TrimSuffix(string(row), "\n"), "="); ok {
			labels[key] = value
		}
	}
	return labels
}

func (w *fileWriter) Write(_ context.Context, labels Labels) error {
	if err := os.MkdirAll(w.dir, 0o755); err != nil {
		return fmt.Errorf("write %s: %w", w.Place(), err)
	}
	file, err := renameio.NewPendingFile(filepath.Join(w.dir, fileName), renameio.WithTempDir(w.dir), renameio.WithStaticPermissions(0o644))
	if err != nil {
		return fmt.Errorf("write %s: %w", w.Place(), err)
	}
	defer func() { _ = file.Cleanup() }()
	if _, err := file.Write(labels.Text()); err != nil {
		return fmt.Errorf("write %s: %w", w.Place(), err)
	}
	if err := file.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("write %s: %w", w.Place(), err)
	}
	return nil
}

// Remove removes the file, and temporary files of writers that were killed.
func (w *fileWriter) Remove(context.Context) error {
	entries, err := os.ReadDir(w.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", w.Place(), err)
	}
	var failed []error
	for _, entry := range entries {
		rest, left := strings.CutPrefix(entry.Name(), "."+fileName)
		if entry.Name() != fileName && !(left && rest != "" && strings.Trim(rest, "0123456789") == "") {
			continue
		}
		if err := os.Remove(filepath.Join(w.dir, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = append(failed, fmt.Errorf("remove %s: %w", w.Place(), err))
		}
	}
	return errors.Join(failed...)
}
