package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// File is the name of the ledger in the agent's state directory.
const File = "ledger"

// Remove removes the ledger from a state directory, with its lock and backup. It is no error when there is none.
func Remove(stateDir string) error {
	var failed []error
	for _, suffix := range []string{"", ".lock", ".tmp", ".bak"} {
		if err := os.Remove(filepath.Join(stateDir, File+suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = append(failed, fmt.Errorf("remove ledger: %w", err))
		}
	}
	return errors.Join(failed...)
}
