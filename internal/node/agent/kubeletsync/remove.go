package kubeletsync

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// RemoveGrants removes all grants from a state directory. A running container keeps its mount, and a container runtime
// creates the folder of a grant again when it needs it. A missing directory is not an error.
func RemoveGrants(stateDir string) error {
	dir := filepath.Join(stateDir, GrantsFolder)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove grants: %w", err)
	}
	for _, entry := range entries {
		if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil {
			return fmt.Errorf("remove grants: %w", err)
		}
	}
	if err := os.Remove(dir); err != nil {
		return fmt.Errorf("remove grants: %w", err)
	}
	return nil
}
