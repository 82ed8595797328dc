package allocatable

import (
	"path/filepath"

	"github.com/berth-gpu/berth/internal/node/statefile"
)

// Remove removes the record of the use in force from a state directory. It is no error when there is none.
func Remove(stateDir string) error { return statefile.Remove(filepath.Join(stateDir, FileName)) }
