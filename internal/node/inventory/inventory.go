package inventory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/health"
	"github.com/berth-gpu/berth/internal/node/signal"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// The defaults of Deps.
const (
	DefaultPoll     = 5 * time.Second
	DefaultDeadline = 10 * time.Second
)

const (
	// afterEvent is how long after an event the next scan starts: long enough for one scan to serve a burst of events,
	// short enough to find further faults soon.
	afterEvent = 100 * time.Millisecond
	// watchRetry is the first pause before a broken watch starts again; it doubles up
	// to the poll interval.
	watchRetry = time.Second
	// shutdownTimeout bounds how long Run waits for hardware calls at its end.
	shutdownTimeout = time.Second
)

// Source is the hardware of one vendor.
type Source interface {
	// Traits returns the names of the vendor. It touches no hardware.
	Traits() gpu.Traits
	// Scan reads all GPUs of the vendor. In the snapshot, a GPU's health holds the level causes that this scan found,
	// without Since, and State Gone for a GPU that did not answer. Partial is true for a GPU that it could not read
	// completely: its causes are added, and none is removed.
	Scan(ctx context.Context) (gpu.Snapshot, error)
	// Watch calls emit for each event until ctx ends or the hardware is lost; then it is called again.
	Watch(ctx context.Context, emit func(gpu.Event)) error
}

// progress is an optional method of a Source, by which a hung call can be named.
type progress interface {
	// Doing returns the call that the running scan is in, and its GPU ("" for the node).
	Doing() (id gpu.UUID, call string)
}

// history is an optional method of a Source, by which faults are found again whose record was lost.
type history interface {
	// Past returns the events of this boot that the kernel log still has, oldest first, about the GPUs of the last scan, and the number of
	// its last record plus one, as in [gpu.Event]. A scan has returned before.
	Past() (events []gpu.Event, last uint64)
}

// Deps are the dependencies of an Inventory.
type Deps struct {
	// Vendors are the sources, each with a name of its own. When two report the same UUID, the GPU is that of the vendor
	// that comes first here.
	Vendors []Source
	Clock   clock.WithTicker
	Log     *slog.Logger
	// Poll is the time between scans; DefaultPoll when zero.
	Poll time.Duration
	// Deadline is how long a scan may take before it counts as hung; DefaultDeadline
	// when zero.
	Deadline time.Duration
	// Rules configure which faults count, and as how severe.
	Rules health.Rules
	// IgnoredXIDs are further XIDs that are not a cause.
	IgnoredXIDs map[uint64]bool
	// Keep is the file that carries the health records of the GPUs over a restart of this process; empty for none. BootID
	// invalidates a file of an earlier boot.
	Keep   string
	BootID string
	// Report, unless nil, replaces the problems of a source: of LostSource and UnsavedSource, which are about that file. It must not block.
	Report func(source string, problems ...gpu.Cause)
	// Renewed, unless nil, is called with the GPUs that a scan found in another life than the one before: they were reset,
	// or their driver was loaded again, and they have lost their settings. It must not block. Several goroutines may call it.
	Renewed func(gpus []gpu.UUID)
}

// Inventory has the last known state of the node's hardware. Create it with New and start it with Run; all other
// methods may be called at any time from any goroutine.
type Inventory struct {
	deps    Deps
	current atomic.Pointer[gpu.Snapshot]
	ready   *signal.Ready
	changed signal.Broadcast
	loops   []*loop
	// write replaces the file of Deps.Keep.
	write func(path string, blob []byte) error
}

// New returns an inventory that has scanned nothing yet.
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
	if deps.Report == nil {
		deps.Report = func(string, ...gpu.Cause) {}
	}
	inventory := &Inventory{deps: deps, ready: signal.NewReady(), write: writeHealth}
	inventory.current.Store(&gpu.Snapshot{})
	for position, source := range deps.Vendors {
		inventory.loops = append(inventory.loops, newLoop(&inventory.deps, source, position))
	}
	return inventory
}

// Current returns the last published snapshot: never nil, shared by all readers, never
// changed. Before the first scan it is empty.
func (i *Inventory) Current() *gpu.Snapshot { return i.current.Load() }

// Ready is closed when the first scan of each vendor has returned and is published. Once one of them has, Ready does
// not wait for a vendor whose first scan failed or is later than its deadline, and never for a withdrawn one. It waits
// for the first scan of an only vendor however long that hangs; its fault is in Current.
func (i *Inventory) Ready() <-chan struct{} { return i.ready.Done() }

// Refresh returns when a scan of each vendor that began after the call is published, or with the error of one of these
// scans, or with ctx's. Withdrawn vendors are left out. It needs Run to run.
func (i *Inventory) Refresh(ctx context.Context) error {
	answers := make(chan error, len(i.loops))
	for _, l := range i.loops {
		go func() { answers <- l.refreshed(ctx) }()
	}
	var first error
	for range i.loops {
		if err := <-answers; err != nil && first == nil && !errors.Is(err, errWithdrawn) {
			first = err
		}
	}
	return first
}

// Hardware is the inventory, or that of one vendor, for those who follow it.
type Hardware interface {
	Current() *gpu.Snapshot
	Subscribe() *signal.Subscription
}

// OfVendor is the inventory of one vendor's GPUs: its Current has no others, and its Refresh waits for no other vendor.
type OfVendor struct {
	*Inventory
	name string
	// last is the part of the snapshot that Current returned last.
	last *atomic.Pointer[partOf]
}

// Of returns the inventory for the vendor of that name.
func (i *Inventory) Of(vendor string) OfVendor {
	return OfVendor{i, vendor, new(atomic.Pointer[partOf])}
}

// partOf is the part of a snapshot that is about one vendor.
type partOf struct {
	whole *gpu.Snapshot
	part  *gpu.Snapshot
}

// Current is that of Inventory, with the part that is about the vendor. Like the whole it is the same until it changes.
func (o OfVendor) Current() *gpu.Snapshot {
	whole, last := o.Inventory.Current(), o.last.Load()
	if last == nil || last.whole != whole {
		last = &partOf{whole, whole.Of(o.name)}
		o.last.Store(last)
	}
	return last.part
}

// Refresh is that of Inventory for one vendor.
func (o OfVendor) Refresh(ctx context.Context) error {
	for _, l := range o.loops {
		if l.traits.Name == o.name {
			return l.refreshed(ctx)
		}
	}
	return fmt.Errorf("refresh inventory: no vendor is called %q", o.name)
}

// Report adds an event that this program caused, such as a reset of a GPU. It needs Run to run.
func (i *Inventory) Report(ctx context.Context, event gpu.Event) error {
	owner := ""
	if found, _ := i.Current().Device(event.GPU); found != nil {
		owner = found.Vendor
	}
	for _, l := range i.loops {
		if owner != "" && l.traits.Name != owner {
			continue
		}
		select {
		case l.reports <- event:
		case <-ctx.Done():
			return fmt.Errorf("report an event to the inventory: %w", ctx.Err())
		}
	}
	return nil
}

// Subscribe returns a subscription to changes of Current; its first signal is pending. There is one more signal when
// Ready is closed.
func (i *Inventory) Subscribe() *signal.Subscription { return i.changed.Subscribe() }

// Run scans and watches until ctx ends, then returns nil. It returns within about a
// second even while hardware calls hang; those goroutines end when their call returns.
// Run may be called once.
func (i *Inventory) Run(ctx context.Context) error {
	if len(i.loops) == 0 {
		return fmt.Errorf("run inventory: no hardware source was given")
	}
	restored, last := i.restore(healthFile(i.deps.Keep, i.deps.BootID))
	m := newMerger(i, restored)
	m.last = last
	if i.deps.Keep != "" {
		m.keeper = startKeeper(func(blob []byte) error { return i.write(i.deps.Keep, blob) }, i.written, i.deps.Clock)
		m.keep(true) // Where it cannot be written now, an earlier process may have failed to write too.
	}
	var running sync.WaitGroup
	for _, l := range i.loops {
		running.Go(func() { l.run(ctx, m, restored) })
	}
	running.Wait()
	i.leave(m.keeper)
	return nil
}

// restore reads the health records of an earlier process, and which record of the kernel log was the last that they follow from; 0 when
// that is not known. The first scan brings the events that they do not follow from: all where the records were lost; those that came while
// no process ran, and those whose records could not be written any more, where they are there; none at the first start in a boot, since
// GPUs may have been repaired that were never judged.
func (i *Inventory) restore(file statefile.File[map[gpu.UUID]health.Record]) (records map[gpu.UUID]health.Record, last uint64) {
	if file.Path == "" {
		return nil, 0
	}
	records, result := file.Load()
	last, err := strconv.ParseUint(result.Mark, 10, 64)
	switch {
	case result.Lost():
		last = 0
		i.recall(0)
		i.deps.Report(LostSource, gpu.Cause{Code: result.Code(), Message: result.Err.Error() + "; the faults of this boot are taken from the kernel log, as far as it still has them"})
	case result.State == statefile.Present && err == nil:
		i.recall(last)
	default:
		i.recall(math.MaxUint64)
	}
	return restored(records, i.deps.Clock.Now()), last
}

// recall lets the next scan of each vendor bring the events that the kernel log has after a record.
func (i *Inventory) recall(after uint64) {
	for _, l := range i.loops {
		l.recall.Store(&after)
	}
}

// written reports the result of a write of the file; first is true for the first one of this process.
func (i *Inventory) written(err error, first bool) {
	if err == nil {
		i.deps.Report(UnsavedSource)
		return
	}
	if first {
		i.recall(0)
	}
	i.deps.Report(UnsavedSource, gpu.Cause{Code: "STATE_UNWRITABLE", Message: err.Error() + "; a restart would know only those faults of GPUs that a scan or the kernel log shows"})
}

// leave waits for a short time for the file and for the hardware calls in progress.
func (i *Inventory) leave(keeper *keeper) {
	patience := i.deps.Clock.NewTimer(shutdownTimeout)
	defer patience.Stop()
	if keeper != nil {
		select {
		case <-keeper.end():
		case <-patience.C():
			i.deps.Log.Error("Stopped while the health of GPUs was being stored; a restart may lose faults", "path", i.deps.Keep)
			return
		}
	}
	for _, l := range i.loops {
		if !l.leave(patience.C()) {
			return
		}
	}
}
