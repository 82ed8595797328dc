package configwatch

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// Labels of a Node that choose its configuration.
const (
	// LabelConfig takes precedence over NVIDIA's label of the same meaning.
	LabelConfig       = "berth.dev/config"
	LabelNVIDIAConfig = "nvidia.com/device-plugin.config"
	// LabelMIG is the wanted MIG layout, LabelMIGState the state of its application.
	LabelMIG      = "nvidia.com/mig.config"
	LabelMIGState = "nvidia.com/mig.config.state"
)

const (
	// poll is the time between two reads of the file, which may be a symlink that moves.
	poll = 700 * time.Millisecond
	// rest is how long a changed file has to be equal before it is read: an editor that saves in place, or a copy, empties the file first
	// and writes it in parts, and each part can be a valid file.
	rest = 200 * time.Millisecond
	// startReads is how often a start reads a file that does not come to rest.
	startReads = 10
	// AnswerTimeout is how long a start waits for the API before the last known labels and layouts apply.
	AnswerTimeout = 3 * time.Second
)

// Judge checks a new configuration against the hardware of the node before it replaces the one in force.
type Judge interface {
	// Refuse returns why the hardware does not support a configuration: a device that is advertised now would be
	// refused. Known is false before the hardware was scanned; then Refuse is called again when Changed has a token.
	Refuse(inForce, next *v1alpha1.AgentConfig) (refused error, known bool)
	Changed() <-chan struct{}
}

// Deps are the dependencies of a Watcher.
type Deps struct {
	// File is the path of --config; empty for none.
	File string
	// Override applies the flags to a configuration; nil for none.
	Override func(*v1alpha1.AgentConfig)
	// Connect connects to the API server by the configuration of the start; its result may be nil, and it may be nil
	// itself: then only the file is followed.
	Connect func(*v1alpha1.AgentConfig) (dynamic.Interface, error)
	// ConfigMap is NAMESPACE/NAME of the ConfigMap whose keys are configurations; empty for none. DefaultKey is the key
	// for a node without a label; empty means "default", or the only key.
	ConfigMap  string
	DefaultKey string
	Clock      clock.WithTicker
	Log        *slog.Logger
	// Fault is called at each step of a change; an error stops it there, as if the process were killed. For tests.
	Fault func(Step) error
}

// Step is a moment of a change at which a test can stop it.
type Step string

// The steps.
const (
	// StepRead: a new configuration was read and is valid; it is not stored yet.
	StepRead Step = "config read"
	// StepKept: it is on disk and not yet in force.
	StepKept Step = "config kept"
)

// State is a snapshot of the sources and of their effect. It is never changed after it was returned.
type State struct {
	// Version is higher than that of every State before.
	Version int
	// Config is the configuration in force.
	Config *v1alpha1.AgentConfig
	// Source is where it was read: a path, or NAMESPACE/NAME/KEY; empty for all defaults.
	Source string
	// Notes name settings whose effect their author may not expect.
	Notes []string
	// Waiting is true until the ConfigMap was read for the first time: nothing should be advertised by a configuration
	// that is about to be replaced.
	Waiting bool
	// Pending is true while a valid configuration that is to replace this one waits for the hardware to be scanned, as at a start with an
	// edited file. GPUs that are found then must not be advertised by this one first.
	Pending bool
	// Refused is the reason why the newest configuration is not in force; nil when it is.
	Refused error
	// Restart lists the changed fields that take effect only at the next start.
	Restart []string
	// MIG is the partitioning that the node's label asks for.
	MIG MIG
	// Lost are files of an earlier agent that could not be read, until they are written again.
	Lost []Lost
	// Unsaved are why files do not have what is in force, for a restart. They are written again until that succeeds.
	Unsaved []error
	// Forbidden are the objects that the API server denies reading, with its message, sorted.
	Forbidden []string
}

// Lost is a file that could not be read.
type Lost struct {
	Code string
	Err  error
}

// MIG is the partitioning of the node according to the API.
type MIG struct {
	// Known is false until the Node was read, or the API has not responded for AnswerTimeout and its last content is
	// stored; before that, an empty Layout means nothing.
	Known bool
	// Remembered is true while Known is false and will become true without the API.
	Remembered bool
	// Layout is the value of the label; empty when there is none.
	Layout string
	// Layouts are those of the ConfigMap that Config.MIGConfigMap names.
	Layouts map[string][]v1alpha1.MIGLayoutEntry
	// Unread is true when that ConfigMap is configured and no valid content of it was ever read: layout names cannot be
	// resolved then.
	Unread bool
	// Err is the reason why Layouts are not the newest ones.
	Err error
}

// Watcher follows the sources. Create it with Open, start it with Run.
type Watcher struct {
	deps Deps
	// given is the configuration of the file and the flags at the start.
	given *v1alpha1.AgentConfig
	// base has the static settings, which do not change while the agent runs: those of the ConfigMap at the start, or else the given ones.
	base *v1alpha1.AgentConfig
	api  dynamic.Interface

	// current is replaced by the one goroutine that decides; it is read without a lock, so that no reader waits
	// for parsing or for the disk.
	current atomic.Pointer[State]
	nodeUID atomic.Pointer[string]
	// stored, and inForce, which is the text of Config, belong to the goroutine that decides.
	stored  stored
	inForce candidate
	// asked counts the calls of AwaitDecision, and answered has the last of them that a decision knew of; decided is signalled with it.
	asked    atomic.Int64
	answered atomic.Int64
	decided  signal.Broadcast

	mu      sync.Mutex
	sources sources
	wake    *signal.Signal // the sources have changed
	changed signal.Broadcast
	rewatch *signal.Signal // Config.MIGConfigMap may be another one
}

// sources has the last content of each source. The maps are replaced, never changed.
type sources struct {
	file text
	node nodeAnswer
	maps map[string]mapAnswer // by NAMESPACE/NAME
	// forbidden has the message of the API server for each object that it denies reading.
	forbidden map[string]string
	// timedOut is true after AnswerTimeout.
	timedOut bool
}

// text is the last content of the file.
type text struct {
	data string
	err  string
}

// nodeAnswer is the agent's Node as the API last returned it.
type nodeAnswer struct {
	known bool
	// uid is empty when there is no such Node.
	uid    string
	labels map[string]string
}

// mapAnswer is a ConfigMap as the API last returned it.
type mapAnswer struct {
	known  bool
	exists bool
	data   map[string]string
}

// Open finds the configuration to start with: the file, or the last valid one of an earlier start when the file is
// invalid. With a ConfigMap its last stored content is in force until the API responds. Open fails when there is no
// valid configuration.
func Open(deps Deps) (*Watcher, error) {
	deps.Clock = cmp.Or[clock.WithTicker](deps.Clock, clock.RealClock{})
	deps.Log = cmp.Or(deps.Log, slog.Default())
	w := &Watcher{deps: deps, wake: signal.New(), rewatch: signal.New()}
	w.nodeUID.Store(new(string))
	if deps.ConfigMap != "" && strings.Count(deps.ConfigMap, "/") != 1 {
		return nil, fmt.Errorf("find configuration: --config-map %q is not NAMESPACE/NAME", deps.ConfigMap)
	}
	if err := w.first(); err != nil {
		return nil, err
	}
	return w, nil
}

// Base returns the configuration of the start, of which only the static fields are valid while the agent runs.
func (w *Watcher) Base() *v1alpha1.AgentConfig { return w.base }

// API is the client of the API server; nil for none.
func (w *Watcher) API() dynamic.Interface { return w.api }

// Current returns the present state.
func (w *Watcher) Current() State { return *w.current.Load() }

// NodeUID is the UID of our Node; empty while it is not known.
func (w *Watcher) NodeUID() string { return *w.nodeUID.Load() }

// Subscribe signals whenever Current has changed.
func (w *Watcher) Subscribe() *signal.Subscription { return w.changed.Subscribe() }

// Run follows the sources until ctx ends. Without a judge every configuration suits the hardware.
func (w *Watcher) Run(ctx context.Context, judge Judge) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { w.decideAll(ctx, judge); return nil })
	group.Go(func() error { w.followFile(ctx); return nil })
	if w.api != nil {
		group.Go(func() error { w.followNode(ctx); return nil })
		if w.deps.ConfigMap != "" {
			group.Go(func() error { w.followMap(ctx, w.deps.ConfigMap); return nil })
		}
		group.Go(func() error { w.followLayouts(ctx); return nil })
	}
	return group.Wait()
}

func (w *Watcher) followFile(ctx context.Context) {
	if w.deps.File == "" {
		return
	}
	w.mu.Lock()
	last := w.sources.file
	w.mu.Unlock()
	ticker := w.deps.Clock.NewTicker(poll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		// The file is read outside of the lock: its file system may hang.
		next := readText(w.deps.File)
		if next == last {
			continue
		}
		if next = w.atRest(ctx, next); next != last && ctx.Err() == nil {
			last = next
			w.update(func(s *sources) { s.file = next })
		}
	}
}

// atRest returns what the file has once that has been equal for the time of rest, or ctx ends.
func (w *Watcher) atRest(ctx context.Context, seen text) text {
	for {
		select {
		case <-ctx.Done():
			return seen
		case <-w.deps.Clock.After(rest):
		}
		now := readText(w.deps.File)
		if now == seen {
			return now
		}
		seen = now
	}
}

// followLayouts follows whichever ConfigMap the configuration in force names.
func (w *Watcher) followLayouts(ctx context.Context) {
	for {
		name := w.Current().Config.MIGConfigMap
		inner, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if name != "" && name != w.deps.ConfigMap {
				w.followMap(inner, name)
			}
		}()
		for name == w.Current().Config.MIGConfigMap && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-w.rewatch.C():
			}
		}
		cancel()
		<-done
		if ctx.Err() != nil {
			return
		}
	}
}

// update records the content of a source and wakes the goroutine that decides.
func (w *Watcher) update(take func(*sources)) {
	w.mu.Lock()
	take(&w.sources)
	w.mu.Unlock()
	w.wake.Set()
}

// decideAll computes the state again whenever a source or the hardware has changed, until ctx ends. Only this goroutine
// parses and writes to disk.
func (w *Watcher) decideAll(ctx context.Context, judge Judge) {
	var hardware <-chan struct{}
	if judge != nil {
		hardware = judge.Changed()
	}
	var timedOut <-chan time.Time
	if w.api != nil {
		timedOut = w.deps.Clock.After(AnswerTimeout)
	}
	<-w.wake.C() // The first decision is for the first signal.
	for {
		w.decideOnce(judge)
		var retry <-chan time.Time
		if len(w.stored.unsaved) > 0 {
			retry = w.deps.Clock.After(w.stored.retry.Next())
		} else {
			w.stored.retry.Reset()
		}
		select {
		case <-ctx.Done():
			return
		case <-w.wake.C():
		case <-retry:
		case <-hardware:
		case <-timedOut:
			w.update(func(s *sources) { s.timedOut = true })
		}
	}
}

// decideOnce publishes the state that follows from the sources.
func (w *Watcher) decideOnce(judge Judge) {
	asked := w.asked.Load()
	w.mu.Lock()
	from := w.sources
	w.mu.Unlock()
	d := &decision{Watcher: w, from: from, judge: judge, state: w.Current()}
	if err := d.decide(); err != nil {
		return // A test stopped the change here.
	}
	if !same(w.Current(), d.state) {
		d.state.Version++
		w.current.Store(&d.state)
		w.changed.Set()
		w.rewatch.Set()
	}
	if _, answered, _ := d.wanted(); answered || from.timedOut {
		w.answered.Store(asked)
		w.decided.Set()
	}
}

// AwaitDecision returns when Current is what the sources and the hardware of this moment say, or ctx ends. For the API server it waits for
// AnswerTimeout after the start of Run, which has to run. Before it, Current can be the configuration of an earlier start.
func (w *Watcher) AwaitDecision(ctx context.Context) {
	decided := w.decided.Subscribe()
	defer decided.Close()
	for call := w.asked.Add(1); w.answered.Load() < call; {
		w.wake.Set()
		select {
		case <-ctx.Done():
			return
		case <-decided.C():
		}
	}
}
