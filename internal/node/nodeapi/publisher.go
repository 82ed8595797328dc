package nodeapi

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/berth-gpu/berth/internal/node/signal"
)

const (
	// defaultInterval is the least time between two writes of an object.
	defaultInterval = time.Second
	// defaultResync is the time between two comparisons with the object.
	defaultResync = 10 * time.Minute
	// firstCompare and secondCompare are the times until the first two comparisons, where those are shorter than
	// the resync. The agent that this one replaces can have a write under way when it ends, which the API server
	// carries out after the first one of this agent.
	firstCompare  = 5 * time.Second
	secondCompare = 25 * time.Second
)

// PublisherDeps are the dependencies of a Publisher.
type PublisherDeps[T any] struct {
	// Read returns the present value of what Write wrote, also in an earlier run of the agent; found is false when the
	// next value has to be written in any case.
	Read func(context.Context) (value T, found bool, err error)
	// Write makes the object equal to the value.
	Write func(context.Context, T) error
	Equal func(x, y T) bool
	// Report gets the outcome of each attempt: why it failed, or nil. It must not block.
	Report func(error)
	Retry  Retry
	Log    *slog.Logger
	// Interval is the least time between two writes; default 1 s.
	Interval time.Duration
	// Resync is the time between two comparisons, after which what was deleted or edited by hand is written again;
	// default 10 min. The first ones come earlier, for the last write of an agent that ends.
	Resync time.Duration
}

// Publisher keeps one object equal to the last value that Publish got. Until the first value it does not change the
// object. Create it with NewPublisher, start it with Run.
type Publisher[T any] struct {
	deps PublisherDeps[T]
	wake *signal.Signal
	// recheck wakes Run for a comparison.
	recheck chan struct{}

	mu     sync.Mutex
	wanted T
	// version counts the wanted values; done is the one that the last attempt was for, with its outcome.
	version  uint64
	done     uint64
	err      error
	attempts signal.Broadcast
}

// NewPublisher returns a publisher without reading or writing the object.
func NewPublisher[T any](deps PublisherDeps[T]) *Publisher[T] {
	if deps.Interval <= 0 {
		deps.Interval = defaultInterval
	}
	if deps.Resync <= 0 {
		deps.Resync = defaultResync
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	return &Publisher[T]{deps: deps, wake: signal.New(), recheck: make(chan struct{}, 1)}
}

// Recheck makes the publisher compare and write at once, also while it waits after failed attempts. It never waits.
func (p *Publisher[T]) Recheck() {
	select {
	case p.recheck <- struct{}{}:
	default:
	}
}

// Publish sets the wanted value, which must not be changed afterwards. It never waits; of several calls between two
// writes the last one counts.
func (p *Publisher[T]) Publish(value T) { p.want(value) }

func (p *Publisher[T]) want(value T) (version uint64) {
	p.mu.Lock()
	p.wanted = value
	p.version++
	version = p.version
	p.mu.Unlock()
	p.wake.Set()
	return version
}

// PublishAndWait sets the wanted value and waits until it, or a later one, was written. It returns the error of a
// failed attempt, or that of ctx when that ends first; the value remains wanted.
func (p *Publisher[T]) PublishAndWait(ctx context.Context, value T) error {
	attempts := p.attempts.Subscribe()
	defer attempts.Close()
	for version := p.want(value); ; {
		p.mu.Lock()
		done, err := p.done >= version, p.err
		p.mu.Unlock()
		if done {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-attempts.C():
		}
	}
}

// Written reports whether the wanted value was written.
func (p *Publisher[T]) Written() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.version > 0 && p.done == p.version && p.err == nil
}

// published is the last known value of the object.
type published[T any] struct {
	known bool
	value T
}

// Run writes until ctx ends, which is the only error that it returns. It removes nothing then.
func (p *Publisher[T]) Run(ctx context.Context) error {
	var there published[T]
	p.compare(ctx, &there) // A restarted agent does not write an equal value again.
	early := []time.Duration{firstCompare, secondCompare}
	resync := p.deps.Retry.Clock.NewTimer(min(early[0], p.deps.Resync))
	defer resync.Stop()
	for failures := 0; ; {
		wrote, err := p.step(ctx, &there)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		pause := time.Duration(0)
		switch {
		case err != nil:
			failures++
			pause = p.deps.Retry.Pause(failures)
		case wrote:
			pause, failures = p.deps.Interval, 0
		default:
			failures = 0
		}
		again, err := p.pause(ctx, pause)
		switch {
		case err != nil:
			return err
		case again:
			p.compare(ctx, &there)
			failures = 0
			continue
		case failures > 0:
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.wake.C():
		case <-p.recheck:
			p.compare(ctx, &there)
		case <-resync.C():
			p.compare(ctx, &there)
			next := p.deps.Resync
			if early = early[min(1, len(early)):]; len(early) > 0 {
				next = min(early[0], next)
			}
			resync.Reset(next)
		}
	}
}

// pause waits between two attempts; again is true when Recheck ended the wait.
func (p *Publisher[T]) pause(ctx context.Context, pause time.Duration) (again bool, err error) {
	if pause <= 0 {
		return false, ctx.Err()
	}
	timer := p.deps.Retry.Clock.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-p.recheck:
		return true, nil
	case <-timer.C():
		return false, nil
	}
}

// step writes the wanted value if it is not there.
func (p *Publisher[T]) step(ctx context.Context, there *published[T]) (wrote bool, err error) {
	p.mu.Lock()
	wanted, version := p.wanted, p.version
	p.mu.Unlock()
	if version == 0 {
		return false, nil
	}
	if !there.known || !p.deps.Equal(there.value, wanted) {
		wrote = true
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		err = p.deps.Write(ctx, wanted)
		*there = published[T]{err == nil, wanted} // A failed write may still have taken effect.
	}
	if ctx.Err() != nil {
		return wrote, err
	}
	p.deps.Report(err)
	p.mu.Lock()
	p.done, p.err = version, err
	p.mu.Unlock()
	p.attempts.Set()
	return wrote, err
}

// compare reads the object, so that the next step writes the difference. While that fails, the last known value is
// used.
func (p *Publisher[T]) compare(ctx context.Context, there *published[T]) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	value, found, err := p.deps.Read(ctx)
	if err != nil {
		p.deps.Log.Debug("Could not compare object", "error", err)
		return
	}
	*there = published[T]{found, value}
}
