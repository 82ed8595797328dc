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
	configUID  string
	layoutsUID string
	// labels are nil when none are known.
	labels map[string]string
	// owner is the UID of the Node that they belong to; empty when it was never known.
	owner string
	// lost has the files that could not be read, by name.
	lost map[string]statefile.Result
	// unsaved has the writes that failed, by the name of the file; they are repeated. retry is when.
	unsaved map[string]failedWrite
	retry   statefile.Retry
}

// failedWrite is a write, and why it failed.
type failedWrite struct {
	err   error
	again func() error
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
	m.lost, m.unsaved = map[string]statefile.Result{}, map[string]failedWrite{}
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

// save writes one of the files.
func (w *Watcher) save(name string, write func() error) {
	err := write()
	if err == nil {
		delete(w.stored.unsaved, name)
		delete(w.stored.lost, name)
		return
	}
	if before := w.stored.unsaved[name].err; before == nil || before.Error() != err.Error() {
		w.deps.Log.Warn("Could not store for a restart what is in force; it is tried again", "error", err)
	}
	w.stored.unsaved[name] = failedWrite{err, write}
}

// saveAgain repeats the writes that failed.
func (w *Watcher) saveAgain() {
	for name, failed := range w.stored.unsaved {
		w.save(name, failed.again)
	}
}

// isOurs reports whether a file was written for this Node, as far as that is known.
func (w *Watcher) isOurs(uid string) bool { return uid == w.NodeUID() || w.NodeUID() == "" }

// keep stores a valid configuration before it takes effect. It takes effect also if that fails: it would be missing only after a restart
// with an invalid new one.
func (w *Watcher) keep(good candidate) {
	m := &w.stored
	m.config, m.haveConfig, m.configUID = kept{Source: good.source, Data: good.data}, true, w.NodeUID()
	w.save(KeptFile, func() error { return w.configFile().Save(m.config) })
}

// isKept reports whether a configuration is already stored for this Node.
func (w *Watcher) isKept(good candidate) bool {
	m := &w.stored
	return m.haveConfig && m.config == kept{Source: good.source, Data: good.data} && w.isOurs(m.configUID)
}

// keepLayouts stores valid MIG layouts.
func (w *Watcher) keepLayouts(source, data string) {
	m := &w.stored
	next := kept{Source: source, Data: data}
	if next == m.layouts && w.isOurs(m.layoutsUID) {
		return
	}
	m.layouts, m.layoutsUID = next, w.NodeUID()
	w.save(LayoutsFile, func() error { return w.layoutsFile().Save(next) })
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
	m.labels = node.labels
	w.save(LabelsFile, func() error { return w.labelsFile().Save(node.labels) })
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
