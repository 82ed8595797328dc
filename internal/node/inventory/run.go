package inventory

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/health"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// scanResult is what a scan goroutine hands back.
type scanResult struct {
	snapshot gpu.Snapshot
	err      error
	began    time.Time
}

// loop is the state of one Run: one goroutine owns all of it.
type loop struct {
	*Inventory
	picture *picture

	results  chan scanResult
	scanning bool
	began    time.Time
	// again asks for one more scan when the running one returns.
	again    bool
	deadline clock.Timer
	// waiting want the next scan to begin, served the one that runs.
	waiting, served []chan error
	// soon starts the scan that follows an event; soonSet while it runs.
	soon    clock.Timer
	soonSet bool

	events    chan gpu.Event
	watchDone chan error
	watching  bool
	// resting is true between the end of a watch and its retry.
	resting   bool
	watchFrom time.Time
	backoff   time.Duration
	retry     clock.Timer
	lastError string
	// kept are the records that were handed to keeper last.
	kept map[gpu.UUID]health.Record
	// keeper writes the health beside this loop; nil where it is not kept.
	keeper *keeper
}

// Run scans and watches until ctx ends, then returns nil. It returns within about a
// second even while hardware calls hang; those goroutines end when their call returns.
// Run may be called once.
func (i *Inventory) Run(ctx context.Context) error {
	if i.deps.Source == nil {
		return fmt.Errorf("run inventory: no hardware source was given")
	}
	file := healthFile(i.deps.Keep, i.deps.BootID)
	l := &loop{
		Inventory: i,
		picture:   newPicture(i.deps.Rules, i.restore(file)),
		results:   make(chan scanResult, 1),
		deadline:  idleTimer(i.deps.Clock),
		soon:      idleTimer(i.deps.Clock),
		events:    make(chan gpu.Event, 64),
		watchDone: make(chan error, 1),
		backoff:   watchRetry,
		retry:     idleTimer(i.deps.Clock),
	}
	if i.deps.Keep != "" {
		l.keeper = startKeeper(func(blob []byte) error { return i.write(i.deps.Keep, blob) }, i.deps.Log)
	}
	defer l.deadline.Stop()
	defer l.soon.Stop()
	defer l.retry.Stop()
	// The context of hardware calls ends with Run, so that a watch returns.
	calls, cancel := context.WithCancel(ctx)
	defer cancel()
	poll := i.deps.Clock.NewTicker(i.deps.Poll)
	defer poll.Stop()

	l.startScan(calls)
	for {
		select {
		case <-ctx.Done():
			cancel()
			l.leave()
			return nil
		case <-poll.C():
			l.startScan(calls)
		case done := <-i.refresh:
			l.waiting = append(l.waiting, done)
			l.startScan(calls)
			// One that ran already began too early for it.
			l.again = l.again || len(l.waiting) > 0
		case <-l.soon.C():
			l.soonSet, l.again = false, true
			l.startScan(calls)
		case result := <-l.results:
			l.scanReturned(calls, result)
		case <-l.deadline.C():
			l.scanIsLate()
		case event := <-l.events:
			l.eventCame(event)
		case event := <-i.reports:
			l.eventCame(event)
		case err := <-l.watchDone:
			l.watchReturned(err)
		case <-l.retry.C():
			l.resting = false
			l.startWatch(calls)
		}
	}
}

// restore reads what was known of the cards before this process.
func (i *Inventory) restore(file statefile.File[map[gpu.UUID]health.Record]) map[gpu.UUID]health.Record {
	if file.Path == "" {
		return nil
	}
	cards, result := file.Load()
	if result.Lost() {
		i.deps.Log.Warn("a fault of a GPU from before may be forgotten", "error", result.Err)
		if i.deps.KeepLost != nil {
			i.deps.KeepLost(gpu.Cause{Code: result.Code(), Message: result.Err.Error() + "; a fault that was reported before and shows in no scan is forgotten"})
		}
	}
	return restored(cards, i.deps.Clock.Now())
}

// idleTimer makes a timer that is not running.
func idleTimer(c clock.Clock) clock.Timer {
	timer := c.NewTimer(time.Hour)
	if !timer.Stop() {
		<-timer.C()
	}
	return timer
}

// startScan starts a scan unless one runs: a hung call must not collect company.
func (l *loop) startScan(ctx context.Context) {
	if l.scanning {
		return
	}
	l.scanning, l.again = true, false
	l.served, l.waiting = l.waiting, nil
	l.deadline.Reset(l.deps.Deadline)
	began := l.deps.Clock.Now()
	l.began = began
	go func() {
		snapshot, err := l.deps.Source.Scan(ctx)
		l.results <- scanResult{snapshot, err, began}
	}()
}

// show publishes the picture, and has written down what a restart must not forget. It reports whether the picture
// changed. It does not wait for the file.
func (l *loop) show() bool {
	changed := l.publish(l.picture.snapshot())
	if l.keeper == nil || !changed && !l.picture.proves() {
		return changed
	}
	records := l.picture.all()
	if reflect.DeepEqual(records, l.kept) {
		return changed
	}
	l.kept = records
	blob, err := healthFile(l.deps.Keep, l.deps.BootID).Encode(records)
	if err != nil {
		l.deps.Log.Error("a restart would forget the faults of GPUs", "error", err)
		return changed
	}
	l.keeper.keep(blob)
	return changed
}

// scanReturned applies a scan, a late one too: however slow the driver is, the
// picture moves on.
func (l *loop) scanReturned(ctx context.Context, result scanResult) {
	l.scanning = false
	l.deadline.Stop()
	now := l.deps.Clock.Now()
	late := now.Sub(result.began) >= l.deps.Deadline
	switch {
	case ctx.Err() != nil:
		return
	case result.err != nil:
		l.deps.Log.Error("scan failed", "error", result.err)
		l.picture.failed(result.err, now)
		l.show()
	default:
		renewed := l.picture.scanned(result.snapshot, result.began, now, late)
		l.show()
		if l.deps.Renewed != nil && len(renewed) > 0 {
			l.deps.Renewed(renewed)
		}
		l.announceReady()
		l.startWatch(ctx)
	}
	for _, done := range l.served {
		done <- result.err
	}
	l.served = nil
	if late {
		l.deps.Log.Info("late scan returned", "took", now.Sub(result.began))
	}
	if l.again || late {
		l.startScan(ctx)
	}
}

func (l *loop) scanIsLate() {
	now := l.deps.Clock.Now()
	if !l.scanning || now.Sub(l.began) < l.deps.Deadline {
		return // a tick that was left over from an earlier scan
	}
	var card gpu.UUID
	var call string
	if source, ok := l.deps.Source.(progress); ok {
		card, call = source.Doing()
	}
	l.deps.Log.Error("scan hangs", "gpu", card, "call", call, "deadline", l.deps.Deadline)
	l.picture.hung(card, call, l.deps.Deadline, now)
	l.show()
}

func (l *loop) eventCame(event gpu.Event) {
	if event.Time.IsZero() {
		event.Time = l.deps.Clock.Now()
	}
	l.picture.happened(event)
	level := slog.LevelDebug // storms of ignored or repeated events must not fill the log
	if l.show() {
		level = slog.LevelWarn
	}
	l.deps.Log.Log(context.Background(), level, "hardware event",
		"gpu", event.GPU, "code", event.Code.String(), "reset", event.Reset, "gi", event.GI, "ci", event.CI, "detail", event.Detail)
	if !l.soonSet {
		l.soonSet = true
		l.soon.Reset(afterEvent)
	}
}

// startWatch starts the watch unless it runs or waits for its retry. It needs a
// first scan, which tells the adapter what there is to watch.
func (l *loop) startWatch(ctx context.Context) {
	if l.watching || l.resting || ctx.Err() != nil {
		return
	}
	l.watching, l.watchFrom = true, l.deps.Clock.Now()
	go func() {
		l.watchDone <- l.deps.Source.Watch(ctx, func(event gpu.Event) {
			select {
			case l.events <- event:
			case <-ctx.Done():
			}
		})
	}()
}

func (l *loop) watchReturned(err error) {
	l.watching, l.resting = false, true
	now := l.deps.Clock.Now()
	if now.Sub(l.watchFrom) >= l.deps.Poll {
		l.backoff = watchRetry
	}
	text := fmt.Sprint(err)
	if text != l.lastError {
		l.deps.Log.Warn("event watch ended, polling goes on", "error", text, "retry", l.backoff)
		l.lastError = text
	}
	l.retry.Reset(l.backoff)
	l.backoff = min(2*l.backoff, max(l.deps.Poll, watchRetry))
}

// leave waits a little for the file and for the hardware calls under way.
func (l *loop) leave() {
	patience := l.deps.Clock.NewTimer(farewell)
	defer patience.Stop()
	if l.keeper != nil {
		select {
		case <-l.keeper.end():
		case <-patience.C():
			l.deps.Log.Error("leaving while the write of the GPUs' health hangs; a restart may forget faults", "path", l.deps.Keep)
			return
		}
	}
	for l.scanning || l.watching {
		select {
		case <-l.results:
			l.scanning = false
		case <-l.watchDone:
			l.watching = false
		case <-l.events:
		case <-patience.C():
			l.deps.Log.Warn("leaving while a hardware call hangs")
			return
		}
	}
}
