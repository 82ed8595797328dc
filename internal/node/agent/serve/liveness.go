package serve

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"
)

const (
	// livenessStep is the time between two checks of one loop.
	livenessStep = 5 * time.Second
	// livenessLimit is how long a loop may take to respond before the process should be ended. The loops wait for
	// nothing outside the process, and respond within milliseconds.
	livenessLimit = 30 * time.Second
)

// Liveness reports whether the parts of the agent still work that wait for nothing outside the process, and that a
// restart would repair. A call that hangs in the driver, a file or the API server is a problem with a code and no
// reason to end the process, since the next one would hang too.
type Liveness struct {
	clock clock.Clock

	mu      sync.Mutex
	waiting map[string]time.Time // since when a check has had no answer
}

// NewLiveness returns a Liveness without responses.
func NewLiveness(clock clock.Clock) *Liveness {
	return &Liveness{clock: clock, waiting: map[string]time.Time{}}
}

// Run repeats each of the checks until ctx ends. A check that does not respond does not delay the others.
func (l *Liveness) Run(ctx context.Context, checks map[string]func(context.Context)) error {
	var group errgroup.Group
	for name, check := range checks {
		group.Go(func() error {
			for {
				l.note(name, true)
				check(ctx)
				l.note(name, false)
				select {
				case <-ctx.Done():
					return nil
				case <-l.clock.After(livenessStep):
				}
			}
		})
	}
	return group.Wait()
}

func (l *Liveness) note(name string, waiting bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if waiting {
		l.waiting[name] = l.clock.Now()
	} else {
		delete(l.waiting, name)
	}
}

// failure names the parts that have not answered in time; empty when all have.
func (l *Liveness) failure() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var late []string
	for name, since := range l.waiting {
		if age := l.clock.Since(since); age > livenessLimit {
			late = append(late, fmt.Sprintf("%s has not answered for %s", name, age.Truncate(time.Second)))
		}
	}
	slices.Sort(late)
	return strings.Join(late, "; ")
}

// ServeHTTP answers a liveness probe.
func (l *Liveness) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if why := l.failure(); why != "" {
		http.Error(w, why, http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ok\n"))
}
