package reset

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Remove removes the lock of resets from a state directory. A missing lock is not an error.
func Remove(stateDir string) error {
	if err := os.Remove(filepath.Join(stateDir, LockFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove lock of resets: %w", err)
	}
	return nil
}
