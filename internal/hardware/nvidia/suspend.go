package nvidia

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/bound"
)

// Suspend closes the driver until resume is called: a GPU cannot be reset while any program has it open, this one included.
// Until then Scan returns the result of the last scan, and Watch reads the kernel log alone. Suspend waits until ctx ends for
// the calls that are under way. Its error names the GPU and the call that has not returned: scans continue in another session
// then, and each Suspend fails until that call has returned.
func (a *Adapter) Suspend(ctx context.Context) (resume func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("close the driver: %w", err)
	}
	select {
	case a.scan <- struct{}{}:
	case <-ctx.Done():
		id, call := a.Doing()
		return nil, fmt.Errorf("close the driver: the scan has not returned from %s (GPU %q): %w", call, id, ctx.Err())
	}
	defer func() { <-a.scan }()
	a.closedByUs.Store(true) // before the session ends, so that the watch does not report that the driver went away
	defer func() { a.closedByUs.Store(a.suspended > 0) }()
	err = a.awaitClosed(ctx) // a call of an earlier session keeps the driver open too
	if err == nil {
		// nvmlShutdown may hang too.
		detached := bound.Start(func() (struct{}, error) { a.detach(); return struct{}{}, nil })
		if detached.Wait(ctx) {
			err = a.awaitClosed(ctx)
		} else {
			err = fmt.Errorf("nvmlShutdown has not returned: %w", ctx.Err())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("close the driver: %w", err)
	}
	if a.suspended == 0 {
		a.resumed = make(chan struct{})
	}
	a.suspended++
	return sync.OnceFunc(func() {
		a.scan <- struct{}{}
		defer func() { <-a.scan }()
		if a.suspended--; a.suspended == 0 {
			a.closedByUs.Store(false)
			close(a.resumed)
		}
	}), nil
}

// whileSuspended returns the result of a scan while the adapter is suspended; nil when it is not. The caller holds the token of
// scan, which is released during the wait.
func (a *Adapter) whileSuspended(ctx context.Context) (*gpu.Snapshot, error) {
	for a.suspended > 0 {
		if a.latest != nil {
			return unread(a.latest), nil
		}
		resumed := a.resumed
		<-a.scan
		var err error
		select {
		case <-resumed:
		case <-ctx.Done():
			err = ctx.Err()
		}
		a.scan <- struct{}{}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// unread returns the result of an earlier scan, marked as partial.
func unread(latest *gpu.Snapshot) *gpu.Snapshot {
	out := *latest
	out.GPUs = slices.Clone(latest.GPUs)
	for i := range out.GPUs {
		out.GPUs[i].Health.Partial = true
	}
	return &out
}

func valueOf(snapshot *gpu.Snapshot) gpu.Snapshot {
	if snapshot == nil {
		return gpu.Snapshot{}
	}
	return *snapshot
}
