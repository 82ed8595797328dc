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
	// LabelConfig wins over NVIDIA's label of the same meaning.
	LabelConfig       = "berth.dev/config"
	LabelNVIDIAConfig = "nvidia.com/device-plugin.config"
	// LabelMIG is the wanted MIG layout, LabelMIGState what became of it.
	LabelMIG      = "nvidia.com/mig.config"
	LabelMIGState = "nvidia.com/mig.config.state"
)

const (
	// poll is the time between two looks at the file, which may be a symlink that moves.
	poll = time.Second
	// Patience is how long a start waits for the API before the last known labels and layouts count.
	Patience = 3 * time.Second
)

// Judge knows the hardware of the node. It is asked before a new configuration replaces one that is in force.
type Judge interface {
	// Refuse says why the hardware cannot have a configuration: a device that is offered now would be refused. Known is
	// false before the hardware was scanned; then the question is asked again when Changed has a token.
	Refuse(inForce, next *v1alpha1.AgentConfig) (refused error, known bool)
	Changed() <-chan struct{}
}

// Deps is what a Watcher needs.
type Deps struct {
	// File is the path of --config; empty for none.
	File string
	// Override lays the flags over a configuration; nil for none.
	Override func(*v1alpha1.AgentConfig)
	// Connect finds the API server by the configuration of the start; its answer may be nil,
	// and it may be nil itself: then only the file is followed.
	Connect func(*v1alpha1.AgentConfig) (dynamic.Interface, error)
	// ConfigMap is NAMESPACE/NAME of the one whose keys are configurations; empty for
	// none. DefaultKey is the key for a node without a label; empty takes "default", or the only key.
	ConfigMap, DefaultKey string
	Clock                 clock.WithTicker
	Log                   *slog.Logger
	// Fault is called at each step of a change; an error stops it there, as death
	// would. For tests.
	Fault func(Step) error
}

// Step is a moment of a change at which a test can stop it.
type Step string

// The steps.
const (
	// StepRead: a new configuration was read and is good; nothing is kept yet.
	StepRead Step = "config read"
	// StepKept: it is on disk and not yet in force.
	StepKept Step = "config kept"
)

// State is what is known at a moment. It is never changed after it was given out.
type State struct {
	// Version is higher than that of every State before.
	Version int
	// Config is what is in force.
	Config *v1alpha1.AgentConfig
	// Source is where it was read: a path, or NAMESPACE/NAME/KEY; empty for all defaults.
	Source string
	// Notes say what of it has another effect than its writer may expect.
	Notes []string
	// Waiting is true while the ConfigMap's answer has never been known: nothing should be
	// advertised by a configuration that is about to be replaced.
	Waiting bool
	// Refused says why the newest configuration is not in force; nil when it is.
	Refused error
	// Restart are the fields that were changed and take effect only at the next start.
	Restart []string
	// MIG is what the node's label asks for.
	MIG MIG
	// Lost are files of an earlier agent that could not be used, until they are written again.
	Lost []Lost
	// Forbidden are the objects that the API server does not let the agent read, with what it said, in order.
	Forbidden []string
}

// Lost is a file that could not be used.
type Lost struct {
	Code string
	Err  error
}

// MIG is what the API says of the node's partition.
type MIG struct {
	// Known is false until the Node was read, or the API was away for Patience and what it said last is
	// remembered; nothing follows from an empty Layout before.
	Known bool
	// Remembered is true while Known is false and will become true without the API.
	Remembered bool
	// Layout is the value of the label; empty when there is none.
	Layout string
	// Layouts are those of the ConfigMap that Config.MIGConfigMap names.
	Layouts map[string][]v1alpha1.MIGLayoutEntry
	// Unread is true when that ConfigMap is named and no good content of it was ever read: no name of a
	// layout means anything then.
	Unread bool
	// Err says why Layouts are not the newest ones.
	Err error
}

// Watcher follows the sources. Make it with Open, start it with Run.
type Watcher struct {
	deps Deps
	// base is what the start settled: the values that do not change while the agent runs.
	base *v1alpha1.AgentConfig
	api  dynamic.Interface

	// current is replaced by the one goroutine that decides; it is read without a lock, so that no reader waits
	// for parsing or for the disk.
	current atomic.Pointer[State]
	nodeUID atomic.Pointer[string]
	// memory is of the goroutine that decides, as is lastKeep, the last reason why nothing could be kept.
	memory   memory
	lastKeep string

	mu      sync.Mutex
	sources sources
	wake    chan struct{} // the sources have changed
	changed signal.Broadcast
	rewatch chan struct{} // Config.MIGConfigMap may be another one
}

// sources are what each source last said. The maps are replaced, never changed.
type sources struct {
	file text
	node nodeAnswer
	maps map[string]mapAnswer // by NAMESPACE/NAME
	// forbidden is what the API server said when it refused to let an object be read, by object.
	forbidden map[string]string
	// late is true once the API had the time to answer.
	late bool
}

// text is the last content of the file that was looked at.
type text struct {
	data string
	err  string
}

// nodeAnswer is what the API last said of our Node.
type nodeAnswer struct {
	known bool
	// uid is empty when there is no such Node.
	uid    string
	labels map[string]string
}

// mapAnswer is what the API last said of a ConfigMap.
type mapAnswer struct {
	known, exists bool
	data          map[string]string
}

// Open finds the configuration to start with: the file's, or when that is bad the last
// good one that an earlier start kept. With a ConfigMap the last one kept of it is in
// force until the API answers. It fails when there is no good configuration at all.
func Open(deps Deps) (*Watcher, error) {
	deps.Clock = cmp.Or[clock.WithTicker](deps.Clock, clock.RealClock{})
	deps.Log = cmp.Or(deps.Log, slog.Default())
	w := &Watcher{deps: deps, wake: make(chan struct{}, 1), rewatch: make(chan struct{}, 1)}
	w.nodeUID.Store(new(string))
	if deps.ConfigMap != "" && strings.Count(deps.ConfigMap, "/") != 1 {
		return nil, fmt.Errorf("find configuration: --config-map %q is not NAMESPACE/NAME", deps.ConfigMap)
	}
	if err := w.first(); err != nil {
		return nil, err
	}
	return w, nil
}

// Base is what the start settled: of it, the values that only a start can change.
func (w *Watcher) Base() *v1alpha1.AgentConfig { return w.base }

// API is what Connect found; nil for none.
func (w *Watcher) API() dynamic.Interface { return w.api }

// Current is what is known now.
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
		if next := readText(w.deps.File); next != last {
			last = next
			w.learn(func(s *sources) { s.file = next })
		}
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
			case <-w.rewatch:
			}
		}
		cancel()
		<-done
		if ctx.Err() != nil {
			return
		}
	}
}

// learn takes in what a source said, and wakes the goroutine that decides.
func (w *Watcher) learn(take func(*sources)) {
	w.mu.Lock()
	take(&w.sources)
	w.mu.Unlock()
	poke(w.wake)
}

// decideAll computes the state again whenever a source or the hardware has changed, until ctx ends. Parsing and
// writing to the disk happen here and nowhere else.
func (w *Watcher) decideAll(ctx context.Context, judge Judge) {
	var hardware <-chan struct{}
	if judge != nil {
		hardware = judge.Changed()
	}
	var late <-chan time.Time
	if w.api != nil {
		late = w.deps.Clock.After(Patience)
	}
	for {
		w.decideOnce(judge)
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-hardware:
		case <-late:
			w.learn(func(s *sources) { s.late = true })
		}
	}
}

// decideOnce publishes what follows from what the sources say now.
func (w *Watcher) decideOnce(judge Judge) {
	w.mu.Lock()
	from := w.sources
	w.mu.Unlock()
	d := &decision{Watcher: w, from: from, judge: judge, state: w.Current()}
	if err := d.decide(); err != nil {
		return // A test stopped the change here.
	}
	if same(w.Current(), d.state) {
		return
	}
	d.state.Version++
	w.current.Store(&d.state)
	w.changed.Set()
	poke(w.rewatch)
}

func poke(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
