package inventory

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"

	"github.com/berth-gpu/berth/internal/gpu"
	"github.com/berth-gpu/berth/internal/health"
)

// keptVersion is the version of the file that outlasts a restart; maxKept bounds its size.
const (
	keptVersion = 1
	maxKept     = 4 << 20
)

// kept is the file's content.
type kept struct {
	Version int                        `json:"version"`
	BootID  string                     `json:"bootID"`
	Cards   map[gpu.UUID]health.Record `json:"cards"`
}

// restore reads what was known of the cards before this process. A reboot voids all of it, since no fault of
// the card is carried over one without showing again. A report counts from now on, so that a scan
// cannot disprove it too soon.
func restore(path, bootID string, now time.Time) (map[gpu.UUID]health.Record, error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what was known of the GPUs' health: %w", err)
	}
	defer file.Close()
	blob, err := io.ReadAll(io.LimitReader(file, maxKept))
	if err != nil {
		return nil, fmt.Errorf("read what was known of the GPUs' health: %w", err)
	}
	var form kept
	if err := json.Unmarshal(blob, &form); err != nil {
		return nil, fmt.Errorf("read what was known of the GPUs' health: %s is damaged: %w; going on without", path, err)
	}
	if form.Version != keptVersion {
		return nil, fmt.Errorf("read what was known of the GPUs' health: %s has version %d, this Berth reads version %d; going on without", path, form.Version, keptVersion)
	}
	if form.BootID != bootID {
		return nil, nil
	}
	for _, record := range form.Cards {
		if record.Gone {
			continue // its coming back is proof, however soon
		}
		for i := range record.Standing {
			record.Standing[i].Last = now
		}
	}
	return form.Cards, nil
}

// keep writes down what is known of the cards.
func keep(path, bootID string, cards map[gpu.UUID]health.Record) error {
	blob, err := json.Marshal(kept{Version: keptVersion, BootID: bootID, Cards: cards})
	if err != nil {
		return fmt.Errorf("keep the GPUs' health: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("keep the GPUs' health: %w", err)
	}
	if err := renameio.WriteFile(path, blob, 0o600); err != nil {
		return fmt.Errorf("keep the GPUs' health: %w", err)
	}
	return nil
}
