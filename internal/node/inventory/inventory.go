package inventory

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/health"
	"github.com/berth-gpu/berth/internal/node/signal"
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
	ready   *signal.Ready
	changed signal.Broadcast
	refresh chan chan error
	reports chan gpu.Event
	// write replaces the file of Deps.Keep.
	write func(path string, blob []byte) error
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
		deps:    deps,
		ready:   signal.NewReady(),
		refresh: make(chan chan error),
		reports: make(chan gpu.Event),
		write:   writeHealth,
	}
	inventory.current.Store(&gpu.Snapshot{})
	return inventory
}

// Current is the last published snapshot: never nil, shared by all readers, never
// changed. Before the first scan it is empty.
func (i *Inventory) Current() *gpu.Snapshot { return i.current.Load() }

// Ready is closed when the first scan has returned and its snapshot is published. A
// first scan that hangs does not close it; its fault is in Current.
func (i *Inventory) Ready() <-chan struct{} { return i.ready.Done() }

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

// Subscribe returns a subscription to changes of Current; its first signal is pending. There is one more signal when
// Ready is closed.
func (i *Inventory) Subscribe() *signal.Subscription { return i.changed.Subscribe() }

// publish makes next the current snapshot if it differs, and signals the subscribers. It
// returns whether it did.
func (i *Inventory) publish(next *gpu.Snapshot) bool {
	last := i.Current()
	if Equal(last, next) {
		return false
	}
	i.current.Store(next)
	i.deps.Log.Info("hardware changed", "change", Diff(last, next).String())
	i.changed.Set()
	return true
}

// announceReady closes Ready at its first call. Only the goroutine of Run calls it.
func (i *Inventory) announceReady() {
	if i.ready.Is() {
		return
	}
	i.ready.Set()
	i.changed.Set()
}
