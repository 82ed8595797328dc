package web

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

const (
	// RefreshInterval is the least time between two reads of the cluster, however many browsers there are.
	RefreshInterval = time.Second
	// forgetAfter is how long what was read is kept.
	forgetAfter = 15 * time.Second
	// sampleInterval is the least time between two reads of a node's measurements, sampleTimeout how long one may take.
	sampleInterval = 10 * time.Second
	sampleTimeout  = 2 * time.Second
	// mostSampled is of how many nodes the measurements are read for a page, all at the same time.
	mostSampled = 16
)

// cached keeps what was read, for all requests of a time. An error is kept as well.
type cached[T any] struct {
	clock    clock.WithDelayedExecution
	interval time.Duration
	read     func(context.Context) (T, error)
	// turn is held by the request that reads.
	turn  chan struct{}
	value T
	err   error
	at    time.Time
}

func newCached[T any](c clock.WithDelayedExecution, interval time.Duration, read func(context.Context) (T, error)) *cached[T] {
	return &cached[T]{clock: c, interval: interval, read: read, turn: make(chan struct{}, 1)}
}

func (c *cached[T]) get(ctx context.Context) (T, error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
	if c.at.IsZero() || c.clock.Since(c.at) >= c.interval {
		value, err := c.read(ctx)
		if ctx.Err() != nil {
			return value, ctx.Err() // The browser has gone; the next one reads.
		}
		c.value, c.err, c.at = value, err, c.clock.Now()
		c.clock.AfterFunc(forgetAfter, c.forget)
	}
	return c.value, c.err
}

// forget drops what was read long ago: a browser that has gone needs nothing.
func (c *cached[T]) forget() {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	if c.clock.Since(c.at) >= forgetAfter {
		var none T
		c.value, c.err, c.at = none, nil, time.Time{}
	}
}

// samples keeps the measurements of nodes.
type samples struct {
	clock clock.WithDelayedExecution
	read  func(context.Context, string) (*v1alpha1.GPUSamples, error)
	mu    sync.Mutex
	nodes map[string]*cached[*v1alpha1.GPUSamples]
}

func newSamples(c clock.WithDelayedExecution, read func(context.Context, string) (*v1alpha1.GPUSamples, error)) *samples {
	return &samples{clock: c, read: read, nodes: map[string]*cached[*v1alpha1.GPUSamples]{}}
}

func (s *samples) node(name string) *cached[*v1alpha1.GPUSamples] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[name] == nil {
		if len(s.nodes) > 4*mostSampled {
			clear(s.nodes)
		}
		// The time of the read is limited here: an agent that does not answer in that time counts as read, and not answering.
		s.nodes[name] = newCached(s.clock, sampleInterval, func(ctx context.Context) (*v1alpha1.GPUSamples, error) {
			ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
			defer cancel()
			return s.read(ctx, name)
		})
	}
	return s.nodes[name]
}

// of returns the measurements of nodes, and what could not be read.
func (s *samples) of(ctx context.Context, names []string) (map[string]*v1alpha1.GPUSamples, []string) {
	values, errs := make([]*v1alpha1.GPUSamples, len(names)), make([]error, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() { values[i], errs[i] = s.node(name).get(ctx) })
	}
	all.Wait()
	found := map[string]*v1alpha1.GPUSamples{}
	var notes []string
	for i, name := range names {
		if errs[i] != nil {
			notes = append(notes, fmt.Sprintf("The use of memory of %s is not known: %v", name, errs[i]))
			continue
		}
		found[name] = values[i]
	}
	if more := len(notes) - 2; more > 0 {
		notes = append(slices.Clip(notes[:2]), fmt.Sprintf("The use of memory of %d more nodes is not known", more))
	}
	return found, notes
}
