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

// kept is a text with the place where it was read.
type kept struct {
	Source string `json:"source"`
	Data   string `json:"data"`
}

// memory is what earlier agents kept, and what this one has kept since.
type memory struct {
	config     kept
	haveConfig bool
	layouts    kept
	// configUID and layoutsUID are the UIDs of the Nodes that they were written for; empty when that was not known.
	configUID, layoutsUID string
	// labels are nil when none are known.
	labels map[string]string
	// owner is the UID of the Node that they belong to; empty when it was never known.
	owner string
	// lost are the files that could not be used, by name.
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

// remember reads what earlier agents kept.
func (w *Watcher) remember() {
	m := &w.memory
	m.lost = map[string]statefile.Result{}
	take := func(name string, result statefile.Result) {
		m.owner = cmp.Or(m.owner, result.NodeUID)
		if result.Lost() {
			w.deps.Log.Error("a file of an earlier agent cannot be used", "code", result.Code(), "error", result.Err)
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

// recall finds what was kept of a source: of a file by its path, of a ConfigMap by its
// NAMESPACE/NAME. Nil when there is nothing.
func (w *Watcher) recall(source string) *candidate {
	of := w.memory.config.Source
	if source == "" || !w.memory.haveConfig || of != source && !strings.HasPrefix(of, source+"/") {
		return nil
	}
	return &candidate{source: of, data: w.memory.config.Data}
}

// keep writes a good configuration down, before it takes effect.
func (w *Watcher) keep(good candidate) error {
	next := kept{Source: good.source, Data: good.data}
	if err := w.configFile().Save(next); err != nil {
		return err
	}
	w.memory.config, w.memory.haveConfig, w.memory.configUID = next, true, w.NodeUID()
	delete(w.memory.lost, KeptFile)
	return nil
}

// isKept tells whether a configuration is on disk already, for this Node.
func (w *Watcher) isKept(good candidate) bool {
	m := &w.memory
	return m.haveConfig && m.config == kept{Source: good.source, Data: good.data} && (m.configUID == w.NodeUID() || w.NodeUID() == "")
}

// keepLayouts writes good MIG layouts down.
func (w *Watcher) keepLayouts(source, data string) {
	next := kept{Source: source, Data: data}
	if next == w.memory.layouts && (w.memory.layoutsUID == w.NodeUID() || w.NodeUID() == "") {
		return
	}
	if err := w.layoutsFile().Save(next); err != nil {
		w.deps.Log.Warn("the MIG layouts could not be kept for a restart", "error", err)
		return
	}
	w.memory.layouts, w.memory.layoutsUID = next, w.NodeUID()
	delete(w.memory.lost, LayoutsFile)
}

// keepLabels writes the Node's labels down. Everything of another Node is void from now on.
func (w *Watcher) keepLabels(node nodeAnswer) {
	if !node.known || node.uid == "" {
		return // A Node that is gone says nothing about what the next one of its name will have.
	}
	w.nodeUID.Store(&node.uid)
	m := &w.memory
	if m.owner != "" && m.owner != node.uid {
		w.deps.Log.Warn("state of another Node is not used", "uid", m.owner, "own", node.uid)
		m.haveConfig, m.layouts, m.labels = false, kept{}, nil
	}
	changed := m.owner != node.uid
	m.owner = node.uid
	if !changed && m.labels != nil && maps.Equal(m.labels, node.labels) {
		return
	}
	if err := w.labelsFile().Save(node.labels); err != nil {
		w.deps.Log.Warn("the labels of the node could not be kept for a restart", "error", err)
		return
	}
	m.labels = node.labels
	delete(m.lost, LabelsFile)
}

// persistentDir is known before there is a configuration, if the flags or nothing say it.
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

// Remove removes what a Watcher has written to the persistent directory. It is no error when there is nothing.
func Remove(persistentDir string) error {
	var failed []error
	for _, name := range []string{KeptFile, LayoutsFile, LabelsFile} {
		failed = append(failed, statefile.Remove(filepath.Join(persistentDir, name)))
	}
	return errors.Join(failed...)
}
