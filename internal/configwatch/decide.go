package configwatch

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/config"
	"github.com/berth-gpu/berth/internal/spelling"
)

// layoutsKey is the key of a ConfigMap of MIG layouts, mig-manager's.
const layoutsKey = "config.yaml"

// candidate is a configuration as it was read, not yet known to be good.
type candidate struct {
	source, data string
}

// first settles what the start settles.
func (w *Watcher) first() error {
	w.file = readText(w.deps.File)
	loaded, err := w.parse(candidate{source: w.deps.File, data: w.file.data}, nil)
	if w.file.err != "" {
		err = errors.New(w.file.err)
	}
	if err == nil {
		w.base = loaded.Config
	} else if kept := w.recall(w.deps.File); kept != nil && w.deps.File != "" {
		// The settings of the last start, so that a bad edit takes no GPU from the cluster.
		if loaded, _ = w.parse(*kept, nil); loaded.Config == nil {
			return err
		}
		w.base = loaded.Config
	} else {
		return err
	}
	if w.deps.Connect != nil {
		var unconnected error
		if w.api, unconnected = w.deps.Connect(w.base); unconnected != nil {
			return unconnected
		}
	}
	w.say(loaded)
	w.state = State{Config: w.base, Source: w.deps.File, Notes: loaded.Notes, Waiting: w.api != nil && w.deps.ConfigMap != ""}
	if kept := w.recall(w.deps.ConfigMap); kept != nil && w.state.Waiting {
		if last, err := w.parse(*kept, w.base); err == nil {
			w.say(last)
			w.state = State{Config: last.Config, Source: kept.source, Notes: last.Notes}
		}
	}
	w.state.MIG = w.mig()
	if err != nil {
		w.refuse(err)
		return nil
	}
	if w.deps.File != "" && w.deps.ConfigMap == "" {
		return w.keep(candidate{source: w.deps.File, data: w.file.data}, w.base.StateDir)
	}
	return nil
}

// parse reads a candidate. Values that only a start can change come from base, when there is one.
func (w *Watcher) parse(from candidate, base *v1alpha1.AgentConfig) (config.Loaded, error) {
	return config.Read(from.source, []byte(from.data), func(c *v1alpha1.AgentConfig) {
		if base != nil {
			config.InheritStatic(c, base)
		}
		if w.deps.Override != nil {
			w.deps.Override(c)
		}
	})
}

// decide computes the state from what the sources last said. The caller has the lock.
func (w *Watcher) decide() error {
	next, known, err := w.wanted()
	switch {
	case err != nil:
		w.refuse(err)
	case known:
		if err := w.enforce(next); err != nil {
			return err
		}
	}
	w.state.MIG = w.mig()
	return nil
}

// wanted is the configuration that the sources ask for; known is false while the API has
// not answered.
func (w *Watcher) wanted() (candidate, bool, error) {
	if w.deps.ConfigMap != "" && w.api != nil {
		answer := w.maps[w.deps.ConfigMap]
		if !answer.known || !w.node.known {
			return candidate{}, false, nil
		}
		key, err := w.key(answer)
		if err != nil {
			return candidate{}, true, err
		}
		if key != "" {
			return candidate{source: w.deps.ConfigMap + "/" + key, data: answer.data[key]}, true, nil
		}
	}
	if w.file.err != "" {
		return candidate{}, true, errors.New(w.file.err)
	}
	return candidate{source: w.deps.File, data: w.file.data}, true, nil
}

// key is the ConfigMap's key for this node; empty when nothing chooses one, which
// leaves the file.
func (w *Watcher) key(from mapAnswer) (string, error) {
	for _, label := range []string{LabelConfig, LabelNVIDIAConfig} {
		name := w.node.labels[label]
		if name == "" {
			continue
		}
		if _, ok := from.data[name]; ok {
			return name, nil
		}
		return "", fmt.Errorf("label %s=%s of the node names no key of ConfigMap %s (%s)", label, name, w.deps.ConfigMap, from.advice(name))
	}
	if name := w.deps.DefaultKey; name != "" {
		if _, ok := from.data[name]; ok {
			return name, nil
		}
		return "", fmt.Errorf("--default-config %s names no key of ConfigMap %s (%s)", name, w.deps.ConfigMap, from.advice(name))
	}
	if _, ok := from.data["default"]; ok {
		return "default", nil
	}
	if keys := from.keys(); len(keys) == 1 {
		return keys[0], nil
	}
	return "", nil
}

func (m mapAnswer) keys() []string {
	var keys []string
	for key := range m.data {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func (m mapAnswer) advice(name string) string {
	switch keys := m.keys(); {
	case !m.exists:
		return "it does not exist; create it"
	case len(keys) == 0:
		return "it has no keys"
	default:
		if near := spelling.Nearest(name, keys); near != "" {
			return "did you mean " + near + "?"
		}
		return "it has " + strings.Join(keys, ", ")
	}
}

// enforce makes a candidate the configuration in force if it is good.
func (w *Watcher) enforce(next candidate) error {
	loaded, err := w.parse(next, w.base)
	if err != nil {
		w.refuse(err)
		return nil
	}
	parsed := loaded.Config
	restart := config.Static(w.base, parsed)
	config.ForceStatic(parsed, w.base)
	if next.source != w.state.Source || w.state.Waiting || !reflect.DeepEqual(parsed, w.state.Config) {
		if err := w.fault(StepRead); err != nil {
			return err
		}
		if err := w.keep(next, w.base.StateDir); err != nil {
			// It takes effect all the same; only a restart with a bad successor would miss it.
			w.deps.Log.Warn("the configuration could not be kept for a restart", "error", err)
		}
		if err := w.fault(StepKept); err != nil {
			return err
		}
		w.deps.Log.Info("configuration in force", "source", describe(next.source))
		w.say(loaded)
	}
	w.state = State{Config: parsed, Source: next.source, Notes: loaded.Notes, Restart: restart, MIG: w.state.MIG}
	return nil
}

// say logs what is worth knowing of a configuration that is good.
func (w *Watcher) say(loaded config.Loaded) {
	for _, note := range loaded.Notes {
		w.deps.Log.Warn("configuration", "note", note)
	}
}

func (w *Watcher) refuse(err error) {
	if w.state.Refused == nil || w.state.Refused.Error() != err.Error() {
		w.deps.Log.Error("configuration refused, the last good one stays in force", "error", err, "in force", describe(w.state.Source))
	}
	w.state.Refused = err
	w.state.Waiting = false
}

// mig is what the Node and the ConfigMap of layouts say.
func (w *Watcher) mig() MIG {
	next := MIG{Known: w.node.known || w.api == nil, Layout: w.node.labels[LabelMIG]}
	name := w.state.Config.MIGConfigMap
	switch {
	case name == "":
		return next
	case w.api == nil:
		next.Err = fmt.Errorf("read MIG layouts: ConfigMap %s cannot be read without an API server (write the layouts into migLayouts of the file)", name)
		return next
	}
	answer := w.maps[name]
	if !answer.known {
		next.Known = false
		return next
	}
	text, ok := answer.data[layoutsKey]
	if !ok {
		next.Err = fmt.Errorf("read MIG layouts: ConfigMap %s has no key %s (%s)", name, layoutsKey, answer.advice(layoutsKey))
		next.Layouts = w.state.MIG.Layouts
		return next
	}
	layouts, err := config.ParseMIGLayouts(name+"/"+layoutsKey, []byte(text))
	if err != nil {
		next.Err, next.Layouts = err, w.state.MIG.Layouts
		return next
	}
	next.Layouts = layouts
	return next
}

func (w *Watcher) fault(step Step) error {
	if w.deps.Fault == nil {
		return nil
	}
	return w.deps.Fault(step)
}

func describe(source string) string {
	if source == "" {
		return "defaults and flags"
	}
	return source
}

// readText reads a file for comparison; a missing one is an error too.
func readText(path string) text {
	if path == "" {
		return text{}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return text{err: fmt.Sprintf("read config: %v (the path comes from --config)", err)}
	}
	return text{data: string(data)}
}

// same compares states; errors by what they say.
func same(a, b State) bool {
	said := func(err error) string {
		if err == nil {
			return ""
		}
		return err.Error()
	}
	if said(a.Refused) != said(b.Refused) || said(a.MIG.Err) != said(b.MIG.Err) {
		return false
	}
	a.Refused, b.Refused, a.MIG.Err, b.MIG.Err = nil, nil, nil, nil
	return reflect.DeepEqual(a, b)
}
