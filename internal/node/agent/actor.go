package agent

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/berth-gpu/berth/internal/node/signal"
)

// actor is a function to run, and the condition for its start.
type actor struct {
	Name string
	// After must be true before it runs; nil for no condition.
	After *signal.Ready
	Run   func(context.Context) error
}

// runActors runs actors until ctx ends or one of them fails, and returns when all have ended. The error is that of the first one that has
// failed; the end of ctx is none.
func runActors(ctx context.Context, actors []actor) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, a := range actors {
		group.Go(func() error {
			if a.After != nil && a.After.Wait(ctx) != nil {
				return nil
			}
			return a.Run(ctx)
		})
	}
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// noted returns f, with a call of note before each call: an actor calls f once each time that it computes something.
func noted[T any](note func(actor string) error, actor string, f func() T) func() T {
	return func() T {
		_ = note(actor)
		return f()
	}
}

// notedSet is noted for a function that takes the computed value.
func notedSet[T any](note func(actor string) error, actor string, f func(T)) func(T) {
	return func(value T) {
		_ = note(actor)
		f(value)
	}
}
