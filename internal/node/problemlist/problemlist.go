// Package problemlist collects the problems of a node other than the health of its GPUs, by their source.
//
// It guarantees that each source replaces only its own problems, that a problem keeps its Since for as long as its code
// and message do not change, that each new problem is logged once, at the level of its severity, and that subscribers
// are signalled only when the list has changed. Nothing in it waits for a file, the API or a driver. It must not import
// anything of Kubernetes but a clock.
package problemlist

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/problem"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// List holds the current problems by source.
type List struct {
	clock clock.PassiveClock
	log   *slog.Logger
	added func(gpu.Cause)

	mu      sync.Mutex
	sources map[string][]gpu.Cause
	changed signal.Broadcast
}

// New returns an empty list. It calls added, which must not block, with each new problem.
func New(clock clock.PassiveClock, log *slog.Logger, added func(gpu.Cause)) *List {
	return &List{clock: clock, log: log, added: added, sources: map[string][]gpu.Cause{}}
}

// Set replaces the problems of source; none means that the source has no problem.
func (l *List) Set(source string, causes ...gpu.Cause) {
	added, resolved := l.replace(source, causes)
	for _, cause := range added {
		//lint:ignore sloglint the message is the problem's
		l.log.Log(context.Background(), levelOf(cause.Code), cause.Message, "code", cause.Code, "source", source)
		l.added(cause)
	}
	if len(resolved) > 0 {
		l.log.Info("Problem resolved", "codes", strings.Join(resolved, ","), "source", source)
	}
}

// levelOf returns the level that fits the severity of a problem in the catalogue; Warn if the catalogue has no such code.
func levelOf(code string) slog.Level {
	known, _ := problem.Find(code)
	switch known.Severity {
	case problem.Error:
		return slog.LevelError
	case problem.Info:
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// replace returns the problems that source did not have before, and the codes of those that it had if it has none now.
func (l *List) replace(source string, causes []gpu.Cause) (added []gpu.Cause, resolved []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.sources[source]
	var next []gpu.Cause
	for _, cause := range causes {
		if i := slices.IndexFunc(last, func(c gpu.Cause) bool { return c.Code == cause.Code && c.Message == cause.Message }); i >= 0 {
			next = append(next, last[i])
			continue
		}
		cause.Since = l.clock.Now()
		next = append(next, cause)
		added = append(added, cause)
	}
	if len(added) == 0 && len(next) == len(last) {
		return nil, nil
	}
	l.sources[source] = next
	l.changed.Set()
	if len(next) == 0 {
		for _, cause := range last {
			resolved = append(resolved, cause.Code)
		}
		slices.Sort(resolved)
		resolved = slices.Compact(resolved)
	}
	return added, resolved
}

// SetError sets err as the only problem of source; nil means that the source has no problem.
func (l *List) SetError(source, code string, err error) {
	if err == nil {
		l.Set(source)
		return
	}
	l.Set(source, gpu.Cause{Code: code, Message: err.Error()})
}

// All returns the problems of all sources, ordered by code and message.
func (l *List) All() []gpu.Cause {
	l.mu.Lock()
	defer l.mu.Unlock()
	var causes []gpu.Cause
	for _, list := range l.sources {
		causes = append(causes, list...)
	}
	slices.SortFunc(causes, func(x, y gpu.Cause) int {
		return cmp.Or(cmp.Compare(x.Code, y.Code), cmp.Compare(x.Message, y.Message))
	})
	return causes
}

// Subscribe returns a subscription that is signalled after each change of the list.
func (l *List) Subscribe() *signal.Subscription { return l.changed.Subscribe() }

// Joined is a List together with the problems that others keep, which come first. It is signalled for the List only.
type Joined struct {
	*List
	Others []func() []gpu.Cause
}

// All returns all problems.
func (j Joined) All() []gpu.Cause {
	var causes []gpu.Cause
	for _, others := range j.Others {
		causes = append(causes, others()...)
	}
	return append(causes, j.List.All()...)
}
