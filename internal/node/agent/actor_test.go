package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/berth-gpu/berth/internal/node/signal"
)

// actorLog records what the actors do.
type actorLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *actorLog) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

func (l *actorLog) sorted() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(slices.Values(l.lines))
}

// TestRunActors starts an actor whose condition holds later, and ends all with the context or with the first failure.
func TestRunActors(t *testing.T) {
	t.Parallel()
	failure := errors.New("the disk is gone")
	for name, end := range map[string]error{"the context ends": nil, "an actor fails": failure} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var did actorLog
				ready, never, fail := signal.NewReady(), signal.NewReady(), make(chan struct{})
				until := func(name string) func(context.Context) error {
					return func(ctx context.Context) error {
						did.add(name + " began")
						<-ctx.Done()
						did.add(name + " ended")
						return ctx.Err()
					}
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := make(chan error)
				go func() {
					done <- runActors(ctx, []actor{
						{Name: "at once", Run: until("at once")},
						{Name: "later", After: ready, Run: until("later")},
						{Name: "never", After: never, Run: until("never")},
						{Name: "failing", Run: func(ctx context.Context) error {
							select {
							case <-ctx.Done():
								return nil
							case <-fail:
								return failure
							}
						}},
					})
				}()
				synctest.Wait()
				if got := did.sorted(); !slices.Equal(got, []string{"at once began"}) {
					t.Errorf("before the condition: %v", got)
				}
				ready.Set()
				synctest.Wait()
				if got := did.sorted(); !slices.Equal(got, []string{"at once began", "later began"}) {
					t.Errorf("after the condition: %v", got)
				}
				if end == nil {
					cancel()
				} else {
					close(fail)
				}
				if err := <-done; !errors.Is(err, end) || (err == nil) != (end == nil) {
					t.Errorf("got %v, want %v", err, end)
				}
				if got := did.sorted(); !slices.Equal(got, []string{"at once began", "at once ended", "later began", "later ended"}) {
					t.Errorf("at the end: %v", got)
				}
			})
		})
	}
}
