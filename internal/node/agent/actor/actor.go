// Package actor runs actors beside one another.
//
// It guarantees that an actor starts only when its condition holds, that the first error ends all of them, and that the end of the context
// is no error. It must not import the agent or an actor.
package actor

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/berth-gpu/berth/internal/node/signal"
)

// Actor is a function to run, and the condition for its start.
type Actor struct {
	Name string
	// After must be true before it runs; nil for no condition.
	After *signal.Ready
	Run   func(context.Context) error
}

// Run runs actors until ctx ends or one of them fails, and returns when all have ended. The error is that of the first one that has
// failed; the end of ctx is none.
func Run(ctx context.Context, actors []Actor) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, one := range actors {
		group.Go(func() error {
			if one.After != nil && one.After.Wait(ctx) != nil {
				return nil
			}
			return one.Run(ctx)
		})
	}
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Noted returns f, with a call of note before each call: an actor calls f once each time that it computes something.
func Noted[T any](note func(actor string) error, actor string, f func() T) func() T {
	return func() T {
		_ = note(actor)
		return f()
	}
}

// NotedSet is Noted for a function that takes the computed value.
func NotedSet[T any](note func(actor string) error, actor string, f func(T)) func(T) {
	return func(value T) {
		_ = note(actor)
		f(value)
	}
}
