package hardware

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware"
)

// Sampler returns a function that measures the GPUs of all vendors. Each vendor measures in a goroutine of its own, and
// its measurement is passed on together with the last ones of the others. A vendor that panics is no longer measured.
func Sampler(vendors []hardware.Vendor, log *slog.Logger) func(ctx context.Context, emit func(gpu.Sample)) error {
	return func(ctx context.Context, emit func(gpu.Sample)) error {
		var mu sync.Mutex
		last := make([]gpu.Sample, len(vendors))
		group, ctx := errgroup.WithContext(ctx)
		for i, v := range vendors {
			group.Go(func() error {
				defer func() {
					if value := recover(); value != nil {
						log.Error("Stopped measuring after a panic", "vendor", v.Traits().Name, "panic", value, "stack", string(debug.Stack()))
					}
				}()
				return v.Sample(ctx, func(sample gpu.Sample) {
					mu.Lock()
					defer mu.Unlock()
					last[i] = sample
					all := gpu.Sample{Time: sample.Time, Took: sample.Took}
					for _, one := range last {
						all.GPUs = append(all.GPUs, one.GPUs...)
					}
					emit(all)
				})
			})
		}
		return group.Wait()
	}
}
