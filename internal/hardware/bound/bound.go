// Package bound waits for calls that nothing can interrupt no longer than a context allows. A call into a driver that hangs
// is one. The package must not import anything but the standard library.
package bound

import (
	"context"
	"fmt"
)

// Call returns what f returns, or an error once ctx has ended. f keeps running in a goroutine of its own then, and its result
// is dropped. What names the call in the error, such as "read compute mode of GPU-1".
func Call[T any](ctx context.Context, what string, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := f()
		done <- result{value, err}
	}()
	select {
	case got := <-done:
		return got.value, got.err
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("%s: no answer from the driver: %w", what, ctx.Err())
	}
}
