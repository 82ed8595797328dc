package inventory

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/health"
)

// The defaults of Deps.
const (
	DefaultPoll     = 5 * time.Second
	DefaultDeadline = 10 * time.Second
)

const (
	// afterEvent is how long after an event the next scan starts: long enough for one
	// scan to serve a burst of events, short enough to find soon what else is wrong.
	afterEvent = 100 * time.Millisecond
	// watchRetry is the first pause before a broken watch starts again; it doubles up
	// to the poll interval.
	watchRetry = time.Second
	// farewell bounds how long Run waits for hardware calls at its end.
	farewell = time.Second
)

// Source is the hardware, usually a vendor adapter.
type Source interface {
	// Scan reads the whole node. In the snapshot, a GPU's health holds the level causes
	// that this scan found, without Since, and State Gone for a card that did not answer. Partial is true
	// for a card that it could not read completely: its causes are added, and nothing is taken for repaired.
	Scan(ctx context.Context) (gpu.Snapshot, error)
	// Watch calls emit for each event until ctx ends or the hardware goes away; then it
	// is called again.
	Watch(ctx context.Context, emit func(gpu.Event)) error
}

// progress is what a Source may offer so that a hung call can be named.
type progress interface {
	// Doing is the call that the running scan is in, and its card ("" for the node).
	Doing() (card gpu.UUID, call string)
}

// Deps is what an Inventory needs.
type Deps struct {
	Source Source
	Clock  clock.WithTicker
	Log    *slog.Logger
	// Poll is the time between scans; DefaultPoll when zero.
	Poll time.Duration
	// Deadline is how long a scan may take before it counts as hung; DefaultDeadline
	// when zero.
	Deadline time.Duration
	// Rules say what counts, and how much.
	Rules health.Rules
	// IgnoredXIDs are further XIDs that are no cause.
	IgnoredXIDs map[uint64]bool
	// Keep is the file that carries what is known of the cards' health over a restart of this process; empty
	// for none. BootID voids what was kept in an earlier boot.
	Keep, BootID string
	// KeepLost is called when that file could not be used; nil for nobody.
	KeepLost func(cause gpu.Cause)
	// Renewed is called with the GPUs that a scan found in another life than the one before: they were reset, or got their
	// driver again, by whomever, and have lost their settings. It must not block; nil for nobody.
	Renewed func(gpus []gpu.UUID)
}

// Inventory is the node's hardware as last known. Make it with New and start it with
// Run; all other methods may be called at any time from any goroutine.
type Inventory struct {
	deps    Deps
	current atomic.Pointer[gpu.Snapshot]
	ready   chan struct{}
	refresh chan chan error
	reports chan gpu.Event
	// write replaces the file of Deps.Keep.
	write func(path string, blob []byte) error

	mu            sync.Mutex
	subscriptions map[*Subscription]struct{}
}

// New makes an inventory that has seen nothing yet.
func New(deps Deps) *Inventory {
	if deps.Poll <= 0 {
		deps.Poll = DefaultPoll
	}
	if deps.Deadline <= 0 {
		deps.Deadline = DefaultDeadline
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if len(deps.IgnoredXIDs) > 0 {
		ignored := maps.Clone(deps.IgnoredXIDs)
		maps.Copy(ignored, deps.Rules.Checks.Ignored)
		deps.Rules.Checks.Ignored = ignored
	}
	inventory := &Inventory{
		deps:          deps,
		ready:         make(chan struct{}),
		refresh:       make(chan chan error),
		reports:       make(chan gpu.Event),
		subscriptions: map[*Subscription]struct{}{},
		write:         writeHealth,
	}
	inventory.current.Store(&gpu.Snapshot{})
	return inventory
}

// Current is the last published snapshot: never nil, shared by all readers, never
// changed. Before the first scan it is empty.
func (i *Inventory) Current() *gpu.Snapshot { return i.current.Load() }

// Ready is closed when the first scan has returned and its snapshot is published. A
// first scan that hangs does not close it; its fault is in Current.
func (i *Inventory) Ready() <-chan struct{} { return i.ready }

// Refresh returns when a scan that began after the call is published, or with that scan's
// error, or with ctx's. It needs Run to run.
func (i *Inventory) Refresh(ctx context.Context) error {
	done := make(chan error, 1)
	for ask, answer := i.refresh, (chan error)(nil); ; {
		select {
		case ask <- done:
			ask, answer = nil, done
		case err := <-answer:
			return err
		case <-ctx.Done():
			return fmt.Errorf("refresh inventory: no scan has finished: %w", ctx.Err())
		}
	}
}

// Report hands in an event that this program caused, such as a reset of a GPU. It needs Run to run.
func (i *Inventory) Report(ctx context.Context, event gpu.Event) error {
	select {
	case i.reports <- event:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("report an event to the inventory: %w", ctx.Err())
	}
}

// Subscription tells one reader that Current changed.
type Subscription struct {
	changed   chan struct{}
	inventory *Inventory
}

// Subscribe starts a subscription. When a scan has already been published, it begins
// signalled, so that a reader needs no separate first look.
func (i *Inventory) Subscribe() *Subscription {
	s := &Subscription{changed: make(chan struct{}, 1), inventory: i}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.subscriptions[s] = struct{}{}
	select {
	case <-i.ready:
		s.signal()
	default:
	}
	return s
}

// C carries a signal when Current changed since the last one was taken. Several
// changes may share a signal; none is lost.
func (s *Subscription) C() <-chan struct{} { return s.changed }

// Close ends the subscription; C carries nothing new after it.
func (s *Subscription) Close() {
	s.inventory.mu.Lock()
	defer s.inventory.mu.Unlock()
	delete(s.inventory.subscriptions, s)
}

func (s *Subscription) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// publish makes next the current snapshot if it differs, and tells everyone. It
// returns whether it did.
func (i *Inventory) publish(next *gpu.Snapshot) bool {
	last := i.Current()
	if Equal(last, next) {
		return false
	}
	i.current.Store(next)
	i.deps.Log.Info("hardware changed", "change", Diff(last, next).String())
	i.mu.Lock()
	defer i.mu.Unlock()
	for s := range i.subscriptions {
		s.signal()
	}
	return true
}

// announceReady closes Ready once.
func (i *Inventory) announceReady() {
	i.mu.Lock()
	defer i.mu.Unlock()
	select {
	case <-i.ready:
	default:
		close(i.ready)
		for s := range i.subscriptions {
			s.signal()
		}
	}
}
