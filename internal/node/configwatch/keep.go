package configwatch

import (
	"cmp"
	"errors"
	"maps"
	"path/filepath"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// The files in the persistent directory.
const (
	// KeptFile holds the configuration that was last in force.
	KeptFile = "config.last-good"
	// LayoutsFile holds the MIG layouts that were last read from a ConfigMap.
	LayoutsFile = "mig-layouts.last-good"
	// LabelsFile holds the labels of the Node that choose configuration and MIG layout.
	LabelsFile = "node-labels.json"
)

// kept is a text with the source from which it was read.
type kept struct {
	Source string `json:"source"`
	Data   string `json:"data"`
}

// stored is the state that earlier agents and this one have stored.
type stored struct {
	config     kept
	haveConfig bool
	layouts    kept
	// configUID and layoutsUID are the UIDs of the Nodes that they were written for; empty when that was not known.
	configUID, layoutsUID string
	// labels are nil when none are known.
	labels map[string]string
	// owner is the UID of the Node that they belong to; empty when it was never known.
	owner string
	// lost has the files that could not be read, by name.
	lost map[string]statefile.Result
}

func (w *Watcher) path(name string) string { return filepath.Join(w.persistentDir(), name) }

func (w *Watcher) configFile() statefile.File[kept] {
	return statefile.File[kept]{
		Path: w.path(KeptFile), What: "the last good configuration", Format: "berth-config", Version: 1, NodeUID: w.NodeUID(),
	}
}

func (w *Watcher) layoutsFile() statefile.File[kept] {
	return statefile.File[kept]{
		Path: w.path(LayoutsFile), What: "the last good MIG layouts", Format: "berth-mig-layouts", Version: 1, NodeUID: w.NodeUID(),
	}
}

func (w *Watcher) labelsFile() statefile.File[map[string]string] {
	return statefile.File[map[string]string]{
		Path: w.path(LabelsFile), What: "the last known labels of the node", Format: "berth-node-labels", Version: 1, NodeUID: w.NodeUID(),
	}
}

// loadKept reads the state that earlier agents stored.
func (w *Watcher) loadKept() {
	m := &w.stored
	m.lost = map[string]statefile.Result{}
	take := func(name string, result statefile.Result) {
		m.owner = cmp.Or(m.owner, result.NodeUID)
		if result.Lost() {
			w.deps.Log.Error("Could not use a file of an earlier agent", "code", result.Code(), "error", result.Err)
			m.lost[name] = result
		}
	}
	var result statefile.Result
	m.config, result = w.configFile().Load()
	m.haveConfig = result.State == statefile.Present
	m.configUID = result.NodeUID
	take(KeptFile, result)
	m.layouts, result = w.layoutsFile().Load()
	m.layoutsUID = result.NodeUID
	take(LayoutsFile, result)
	m.labels, result = w.labelsFile().Load()
	take(LabelsFile, result)
}

// keptConfig returns the stored configuration of a source: of a file by its path, of a ConfigMap by its NAMESPACE/NAME;
// nil if there is none.
func (w *Watcher) keptConfig(source string) *candidate {
	of := w.stored.config.Source
	if source == "" || !w.stored.haveConfig || of != source && !strings.HasPrefix(of, source+"/") {
		return nil
	}
	return &candidate{source: of, data: w.stored.config.Data}
}

// keep stores a valid configuration before it takes effect.
func (w *Watcher) keep(good candidate) error {
	next := kept{Source: good.source, Data: good.data}
	if err := w.configFile().Save(next); err != nil {
		return err
	}
	w.stored.config, w.stored.haveConfig, w.stored.configUID = next, true, w.NodeUID()
	delete(w.stored.lost, KeptFile)
	return nil
}

// isKept reports whether a configuration is already stored for this Node.
func (w *Watcher) isKept(good candidate) bool {
	m := &w.stored
	return m.haveConfig && m.config == kept{Source: good.source, Data: good.data} && (m.configUID == w.NodeUID() || w.NodeUID() == "")
}

// keepLayouts stores valid MIG layouts.
func (w *Watcher) keepLayouts(source, data string) {
	next := kept{Source: source, Data: data}
	if next == w.stored.layouts && (w.stored.layoutsUID == w.NodeUID() || w.NodeUID() == "") {
		return
	}
	if err := w.layoutsFile().Save(next); err != nil {
		w.deps.Log.Warn("Could not store the MIG layouts for a restart", "error", err)
		return
	}
	w.stored.layouts, w.stored.layoutsUID = next, w.NodeUID()
	delete(w.stored.lost, LayoutsFile)
}

// keepLabels stores the Node's labels, and invalidates the state of another Node.
func (w *Watcher) keepLabels(node nodeAnswer) {
	if !node.known || node.uid == "" {
		return // A deleted Node does not determine the labels of the next one with its name.
	}
	w.nodeUID.Store(&node.uid)
	m := &w.stored
	if m.owner != "" && m.owner != node.uid {
		w.deps.Log.Warn("Ignored state of another Node", "uid", m.owner, "own", node.uid)
		m.haveConfig, m.layouts, m.labels = false, kept{}, nil
	}
	changed := m.owner != node.uid
	m.owner = node.uid
	if !changed && m.labels != nil && maps.Equal(m.labels, node.labels) {
		return
	}
	if err := w.labelsFile().Save(node.labels); err != nil {
		w.deps.Log.Warn("Could not store the node's labels for a restart", "error", err)
		return
	}
	m.labels = node.labels
	delete(m.lost, LabelsFile)
}

// persistentDir is known before the configuration if the flags set it or it is the default.
func (w *Watcher) persistentDir() string {
	known := w.base
	if known == nil {
		flags := v1alpha1.AgentConfig{}
		if w.deps.Override != nil {
			w.deps.Override(&flags)
		}
		known = &flags
	}
	return cmp.Or(known.PersistentDir, config.DefaultPersistentDir)
}

// Remove removes the files of a Watcher from the persistent directory. Missing files are not an error.
func Remove(persistentDir string) error {
	var failed []error
	for _, name := range []string{KeptFile, LayoutsFile, LabelsFile} {
		failed = append(failed, statefile.Remove(filepath.Join(persistentDir, name)))
	}
	return errors.Join(failed...)
}
