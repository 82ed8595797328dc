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
	// livenessLimit is how long a loop may take to answer before the process is to be ended. The loops wait for nothing outside
	// the process, and answer within milliseconds.
	livenessLimit = 30 * time.Second
)

// Liveness says whether the parts of the agent still work that wait for nothing outside the process: those whose mutexes and
// loops a restart can free. What hangs in the driver, a file or the API server is a problem with a code, and no reason to
// end the process, since the next one would hang as well.
type Liveness struct {
	clock clock.Clock

	mu      sync.Mutex
	waiting map[string]time.Time // since when a check has had no answer
}

// NewLiveness makes one to which nothing has answered yet.
func NewLiveness(clock clock.Clock) *Liveness {
	return &Liveness{clock: clock, waiting: map[string]time.Time{}}
}

// Run asks each of the checks again and again until ctx ends. A check that does not answer holds up no other one.
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
