package configwatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/spelling"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/hostconfig"
)

// layoutsKey is the key of a ConfigMap of MIG layouts, mig-manager's.
const layoutsKey = "config.yaml"

// defaultsLabel is the value of the node's label that selects the configuration of an agent without a ConfigMap, unless
// the ConfigMap has a key of that name.
const defaultsLabel = "default"

// candidate is a configuration as it was read, before it was checked.
type candidate struct {
	source string
	data   string
}

// decision computes the next state from the sources.
type decision struct {
	*Watcher
	from  sources
	judge Judge
	state State
}

// first computes the state of the start. A file that was edited since the last start is not in force before the
// hardware was scanned; until then the last valid one is.
func (w *Watcher) first() error {
	// 1. The file, or the last valid one.
	w.loadKept()
	last := w.keptConfig(w.deps.File)
	w.sources.file = w.firstText(last)
	file := candidate{source: w.deps.File, data: w.sources.file.data}
	loaded, err := w.parse(file, nil)
	if w.sources.file.err != "" {
		err = errors.New(w.sources.file.err)
	}
	if err == nil {
		err = w.emptied(file, cmp.Or(last, &candidate{}))
	}
	switch {
	case err == nil:
		w.base = loaded.Config
	case last == nil:
		return w.withLost(err)
	default:
		// Use the settings of the last start, so that an invalid edit withdraws no GPU from the cluster.
		if loaded, _ = w.parse(*last, nil); loaded.Config == nil {
			return err
		}
		w.base = loaded.Config
	}
	// 2. The API server, and what a ConfigMap adds.
	if w.deps.Connect != nil {
		var unconnected error
		if w.api, unconnected = w.deps.Connect(w.base); unconnected != nil {
			return unconnected
		}
	}
	w.logNotes(loaded)
	w.given = w.base
	waiting := w.api != nil && w.deps.ConfigMap != ""
	if waiting {
		last = w.keptConfig(w.deps.ConfigMap)
		w.base = w.startsWith(last)
	}
	// 3. The state.
	d := &decision{Watcher: w, from: w.sources, state: State{Config: w.base, Source: w.deps.File, Notes: loaded.Notes, Waiting: waiting}}
	w.inForce = file
	if last != nil && *last != file {
		w.inForce = *last
		if before, bad := w.parse(*last, w.given); bad == nil && err == nil {
			config.ForceStatic(before.Config, w.base)
			w.logNotes(before)
			d.state = State{Config: before.Config, Source: last.source, Notes: before.Notes, Pending: !waiting}
		}
	}
	if err != nil {
		d.refuse(err)
	} else if w.deps.ConfigMap == "" && last == nil && (w.deps.File != "" || w.stored.haveConfig) {
		w.keep(file)
	}
	d.state.MIG = d.mig()
	d.state.Lost, d.state.Unsaved = d.lost(), d.unsaved()
	w.current.Store(&d.state)
	return nil
}

// firstText reads the file at a start. One that differs from the last valid one may be in the middle of an edit: it is read when it comes
// to rest, and until then, if that takes long, the last valid one is.
func (w *Watcher) firstText(last *candidate) text {
	seen := readText(w.deps.File)
	if last == nil {
		return seen
	}
	for range startReads {
		if seen == (text{data: last.data}) {
			return seen
		}
		<-w.deps.Clock.After(rest)
		now := readText(w.deps.File)
		if now == seen {
			return seen
		}
		seen = now
	}
	return text{data: last.data}
}

// emptied returns why a candidate without content does not replace what is in force: an editor that saves in place and a tool that has
// lost its input write an empty file, and the defaults would withdraw what pods request. It is nil where nothing was in force before.
func (w *Watcher) emptied(next candidate, inForce *candidate) error {
	_, lost := w.stored.lost[KeptFile]
	if next.source == "" || !config.Empty([]byte(next.data)) || !lost && config.Empty([]byte(inForce.data)) {
		return nil
	}
	return fmt.Errorf("%s: it is empty (for all defaults, write apiVersion: %s and kind: %s)", next.source, v1alpha1.APIVersion, v1alpha1.KindAgentConfig)
}

// ownFields are the static settings that a ConfigMap does not change: with them the agent finds its Node, and what it has stored, before
// it can read a ConfigMap.
func ownFields() []string { return []string{"nodeName", "persistentDir", "standalone"} }

// startsWith returns the settings of a start: the given ones, with the static settings of the last configuration of the ConfigMap. The
// first agent of a node, for which none is stored, asks the API for it.
func (w *Watcher) startsWith(last *candidate) *v1alpha1.AgentConfig {
	if last == nil {
		last = w.ask()
	}
	if last == nil {
		return w.given
	}
	loaded, err := w.parse(*last, w.given)
	if err != nil {
		return w.given // It is refused once the API has responded.
	}
	config.ForceStatic(loaded.Config, w.given, ownFields()...)
	made := w.given.DeepCopy()
	config.ForceStatic(made, loaded.Config)
	return made
}

// ask returns the configuration that the ConfigMap has for the node; nil if the API does not respond within AnswerTimeout, or it has none.
func (w *Watcher) ask() *candidate {
	ctx, cancel := context.WithTimeout(context.Background(), AnswerTimeout)
	defer cancel()
	from := sources{file: w.sources.file, maps: map[string]mapAnswer{}}
	node, err := w.one(ctx, nodes(), "", w.given.NodeName)
	if err != nil {
		return nil
	}
	from.node = answerOfNode(node)
	namespace, name, _ := strings.Cut(w.deps.ConfigMap, "/")
	object, err := w.one(ctx, configMaps(), namespace, name)
	if err != nil {
		return nil
	}
	from.maps[w.deps.ConfigMap] = answerOfMap(object)
	next, known, err := (&decision{Watcher: w, from: from}).wanted()
	if !known || err != nil || next.source == w.deps.File {
		return nil
	}
	return &next
}

// unsaved lists the errors of the files that could not be written.
func (w *Watcher) unsaved() []error {
	var list []error
	for _, name := range slices.Sorted(maps.Keys(w.stored.unsaved)) {
		list = append(list, w.stored.unsaved[name].err)
	}
	return list
}

// withLost adds to an error that the last good configuration, which might have been used instead, could not be read.
func (w *Watcher) withLost(err error) error {
	if result, ok := w.stored.lost[KeptFile]; ok {
		return fmt.Errorf("%w; %w", err, result.Err)
	}
	return err
}

// lost lists the files that could not be used.
func (w *Watcher) lost() []Lost {
	var list []Lost
	for _, name := range slices.Sorted(maps.Keys(w.stored.lost)) {
		result := w.stored.lost[name]
		list = append(list, Lost{Code: result.Code(), Err: result.Err})
	}
	return list
}

// parse reads a candidate. Static fields come from base, if there is one.
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

// decide computes the state from the last content of the sources.
func (d *decision) decide() error {
	d.saveAgain()
	d.keepLabels(d.from.node)
	next, known, err := d.wanted()
	switch {
	case err != nil:
		d.refuse(err)
	case known:
		if err := d.enforce(next); err != nil {
			return err
		}
	}
	d.state.MIG = d.mig()
	d.state.Lost, d.state.Unsaved = d.lost(), d.unsaved()
	d.state.Forbidden = nil
	for _, object := range slices.Sorted(maps.Keys(d.from.forbidden)) {
		d.state.Forbidden = append(d.state.Forbidden,
			"the API server does not allow the agent to read "+object+": "+d.from.forbidden[object])
	}
	return nil
}

// wanted is the configuration that the sources select; known is false until the API has responded.
func (d *decision) wanted() (candidate, bool, error) {
	if d.deps.ConfigMap != "" && d.api != nil {
		answer := d.from.maps[d.deps.ConfigMap]
		if !answer.known || !d.from.node.known {
			return candidate{}, false, nil
		}
		key, err := d.key(answer)
		if err != nil {
			return candidate{}, true, err
		}
		if key != "" {
			return candidate{source: d.deps.ConfigMap + "/" + key, data: answer.data[key]}, true, nil
		}
	}
	if d.from.file.err != "" {
		return candidate{}, true, errors.New(d.from.file.err)
	}
	return candidate{source: d.deps.File, data: d.from.file.data}, true, nil
}

// key returns the ConfigMap's key for this node. It is empty when no key is chosen and none was in force before, so
// that the file is used.
func (d *decision) key(from mapAnswer) (string, error) {
	for _, label := range []string{LabelConfig, LabelNVIDIAConfig} {
		name := d.from.node.labels[label]
		if name == "" {
			continue
		}
		if _, ok := from.data[name]; ok {
			return name, nil
		}
		if name == defaultsLabel {
			return "", nil
		}
		return "", fmt.Errorf("label %s=%s of the node names no key of ConfigMap %s (%s)", label, name, d.deps.ConfigMap, from.advice(name))
	}
	if name := d.deps.DefaultKey; name != "" {
		if _, ok := from.data[name]; ok {
			return name, nil
		}
		return "", fmt.Errorf("--default-config %s names no key of ConfigMap %s (%s)", name, d.deps.ConfigMap, from.advice(name))
	}
	if _, ok := from.data["default"]; ok {
		return "default", nil
	}
	keys := from.keys()
	last := d.keptConfig(d.deps.ConfigMap)
	if len(keys) == 1 && (last == nil || last.source == d.deps.ConfigMap+"/"+keys[0]) {
		return keys[0], nil
	}
	if _, lost := d.stored.lost[KeptFile]; last == nil && !lost {
		return "", nil // No key was ever in force.
	}
	return "", d.noKey(from, keys, last)
}

// noKey returns why a ConfigMap chooses no key for this node, although one was in force before.
func (d *decision) noKey(from mapAnswer, keys []string, last *candidate) error {
	const fix = "name a key with the node's label " + LabelConfig + "; " + LabelConfig + "=" + defaultsLabel + " goes back to the agent's own configuration"
	switch {
	case !from.exists:
		return fmt.Errorf("ConfigMap %s does not exist any more (create it, or %s)", d.deps.ConfigMap, fix)
	case len(keys) == 0:
		return fmt.Errorf("ConfigMap %s has no keys any more (add one, or %s)", d.deps.ConfigMap, fix)
	case len(keys) == 1:
		return fmt.Errorf("ConfigMap %s has only the key %s, and not the one in force, which is %s (call one default, or %s)", d.deps.ConfigMap, keys[0], last.source, fix)
	}
	return fmt.Errorf("ConfigMap %s has the keys %s and none is chosen (call one default, or %s)", d.deps.ConfigMap,
		strings.Join(keys, ", "), fix)
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

// enforce puts a candidate in force if it is valid and the hardware supports it.
func (d *decision) enforce(next candidate) error {
	loaded, err := d.read(next)
	if err != nil {
		d.refuse(err)
		return nil
	}
	parsed := loaded.Config
	// The next start begins with the static settings of this configuration, but for those that are the agent's own.
	config.ForceStatic(parsed, d.given, ownFields()...)
	restart := config.Static(d.base, parsed)
	config.ForceStatic(parsed, d.base)
	if next.source != d.state.Source || d.state.Waiting || !reflect.DeepEqual(parsed, d.state.Config) {
		if d.judge != nil && !d.state.Waiting {
			refused, known := d.judge.Refuse(d.state.Config, parsed)
			if !known {
				d.state.Pending = true
				return nil // The last valid one stays in force until the hardware was scanned.
			}
			if refused != nil {
				d.refuse(fmt.Errorf("%s: %w", describe(next.source), refused))
				return nil
			}
		}
		if err := d.fault(StepRead); err != nil {
			return err
		}
		d.keep(next)
		if err := d.fault(StepKept); err != nil {
			return err
		}
		d.deps.Log.Info("Applied configuration", "source", describe(next.source))
		d.logNotes(loaded)
	} else if !d.isKept(next) && (next.source != "" || d.stored.haveConfig) {
		d.keep(next)
	}
	d.inForce = next
	if reflect.DeepEqual(parsed, d.state.Config) {
		parsed = d.state.Config // Readers compare the pointers.
	}
	d.state = State{Config: parsed, Source: next.source, Notes: loaded.Notes, Restart: restart, MIG: d.state.MIG, Version: d.state.Version}
	return nil
}

// read parses a candidate that is to replace what is in force.
func (d *decision) read(next candidate) (config.Loaded, error) {
	if err := d.emptied(next, &d.inForce); err != nil {
		return config.Loaded{}, err
	}
	return d.parse(next, d.given)
}

// logNotes logs the notes of a valid configuration.
func (w *Watcher) logNotes(loaded config.Loaded) {
	for _, note := range loaded.Notes {
		w.deps.Log.Warn("Read a setting that has no effect, or another one", "note", note)
	}
}

func (d *decision) refuse(err error) {
	if d.state.Refused == nil || d.state.Refused.Error() != err.Error() {
		d.deps.Log.Debug("Refused configuration; the last valid one stays in use", "error", err, "inForce", describe(d.state.Source))
	}
	d.state.Refused, d.state.Pending = err, false
	// When the last valid one is lost, the defaults must not replace it.
	_, lost := d.stored.lost[KeptFile]
	d.state.Waiting = d.state.Waiting && lost
}

// mig returns the partitioning that the Node and the ConfigMap of layouts select. While the API is not available, their
// last content applies after AnswerTimeout.
func (d *decision) mig() MIG {
	next := MIG{Known: d.from.node.known || d.api == nil, Layout: d.from.node.labels[LabelMIG]}
	if !next.Known && d.stored.labels != nil {
		next.Layout = d.stored.labels[LabelMIG]
		next.Known, next.Remembered = d.from.timedOut, !d.from.timedOut
	}
	name := d.state.Config.MIGConfigMap
	switch {
	case name == "":
		return next
	case d.api == nil:
		next.Err = fmt.Errorf("read MIG layouts: ConfigMap %s cannot be read without an API server (write the layouts into migLayouts of the file)",
			name)
		next.Unread = true
		return next
	}
	answer := d.from.maps[name]
	source := name + "/" + layoutsKey
	text, ok := answer.data[layoutsKey]
	var err error
	switch {
	case !answer.known:
		next.Known = next.Known && d.from.timedOut && d.stored.layouts.Source == source
	case !ok:
		err = fmt.Errorf("read MIG layouts: ConfigMap %s has no key %s (%s)", name, layoutsKey, answer.advice(layoutsKey))
	default:
		if next.Layouts, err = config.ParseMIGLayouts(source, []byte(text)); err == nil {
			d.keepLayouts(source, text)
			return next
		}
	}
	next.Err = err
	if d.stored.layouts.Source == source {
		// They were valid when they were stored.
		next.Layouts, _ = config.ParseMIGLayouts(source, []byte(d.stored.layouts.Data))
	}
	next.Unread = next.Layouts == nil
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
	data, err := hostconfig.ReadFile(path)
	if err != nil {
		return text{err: fmt.Sprintf("read config: %v (the path comes from --config)", err)}
	}
	return text{data: string(data)}
}

// same compares states; errors by their message.
func same(a, b State) bool {
	said := func(err error) string {
		if err == nil {
			return ""
		}
		return err.Error()
	}
	if said(a.Refused) != said(b.Refused) || said(a.MIG.Err) != said(b.MIG.Err) || !slices.EqualFunc(a.Unsaved, b.Unsaved, func(a, b error) bool { return said(a) == said(b) }) {
		return false
	}
	a.Refused, b.Refused, a.MIG.Err, b.MIG.Err, a.Unsaved, b.Unsaved = nil, nil, nil, nil, nil, nil
	return reflect.DeepEqual(a, b)
}
