package configwatch

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/config"
)

// KeptFile holds the configuration that was last in force, in the state directory.
const KeptFile = "config.last-good"

// keptForm is the file's content.
type keptForm struct {
	Version int    `json:"version"`
	Source  string `json:"source"`
	Data    string `json:"data"`
}

// keep writes a good configuration down, before it takes effect.
func (w *Watcher) keep(good candidate, stateDir string) error {
	blob, err := json.Marshal(keptForm{Version: 1, Source: good.source, Data: good.data})
	if err != nil {
		return fmt.Errorf("keep configuration: %w", err)
	}
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return fmt.Errorf("keep configuration: %w", err)
	}
	if err := renameio.WriteFile(filepath.Join(stateDir, KeptFile), blob, 0o600); err != nil {
		return fmt.Errorf("keep configuration: %w", err)
	}
	return nil
}

// recall finds what was kept of a source: of a file by its path, of a ConfigMap by its
// NAMESPACE/NAME. Nil when there is nothing, or nothing readable.
func (w *Watcher) recall(source string) *candidate {
	if source == "" {
		return nil
	}
	blob, err := os.ReadFile(filepath.Join(w.stateDir(), KeptFile))
	if err != nil {
		return nil
	}
	var kept keptForm
	if json.Unmarshal(blob, &kept) != nil || kept.Version != 1 {
		return nil
	}
	if kept.Source != source && !strings.HasPrefix(kept.Source, source+"/") {
		return nil
	}
	return &candidate{source: kept.Source, data: kept.Data}
}

// stateDir is known before there is a configuration, if the flags or nothing say it.
func (w *Watcher) stateDir() string {
	known := w.base
	if known == nil {
		flags := v1alpha1.AgentConfig{}
		if w.deps.Override != nil {
			w.deps.Override(&flags)
		}
		known = &flags
	}
	return cmp.Or(known.StateDir, config.DefaultStateDir)
}
