package dra

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Stats is what the DRA driver does.
type Stats struct {
	// Active is true while a device of the node is, or was, allocated through DRA since the agent started.
	Active bool
	// Calls are ordered by operation.
	Calls []Calls
	// Slices is how many ResourceSlices the node publishes.
	Slices int
	// TwoAPIs is how many devices have a taint because a device plugin has them too.
	TwoAPIs int
	// Age is the time since the API server was last seen to have them; negative when it was not yet.
	Age time.Duration
}

// Calls are the calls of one operation.
type Calls struct {
	Operation string
	Count     uint64
	// Seconds is how long all calls took together.
	Seconds float64
	// Buckets has for each limit in seconds how many calls took at most that long.
	Buckets map[float64]uint64
	// Errors are ordered by reason.
	Errors []CallErrors
}

// CallErrors are the calls that failed for one reason.
type CallErrors struct {
	Reason string
	Count  uint64
}

// callLimits returns the limits of the buckets, in seconds. The kubelet ends a call after 45 s.
func callLimits() []float64 {
	return []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 45}
}

// CallRecorder counts. The zero value is ready; its methods may be called concurrently.
type CallRecorder struct {
	mu    sync.Mutex
	calls map[string]*callCounts
}

type callCounts struct {
	Calls
	errors map[string]uint64
}

// Observe records a call. reason is empty for one that succeeded.
func (r *CallRecorder) Observe(operation string, took time.Duration, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil {
		r.calls = map[string]*callCounts{}
	}
	c := r.calls[operation]
	if c == nil {
		c = &callCounts{Calls: Calls{Operation: operation, Buckets: map[float64]uint64{}}, errors: map[string]uint64{}}
		r.calls[operation] = c
	}
	seconds := took.Seconds()
	c.Count++
	c.Seconds += seconds
	for _, limit := range callLimits() {
		if seconds <= limit {
			c.Buckets[limit]++
		} else {
			c.Buckets[limit] += 0
		}
	}
	if reason != "" {
		c.errors[reason]++
	}
}

// List returns the calls so far.
func (r *CallRecorder) List() []Calls {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []Calls
	for _, name := range slices.Sorted(maps.Keys(r.calls)) {
		c := r.calls[name]
		one := c.Calls
		one.Buckets = maps.Clone(c.Buckets)
		for reason, count := range c.errors {
			one.Errors = append(one.Errors, CallErrors{Reason: reason, Count: count})
		}
		slices.SortFunc(one.Errors, func(a, b CallErrors) int { return strings.Compare(a.Reason, b.Reason) })
		list = append(list, one)
	}
	return list
}
