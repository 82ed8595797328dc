package nvidia

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/berth-gpu/berth/internal/gpu"
)

// Suspend closes the driver until resume is called: a GPU cannot be reset while any program has it open, this one
// included. Until then Scan says what the last scan said, and Watch has nothing to watch. It waits for the scan and the
// wait for an event that are under way, as long as ctx lets it.
func (a *Adapter) Suspend(ctx context.Context) (resume func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("close the driver: %w", err)
	}
	select {
	case a.scan <- struct{}{}:
	case <-ctx.Done():
		card, call := a.Doing()
		return nil, fmt.Errorf("close the driver: the scan has not returned from %s (GPU %q): %w", call, card, ctx.Err())
	}
	closed := make(chan struct{})
	go func() {
		a.close()
		a.doing.Store(nil)
		close(closed)
	}()
	select {
	case <-closed:
	case <-ctx.Done():
		go func() { // scans go on when the call that hangs has returned
			<-closed
			<-a.scan
		}()
		return nil, fmt.Errorf("close the driver: a call into it has not returned: %w", ctx.Err())
	}
	if a.suspended == 0 {
		a.resumed = make(chan struct{})
	}
	a.suspended++
	<-a.scan
	return sync.OnceFunc(func() {
		a.scan <- struct{}{}
		defer func() { <-a.scan }()
		if a.suspended--; a.suspended == 0 {
			close(a.resumed)
		}
	}), nil
}

// whileSuspended is the answer to a scan that must not open the driver; nil when it may. It needs the
// token of scan, and gives it away while it waits.
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

// unread is what an earlier scan said, marked as no news.
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
