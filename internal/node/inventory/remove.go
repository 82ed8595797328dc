package inventory

import (
	"path/filepath"

	"github.com/berth-gpu/berth/internal/node/statefile"
)

// KeepFile is the name of [Deps.Keep] in the agent's state directory.
const KeepFile = "health.json"

// Remove removes the recorded health from a state directory. A missing file is not an error.
func Remove(stateDir string) error { return statefile.Remove(filepath.Join(stateDir, KeepFile)) }
