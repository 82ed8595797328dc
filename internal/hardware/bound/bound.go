// Package bound waits no longer than a context allows for calls that nothing can interrupt, such as a call into a driver that
// hangs or a stat on a network file system.
//
// It guarantees that a call runs in a goroutine of its own and that no wait for it outlasts its context. It cannot end a call:
// one that hangs keeps its goroutine, and the caller bounds how many calls can hang. The package must not import
// anything but the standard library.
package bound

import (
	"context"
	"fmt"
)

// Call returns what f returns, or an error once ctx has ended; the result of f is dropped then. What names the call in the
// error, such as "read compute mode of GPU-1".
func Call[T any](ctx context.Context, what string, f func() (T, error)) (T, error) {
	call := Start(f)
	if !call.Wait(ctx) {
		var none T
		return none, fmt.Errorf("%s: no answer from the driver: %w", what, ctx.Err())
	}
	return call.Result()
}

// Pending is a call that was started. Several goroutines may use it.
type Pending[T any] struct {
	done  chan struct{}
	value T
	err   error
}

// Start calls f in a goroutine of its own.
func Start[T any](f func() (T, error)) *Pending[T] {
	p := &Pending[T]{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.value, p.err = f()
	}()
	return p
}

// Done is closed when the call has returned.
func (p *Pending[T]) Done() <-chan struct{} { return p.done }

// Returned reports whether the call has returned.
func (p *Pending[T]) Returned() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Wait waits until the call has returned or ctx has ended, and reports whether it has returned.
func (p *Pending[T]) Wait(ctx context.Context) bool {
	select {
	case <-p.done:
		return true
	case <-ctx.Done():
		return p.Returned()
	}
}

// Result returns what the call returned. It waits for that.
func (p *Pending[T]) Result() (T, error) {
	<-p.done
	return p.value, p.err
}
