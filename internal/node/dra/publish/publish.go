// Package publish keeps the ResourceSlices of the node in the API server.
//
// It guarantees that the slices are published at the start, after each change, and again after each registration with a kubelet, which
// may have deleted them; that a failure is repeated within 30 s at the latest, and reported until the API server is seen to have the
// slices; and that features which the API server does not have are remembered, so that the next slices can do without them.
//
// What wakes it: a change of what Slices follows from, a registration, an error of the library, and timers after these. What it writes:
// the ResourceSlices, through the helper library of DRA drivers, and the problems of the source "resourceslices". What it never waits
// for: the driver, the ledger, files. Only it waits for the API server.
//
// The library repeats a failed write after up to 1,000 s and does not say when it succeeds; it makes deleted slices again after 30 s. So
// this package publishes again by itself, which makes the library compare at once and costs no request when nothing differs, and then
// reads the slices.
package publish

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// Source is the source of the problems.
const Source = "resourceslices"

const (
	// firstFollow is the time after a registration until the slices are published a second time: the kubelet deletes them while it
	// registers drivers. The time doubles until lastFollow.
	firstFollow = 50 * time.Millisecond
	lastFollow  = 30 * time.Second
	// firstRetry is the time until the slices are published again after a failure. It doubles until lastRetry.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// checkLimit is how long reading the slices may take.
	checkLimit = 10 * time.Second
)

// Target writes the slices of all pools of the driver; it is the helper library. Its first call may wait for the API server.
type Target interface {
	PublishResources(ctx context.Context, resources resourceslice.DriverResources) error
}

// Deps are the dependencies of a Publisher.
type Deps struct {
	// Pool is the name of the node's pool.
	Pool string
	// Slices returns what to publish, valid by the limits of the API. disabled are the features (feature gates of Kubernetes) that the API
	// server was seen not to have, sorted. It must not wait for the API server or the driver.
	Slices func(disabled []string) (resourceslice.Pool, error)
	// Changed subscribes to changes of what Slices follows from.
	Changed func() *signal.Subscription
	Target  Target
	// Waiting reports whether an error of Target says that it cannot publish yet and that Registered follows.
	Waiting func(error) bool
	// Check returns an error when the API server does not have exactly the slices of the pool.
	Check func(ctx context.Context, pool resourceslice.Pool) error
	// Report replaces the problems of a source; it must not block.
	Report func(source string, problems ...gpu.Cause)
	Clock  clock.WithTicker
	Log    *slog.Logger
}

// Publisher is the actor. Create it with New, start it with Run.
type Publisher struct {
	deps       Deps
	registered *signal.Signal
	failed     *signal.Signal
	wrote      *signal.Signal
	permitted  *signal.Signal

	mu sync.Mutex
	// failure is the last error of the library.
	failure error
	// disabled are the features that the API server does not have, sorted.
	disabled []string
	// seen is when the API server was last seen to have the slices.
	seen time.Time
}

// New returns a Publisher; it touches nothing.
func New(deps Deps) *Publisher {
	p := &Publisher{deps: deps, registered: signal.New(), failed: signal.New(), wrote: signal.New(), permitted: signal.New()}
	<-p.permitted.C() // The first publish needs no signal.
	<-p.wrote.C()
	return p
}

// Registered signals that a kubelet has registered the driver, and so may have deleted the slices. It never waits.
func (p *Publisher) Registered() { p.registered.Set() }

// Permitted signals that Slices may have another result, besides the changes that Changed signals. It never waits.
func (p *Publisher) Permitted() { p.permitted.Set() }

// Wrote signals that the library has written or deleted a slice, so that the slices are read. It never waits.
func (p *Publisher) Wrote() { p.wrote.Set() }

// Failed takes an error of the library's background work. It never waits.
func (p *Publisher) Failed(err error) {
	p.mu.Lock()
	if dropped, ok := errors.AsType[*resourceslice.DroppedFieldsError](err); ok {
		p.disabled = append(p.disabled, dropped.DisabledFeatures()...)
		slices.Sort(p.disabled)
		p.disabled = slices.Compact(p.disabled)
	} else {
		p.failure = err
	}
	p.mu.Unlock()
	p.failed.Set()
}

// disabledFeatures returns the features that the API server does not have.
func (p *Publisher) disabledFeatures() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.disabled)
}

// Published returns when the API server was last seen to have the slices, or the zero time.
func (p *Publisher) Published() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

// Run publishes until ctx ends.
func (p *Publisher) Run(ctx context.Context) error {
	r := &round{Publisher: p, checked: make(chan error, 1)}
	changed := p.deps.Changed()
	defer changed.Close()
	defer r.checks.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed.C():
			r.publish(ctx)
		case <-p.permitted.C():
			r.publish(ctx)
		case <-p.registered.C():
			r.follow = firstFollow
			r.publish(ctx)
		case <-p.failed.C():
			r.takeFailure(ctx)
		case <-p.wrote.C():
			r.takeWrite(ctx)
		case <-r.followC():
			r.follow *= 2
			r.publish(ctx)
		case <-r.retryC:
			r.publish(ctx)
		case err := <-r.checked:
			r.takeCheck(ctx, err)
		}
	}
}
