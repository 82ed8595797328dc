package cdi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/signal"
)

const (
	// ResyncInterval is the time between two comparisons of the spec with the driver's files without an event.
	ResyncInterval = time.Minute
	// SyncDeadline is how long one comparison may take before it is reported.
	SyncDeadline = 20 * time.Second
)

// SpecWriter renders and writes the spec; [Writer] is one.
type SpecWriter interface {
	Sync(ctx context.Context, snapshot *gpu.Snapshot, extras Extras) (changed bool, err error)
	Problems() []gpu.Cause
}

// Hardware is the inventory.
type Hardware interface {
	Current() *gpu.Snapshot
	Ready() <-chan struct{}
}

// SyncerDeps are the dependencies of a Syncer.
type SyncerDeps struct {
	Writer SpecWriter
	// Dir is the CDI directory that SpecWriter writes to.
	Dir string
	// DevRoot is where this process sees the root of dev/.
	DevRoot  string
	Hardware Hardware
	// Extras returns the configuration's additions to the spec, from memory.
	Extras func() Extras
	// Settled subscribes to changes of the hardware and of what Extras follows from, with one signal where one leads to the other.
	Settled func() *signal.Subscription
	// Hook installs the hook program again if it was removed; nil for none.
	Hook func() error
	// Watch signals, until ctx ends, when another program has removed or changed the spec or the hook program; nil for nothing.
	Watch func(ctx context.Context) <-chan struct{}
	// Report replaces the problems of a source; it must not block.
	Report func(source string, problems ...gpu.Cause)
	// Changed is called when Current has changed; it must not block.
	Changed func()
	Clock   clock.WithTicker
}

// Injection has the devices that can be injected, according to the files when they were last read.
type Injection struct {
	// Names are the unqualified names of the devices in the CDI spec on disk.
	Names map[string]bool
	// IMEXChannels are those of the configured IMEX channels that the node has.
	IMEXChannels []int
}

// syncStatus is what the last comparison found; its problems have the one that the spec could not be read.
type syncStatus struct {
	fingerprint string
	problems    []gpu.Cause
}

// Syncer keeps the node's CDI spec in line with the hardware and the configuration. Create it with NewSyncer, start it with Run.
//
// What wakes it: a settlement of the use of the devices, which follows each change of the inventory and of the configuration; Recheck, when
// the MPS daemons have changed; another program that removes or changes the spec or the hook program; and a tick every minute, since the
// driver's files change without any of these.
//
// What it writes: the CDI spec, through [Writer]; the hook program, if it was removed; the problems of the sources "cdi" and "cdi-spec";
// and [Injection], which has the devices that the spec on disk can inject.
//
// All file calls are made by one goroutine beside the loop, at most one at a time, and nothing waits for it: a file call that hangs leaves
// the last spec in force and is reported as CDI_SPEC_KEPT.
type Syncer struct {
	deps    SyncerDeps
	wake    *signal.Signal
	current atomic.Pointer[Injection]
	status  atomic.Pointer[syncStatus]
	// compared is signalled when Status has changed.
	compared signal.Broadcast
}

// NewSyncer returns a Syncer; it touches nothing.
func NewSyncer(deps SyncerDeps) *Syncer {
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Hook == nil {
		deps.Hook = func() error { return nil }
	}
	return &Syncer{deps: deps, wake: signal.New()}
}

// Current returns the present injection; nil before the first comparison has ended.
func (s *Syncer) Current() *Injection { return s.current.Load() }

// Names returns the names in the spec on disk; false while they are not known.
func (s *Syncer) Names() (map[string]bool, bool) {
	if current := s.current.Load(); current != nil {
		return current.Names, true
	}
	return nil, false
}

// Status returns the fingerprint of the spec on disk, which is empty when there is none or it could not be read, and the problems that the
// last comparison found; known is false before the first one has ended.
func (s *Syncer) Status() (fingerprint string, problems []gpu.Cause, known bool) {
	if status := s.status.Load(); status != nil {
		return status.fingerprint, status.problems, true
	}
	return "", nil, false
}

// SubscribeStatus signals changes of Status.
func (s *Syncer) SubscribeStatus() *signal.Subscription { return s.compared.Subscribe() }

// Recheck signals that Extras may have changed. It never waits.
func (s *Syncer) Recheck() { s.wake.Set() }

// syncOutcome is the result of one comparison.
type syncOutcome struct {
	injection Injection
	// unreadable is true when the spec could not be read back; the names are not known then.
	unreadable  error
	problems    []gpu.Cause
	fingerprint string
}

// Run compares until ctx ends, and returns nil immediately even while a file call hangs.
func (s *Syncer) Run(ctx context.Context) error {
	settled := s.deps.Settled()
	defer settled.Close()
	resync := s.deps.Clock.NewTicker(ResyncInterval)
	defer resync.Stop()
	var touched <-chan struct{}
	if s.deps.Watch != nil {
		touched = s.deps.Watch(ctx)
		select {
		case <-touched: // What has changed before, the first comparison sees.
		default:
		}
	}
	done := make(chan syncOutcome, 1)
	var late <-chan time.Time
	// due: something has changed since the last comparison began.
	due, running := false, false
	for ready := s.deps.Hardware.Ready(); ; {
		if due && ready == nil && !running {
			due, running, late = false, true, s.deps.Clock.After(SyncDeadline)
			go func() { done <- s.compare(ctx) }()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-settled.C():
			due = true
		case <-ready:
			ready = nil
		case <-s.wake.C():
			due = true
		case <-touched:
			due = true
		case <-resync.C():
			due = true
		case <-late:
			late = nil
			s.deps.Report("cdi", gpu.Cause{Code: "CDI_SPEC_KEPT", Message: fmt.Sprintf("the CDI spec is not compared with the driver's files: "+
				"a file call below %s or %s has not returned within %s; the last spec stays in force", s.deps.Dir, s.deps.DevRoot, SyncDeadline)})
		case result := <-done:
			running, late = false, nil
			s.apply(result)
		}
	}
}

// compare makes all the file calls.
func (s *Syncer) compare(ctx context.Context) syncOutcome {
	ctx, cancel := context.WithTimeout(ctx, SyncDeadline)
	defer cancel()
	extras := s.deps.Extras()
	var result syncOutcome
	result.injection.IMEXChannels = s.channels(extras.IMEXChannels)
	var hook []gpu.Cause
	if err := s.deps.Hook(); err != nil {
		hook = []gpu.Cause{{Code: "CDI_HOOK_MISSING", Message: err.Error()}}
	}
	// An error is among the problems.
	_, _ = s.deps.Writer.Sync(ctx, s.deps.Hardware.Current(), extras)
	result.problems = append(s.deps.Writer.Problems(), hook...)
	spec, err := ReadSpec(s.deps.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		result.unreadable = err
		return result
	}
	result.injection.Names = map[string]bool{}
	if spec != nil {
		result.fingerprint = spec.Fingerprint()
		for _, device := range spec.Devices {
			result.injection.Names[device.Name] = true
		}
	}
	return result
}

// channels returns the wanted IMEX channels whose node exists; the spec's problems name the others.
func (s *Syncer) channels(wanted []int) []int {
	var there []int
	for _, channel := range wanted {
		node := filepath.Join(s.deps.DevRoot, "dev/nvidia-caps-imex-channels", "channel"+strconv.Itoa(channel))
		if _, err := os.Stat(node); err == nil {
			there = append(there, channel)
		}
	}
	return there
}

// apply reports the problems, and calls Changed when the injection has changed.
func (s *Syncer) apply(result syncOutcome) {
	s.deps.Report("cdi", result.problems...)
	s.note(result)
	before := s.current.Load()
	next := result.injection
	if result.unreadable != nil {
		s.deps.Report("cdi-spec", gpu.Cause{Code: "CDI_SPEC_UNREADABLE", Message: result.unreadable.Error()})
		if before != nil {
			next.Names = before.Names
		}
	} else {
		s.deps.Report("cdi-spec")
	}
	if before != nil && reflect.DeepEqual(*before, next) {
		return
	}
	s.current.Store(&next)
	s.deps.Changed()
}

// note keeps the status.
func (s *Syncer) note(result syncOutcome) {
	next := &syncStatus{result.fingerprint, result.problems}
	if result.unreadable != nil {
		next.problems = append(slices.Clone(next.problems), gpu.Cause{Code: "CDI_SPEC_UNREADABLE", Message: result.unreadable.Error()})
	}
	if before := s.status.Load(); before == nil || !reflect.DeepEqual(*before, *next) {
		s.status.Store(next)
		s.compared.Set()
	}
}
