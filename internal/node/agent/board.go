package agent

import (
	"log/slog"
	"slices"
	"strings"
	"sync"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// board holds what is wrong with the node besides its cards, by where it was
// found. Each source replaces its own entries; an entry keeps its Since as long
// as it stands.
type board struct {
	clock clock.PassiveClock
	log   *slog.Logger

	mu      sync.Mutex
	sources map[string][]gpu.Cause
	changed chan struct{}
}

func newBoard(clock clock.PassiveClock, log *slog.Logger) *board {
	return &board{clock: clock, log: log, sources: map[string][]gpu.Cause{}, changed: make(chan struct{}, 1)}
}

// set replaces what source says; nothing means that all is well there.
func (b *board) set(source string, causes ...gpu.Cause) {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := b.sources[source]
	var next []gpu.Cause
	differs := len(last) != len(causes)
	for _, cause := range causes {
		i := slices.IndexFunc(last, func(c gpu.Cause) bool { return c.Code == cause.Code && c.Message == cause.Message })
		if i >= 0 {
			next = append(next, last[i])
			continue
		}
		differs = true
		cause.Since = b.clock.Now()
		next = append(next, cause)
		b.log.Warn(cause.Message, "code", cause.Code, "source", source)
	}
	if !differs {
		return
	}
	if len(next) == 0 && len(last) > 0 {
		b.log.Info("well again", "source", source)
	}
	b.sources[source] = next
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// fail is set for an error, with nil meaning that all is well.
func (b *board) fail(source, code string, err error) {
	if err == nil {
		b.set(source)
		return
	}
	b.set(source, gpu.Cause{Code: code, Message: err.Error()})
}

// all lists what stands, in the order of code and message.
func (b *board) all() []gpu.Cause {
	b.mu.Lock()
	defer b.mu.Unlock()
	var causes []gpu.Cause
	for _, list := range b.sources {
		causes = append(causes, list...)
	}
	slices.SortFunc(causes, func(x, y gpu.Cause) int {
		return strings.Compare(x.Code+"\x00"+x.Message, y.Code+"\x00"+y.Message)
	})
	return causes
}
