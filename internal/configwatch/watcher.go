package configwatch

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
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

// poll is the time between two looks at the file, which may be a symlink that moves.
const poll = time.Second

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
}

// MIG is what the API says of the node's partition.
type MIG struct {
	// Known is false until the Node was read; nothing follows from an empty Layout before.
	Known bool
	// Layout is the value of the label; empty when there is none.
	Layout string
	// Layouts are those of the ConfigMap that Config.MIGConfigMap names.
	Layouts map[string][]v1alpha1.MIGLayoutEntry
	// Err says why Layouts are not the newest ones.
	Err error
}

// Watcher follows the sources. Make it with Open, start it with Run.
type Watcher struct {
	deps Deps
	// base is what the start settled: the values that do not change while the agent runs.
	base *v1alpha1.AgentConfig
	api  dynamic.Interface

	mu      sync.Mutex
	state   State
	file    text
	node    nodeAnswer
	maps    map[string]mapAnswer // by NAMESPACE/NAME
	changed chan struct{}
	rewatch chan struct{} // Config.MIGConfigMap may be another one
}

// text is the last content of the file that was looked at.
type text struct {
	data string
	err  string
}

// nodeAnswer is what the API last said of our Node.
type nodeAnswer struct {
	known  bool
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
	w := &Watcher{deps: deps, maps: map[string]mapAnswer{}, changed: make(chan struct{}, 1), rewatch: make(chan struct{}, 1)}
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
func (w *Watcher) Current() State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

// Changed has a token whenever Current has changed.
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

// Run follows the sources until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
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
	ticker := w.deps.Clock.NewTicker(poll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		if next := readText(w.deps.File); next != w.file {
			w.learn(func() { w.file = next })
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

// learn takes in what a source said and computes anew what follows.
func (w *Watcher) learn(take func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	take()
	before := w.state
	if err := w.decide(); err != nil {
		return // A test stopped the change here.
	}
	if same(before, w.state) {
		return
	}
	for _, wake := range []chan struct{}{w.changed, w.rewatch} {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}
