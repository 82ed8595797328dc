package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/health"
)

// errWithdrawn is the error of a refresh of a vendor that is no longer called.
var errWithdrawn = errors.New("the vendor was withdrawn after a panic; restart the agent to use its GPUs again")

// scanResult is what a scan goroutine returns.
type scanResult struct {
	snapshot gpu.Snapshot
	// past are the events that the kernel log has, last is its last record, and recall which of them were asked for; nil for none.
	past   []gpu.Event
	last   uint64
	recall *uint64
	err    error
	began  time.Time
}

// crash is a panic of a source, as an error.
type crash struct {
	value any
	stack []byte
}

func (c *crash) Error() string { return fmt.Sprintf("panic: %v", c.value) }

// guarded calls a function and returns its error, or a *crash when it panicked.
func guarded(call func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &crash{value, debug.Stack()}
		}
	}()
	return call()
}

// loop runs the scans and the watch of one vendor: the goroutine of run owns all its fields but the channels. Loops
// share nothing but the merger.
type loop struct {
	deps   *Deps
	log    *slog.Logger
	source Source
	traits gpu.Traits
	// position is the source's index in Deps.Vendors.
	position int
	refresh  chan chan error
	reports  chan gpu.Event
	// recall has the record after which a scan has to bring the events of this boot; nil for no events. Any goroutine may set it.
	recall atomic.Pointer[uint64]
	// last is the last record of the kernel log that the picture follows from.
	last uint64

	merger  *merger
	picture *picture
	// withdrawn is set after a panic: the source is no longer called. endCalls ends the calls in progress.
	withdrawn bool
	endCalls  context.CancelFunc
	scans     scans
	watch     watch
}

// scans is the state of a loop's scans.
type scans struct {
	results chan scanResult
	running bool
	began   time.Time
	// again requests one more scan when the running one returns.
	again    bool
	deadline clock.Timer
	// waiting are the refreshes that need the next scan to begin, served those of the running one.
	waiting []chan error
	served  []chan error
	// soon starts the scan that follows an event; soonSet while it runs.
	soon    clock.Timer
	soonSet bool
}

// watch is the state of a loop's watch.
type watch struct {
	events  chan gpu.Event
	done    chan error
	running bool
	// resting is true between the end of a watch and its retry.
	resting   bool
	from      time.Time
	backoff   time.Duration
	retry     clock.Timer
	lastError string
}

func newLoop(deps *Deps, source Source, position int) *loop {
	l := &loop{
		deps: deps, log: deps.Log.With("vendor", source.Traits().Name), source: source, traits: source.Traits(), position: position,
		refresh: make(chan chan error), reports: make(chan gpu.Event),
		scans: scans{results: make(chan scanResult, 1)},
		watch: watch{events: make(chan gpu.Event, 64), done: make(chan error, 1), backoff: watchRetry},
	}
	return l
}

// refreshed returns when a scan that began after the call is published, or with its error or ctx's.
func (l *loop) refreshed(ctx context.Context) error {
	done := make(chan error, 1)
	for ask, answer := l.refresh, (chan error)(nil); ; {
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

// run scans and watches until ctx ends.
func (l *loop) run(ctx context.Context, m *merger, restored map[gpu.UUID]health.Record) {
	stop := ctx.Done()
	ctx, l.endCalls = context.WithCancel(ctx)
	defer l.endCalls()
	l.merger, l.picture = m, newPicture(l.deps.Rules, restored)
	l.scans.deadline, l.scans.soon, l.watch.retry = idleTimer(l.deps.Clock), idleTimer(l.deps.Clock), idleTimer(l.deps.Clock)
	defer l.scans.deadline.Stop()
	defer l.scans.soon.Stop()
	defer l.watch.retry.Stop()
	poll := l.deps.Clock.NewTicker(l.deps.Poll)
	defer poll.Stop()

	l.startScan(ctx)
	for {
		select {
		case <-stop:
			return
		case <-poll.C():
			l.startScan(ctx)
		case done := <-l.refresh:
			l.scans.waiting = append(l.scans.waiting, done)
			l.startScan(ctx)
			// A running scan began too early for it.
			l.scans.again = l.scans.again || len(l.scans.waiting) > 0
		case <-l.scans.soon.C():
			l.scans.soonSet, l.scans.again = false, true
			l.startScan(ctx)
		case result := <-l.scans.results:
			l.scanReturned(ctx, result)
		case <-l.scans.deadline.C():
			l.scanIsLate()
		case event := <-l.watch.events:
			l.eventCame(event)
		case event := <-l.reports:
			l.eventCame(event)
		case err := <-l.watch.done:
			l.watchReturned(err)
		case <-l.watch.retry.C():
			l.watch.resting = false
			l.startWatch(ctx)
		}
	}
}

// idleTimer returns a timer that is not running.
func idleTimer(c clock.Clock) clock.Timer {
	timer := c.NewTimer(time.Hour)
	if !timer.Stop() {
		<-timer.C()
	}
	return timer
}

// startScan starts a scan unless one runs: at most one call can hang.
func (l *loop) startScan(ctx context.Context) {
	if l.withdrawn {
		l.answer(&l.scans.waiting, errWithdrawn)
		return
	}
	if l.scans.running {
		return
	}
	l.scans.running, l.scans.again = true, false
	l.scans.served, l.scans.waiting = l.scans.waiting, nil
	l.scans.deadline.Reset(l.deps.Deadline)
	began := l.deps.Clock.Now()
	l.scans.began = began
	go func() {
		result := scanResult{began: began}
		result.err = guarded(func() (err error) {
			result.snapshot, err = l.source.Scan(ctx)
			if source, ok := l.source.(history); ok && err == nil && result.snapshot.DriverPresent() {
				if result.recall = l.recall.Load(); result.recall != nil {
					result.past, result.last = source.Past()
				}
			}
			return err
		})
		l.scans.results <- result
	}()
}

// answer sends an error, or nil, to all waiting refreshes, and removes them.
func (l *loop) answer(waiting *[]chan error, err error) {
	for _, done := range *waiting {
		done <- err
	}
	*waiting = nil
}

// show publishes the picture. It waits for no file.
func (l *loop) show(is standing) bool {
	return l.merger.update(l.position, part{snapshot: l.picture.snapshot(), records: l.picture.all(), proves: l.picture.proves(), last: l.last, standing: is})
}

// scanReturned applies a scan, also a late one: the picture is updated however slow the driver is.
func (l *loop) scanReturned(ctx context.Context, result scanResult) {
	l.scans.running = false
	l.scans.deadline.Stop()
	now := l.deps.Clock.Now()
	late := now.Sub(result.began) >= l.deps.Deadline
	if ctx.Err() != nil || l.withdrawn {
		return
	}
	if result.err == nil {
		// More GPUs than a machine can have are refused, not compared with one another.
		if len(result.snapshot.GPUs) <= maxGPUs {
			leaveOut(&result.snapshot)
		}
		if why := refuse(&result.snapshot, l.traits, l.merger.owner(l.position)); why != "" {
			result.err = &refusal{why}
		}
	}
	if panicked, ok := errors.AsType[*crash](result.err); ok {
		l.withdraw("Scan", panicked)
		return
	}
	if result.err != nil {
		l.log.Error("Scan failed", "error", result.err)
		l.picture.failed(result.err, now)
		l.show(excused)
	} else {
		renewed := l.picture.scanned(result.snapshot, result.began, now, late)
		if result.recall != nil {
			l.recalled(&result, now)
		}
		l.show(scanned)
		if l.deps.Renewed != nil && len(renewed) > 0 {
			l.deps.Renewed(renewed)
		}
		l.startWatch(ctx)
	}
	l.answer(&l.scans.served, result.err)
	if late {
		l.log.Info("Late scan returned", "took", now.Sub(result.began))
	}
	if l.scans.again || late {
		l.startScan(ctx)
	}
}

// recalled applies the events of this boot that were asked for, before the scan with them is published: a GPU that has to be reset must
// not be offered in between.
func (l *loop) recalled(result *scanResult, now time.Time) {
	l.recall.CompareAndSwap(result.recall, nil)
	found := 0
	for _, event := range result.past {
		if event.Record > *result.recall {
			event.Time = now
			l.picture.happened(event)
			found++
		}
	}
	l.last = max(l.last, result.last)
	l.log.Info("Read the kernel log of this boot", "after", *result.recall, "last", result.last, "events", found)
	if found > 0 {
		l.scanSoon()
	}
}

// withdraw ends all calls of a source that has panicked: its state is no longer known.
func (l *loop) withdraw(call string, panicked *crash) {
	if l.withdrawn {
		return
	}
	l.withdrawn = true
	l.log.Error("Withdrew vendor after a panic", "call", call, "panic", panicked.value, "stack", string(panicked.stack))
	l.endCalls()
	l.picture.withdrawn(fmt.Sprintf("%s of %s panicked: %v", call, l.traits.Title, panicked.value), l.deps.Clock.Now())
	l.show(withdrawn)
	l.answer(&l.scans.served, errWithdrawn)
	l.answer(&l.scans.waiting, errWithdrawn)
}

func (l *loop) scanIsLate() {
	now := l.deps.Clock.Now()
	if !l.scans.running || l.withdrawn || now.Sub(l.scans.began) < l.deps.Deadline {
		return // drain a tick of an earlier scan
	}
	var id gpu.UUID
	var call string
	if source, ok := l.source.(progress); ok {
		var panicked *crash
		if err := guarded(func() error { id, call = source.Doing(); return nil }); errors.As(err, &panicked) {
			l.withdraw("Doing", panicked)
			return
		}
	}
	l.log.Error("Scan exceeded its deadline", "gpu", id, "call", call, "deadline", l.deps.Deadline)
	l.picture.hung(cmp.Or(l.traits.TimeoutCode, gpu.CodeTimeout), id, call, l.deps.Deadline, now)
	l.show(excused)
}

// eventAttrs returns the attributes that an event has.
func eventAttrs(event gpu.Event) []any {
	attrs := []any{"gpu", event.GPU, "code", event.Code.String()}
	if event.Reset {
		attrs = append(attrs, "reset", true)
	}
	if event.GI >= 0 {
		attrs = append(attrs, "gi", event.GI, "ci", event.CI)
	}
	if event.Detail != "" {
		attrs = append(attrs, "detail", event.Detail)
	}
	return attrs
}

func (l *loop) eventCame(event gpu.Event) {
	if l.withdrawn {
		return
	}
	if event.Time.IsZero() {
		event.Time = l.deps.Clock.Now()
	}
	l.picture.happened(event)
	l.last = max(l.last, event.Record)
	level := slog.LevelDebug // bursts of ignored or repeated events must not fill the log
	if l.show(unchanged) {
		level = slog.LevelWarn
	}
	l.log.Log(context.Background(), level, "Received hardware event", eventAttrs(event)...)
	l.scanSoon()
}

// scanSoon starts a scan for an event, and for those that follow in a moment.
func (l *loop) scanSoon() {
	if !l.scans.soonSet {
		l.scans.soonSet = true
		l.scans.soon.Reset(afterEvent)
	}
}

// startWatch starts the watch unless it runs or waits for its retry. It needs a first scan, which gives the source the
// GPUs to watch.
func (l *loop) startWatch(ctx context.Context) {
	if l.watch.running || l.watch.resting || l.withdrawn || ctx.Err() != nil {
		return
	}
	l.watch.running, l.watch.from = true, l.deps.Clock.Now()
	go func() {
		l.watch.done <- guarded(func() error {
			return l.source.Watch(ctx, func(event gpu.Event) {
				select {
				case l.watch.events <- event:
				case <-ctx.Done():
				}
			})
		})
	}()
}

func (l *loop) watchReturned(err error) {
	l.watch.running, l.watch.resting = false, true
	if panicked, ok := errors.AsType[*crash](err); ok {
		l.withdraw("Watch", panicked)
		return
	}
	now := l.deps.Clock.Now()
	if now.Sub(l.watch.from) >= l.deps.Poll {
		l.watch.backoff = watchRetry
	}
	text := fmt.Sprint(err)
	if text != l.watch.lastError {
		l.log.Warn("Event watch ended; polling continues", "error", text, "retry", l.watch.backoff)
		l.watch.lastError = text
	}
	l.watch.retry.Reset(l.watch.backoff)
	l.watch.backoff = min(2*l.watch.backoff, max(l.deps.Poll, watchRetry))
}

// leave waits for the calls in progress until the timer fires. It reports whether they have ended.
func (l *loop) leave(patience <-chan time.Time) bool {
	for l.scans.running || l.watch.running {
		select {
		case <-l.scans.results:
			l.scans.running = false
		case <-l.watch.done:
			l.watch.running = false
		case <-l.watch.events:
		case <-patience:
			l.log.Warn("Stopped while a hardware call was in progress")
			return false
		}
	}
	return true
}
