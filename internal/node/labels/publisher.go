package labels

import (
	"context"
	"errors"
	"hash/fnv"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// Deps are what a Publisher is made of.
type Deps struct {
	Writer Writer
	// NodeName spreads the retries of a fleet.
	NodeName string
	// Clock defaults to the real one.
	Clock clock.WithTicker
	Log   *slog.Logger
	// Interval is the least time between two writes; default 1 s.
	Interval time.Duration
	// Resync is how often the place is compared with the labels, so that what was deleted or
	// changed by hand comes back; default 10 min.
	Resync time.Duration
}

const (
	defaultInterval = time.Second
	defaultResync   = 10 * time.Minute
	callTimeout     = 10 * time.Second
	maxBackoff      = time.Minute
	maxDoublings    = 6
)

// Publisher keeps a place equal to the last labels that Publish got. Until the first of them it
// leaves alone what a former life put there.
type Publisher struct {
	deps   Deps
	wake   chan struct{}
	mu     sync.Mutex
	wanted Labels
	writes atomic.Int64
	failed atomic.Pointer[string]
}

// NewPublisher makes a publisher; Run does the work.
func NewPublisher(deps Deps) *Publisher {
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Interval <= 0 {
		deps.Interval = defaultInterval
	}
	if deps.Resync <= 0 {
		deps.Resync = defaultResync
	}
	return &Publisher{deps: deps, wake: make(chan struct{}, 1)}
}

// Publish says what the labels should be; none is a wish too. It never waits; of several calls between
// two writes the last one counts. The labels must not be changed afterwards.
func (p *Publisher) Publish(labels Labels) {
	if labels == nil {
		labels = Labels{}
	}
	p.mu.Lock()
	p.wanted = labels
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Writes counts the writes that the place took.
func (p *Publisher) Writes() int64 { return p.writes.Load() }

// Err says why the last attempt failed; nil when the place has the last labels, or when
// nothing was to be written yet.
func (p *Publisher) Err() error {
	if text := p.failed.Load(); text != nil {
		return errors.New(*text)
	}
	return nil
}

// course is what Run remembers between two writes.
type course struct {
	// known tells whether published is what the place has.
	known     bool
	published Labels
	failures  int
}

// Run writes until ctx ends, which is the only error it returns. A failed write is tried again with growing
// pauses, up to a minute; it delays nobody but itself.
func (p *Publisher) Run(ctx context.Context) error {
	state := &course{}
	p.compare(ctx, state) // an agent that starts again has nothing to say that the place does not know
	resync := p.deps.Clock.NewTicker(p.deps.Resync)
	defer resync.Stop()
	for {
		wrote, err := p.step(ctx, state)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		pause := time.Duration(0)
		switch {
		case err != nil:
			pause = p.backoff(state.failures)
			state.failures++
			p.note(err, pause)
		default:
			state.failures = 0
			p.failed.Store(nil)
			if wrote {
				pause = p.deps.Interval
			}
		}
		if err := p.wait(ctx, pause, state, resync.C()); err != nil {
			return err
		}
	}
}

// wait returns after the pause, once there may be something to do.
func (p *Publisher) wait(ctx context.Context, pause time.Duration, state *course, resync <-chan time.Time) error {
	if pause > 0 {
		timer := p.deps.Clock.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C():
		}
		if state.failures > 0 {
			return nil
		}
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-p.wake:
	case <-resync:
		p.compare(ctx, state)
	}
	return nil
}

// step writes the wanted labels if the place does not have them.
func (p *Publisher) step(ctx context.Context, state *course) (wrote bool, err error) {
	p.mu.Lock()
	wanted := p.wanted
	p.mu.Unlock()
	if wanted == nil || state.known && maps.Equal(state.published, wanted) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := p.deps.Writer.Write(ctx, wanted); err != nil {
		state.known = false // it may have been written all the same
		return false, err
	}
	p.writes.Add(1)
	state.known, state.published = true, wanted
	return true, nil
}

// compare learns what the place has, so that the next step writes what differs. While the place does not
// answer, what was believed of it is believed on.
func (p *Publisher) compare(ctx context.Context, state *course) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	labels, err := p.deps.Writer.Read(ctx)
	if err != nil {
		p.deps.Log.Debug("labels not compared", "place", p.deps.Writer.Place(), "error", err)
		return
	}
	state.known, state.published = true, labels
}

// note keeps the reason and logs it once until it changes.
func (p *Publisher) note(err error, pause time.Duration) {
	text := err.Error()
	if last := p.failed.Swap(&text); last == nil || *last != text {
		p.deps.Log.Warn("labels not written; the last ones that were stay", "place", p.deps.Writer.Place(), "error", text, "next", pause)
	}
}

// backoff doubles from the interval to a minute. A part of it, up to a quarter, depends on the node's
// name, so that a fleet does not come back in step.
func (p *Publisher) backoff(failures int) time.Duration {
	pause := p.deps.Interval << min(failures, maxDoublings)
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(p.deps.NodeName))
	pause += pause / 4 * time.Duration(hash.Sum32()%1000) / 1000
	return min(pause, maxBackoff)
}
