package migapply

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berth-gpu/berth/internal/node/statefile"
)

// Remove removes the journal and its lock from [Deps.Dir]. Missing files are not an error.
func Remove(dir string) error {
	err := statefile.Remove(filepath.Join(dir, JournalFile))
	if lock := os.Remove(filepath.Join(dir, LockFile)); lock != nil && !errors.Is(lock, fs.ErrNotExist) {
		err = errors.Join(err, fmt.Errorf("remove lock of MIG changes: %w", lock))
	}
	return err
}
