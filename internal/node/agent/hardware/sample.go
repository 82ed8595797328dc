package hardware

import (
	"context"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware"
)

// samplePatience is how long the end waits for a measurement that is under way.
const samplePatience = time.Second

// Sampler returns what measures the GPUs of all vendors until its context ends. Each vendor measures in a goroutine of its own, and a
// measurement of one is handed on together with the last ones of the others. A vendor that panics or returns an error
// measures no more, which is logged, and one that hangs delays no other. Of two vendors that measure
// a GPU of the same UUID, the first in the list counts.
func Sampler(vendors []hardware.Vendor, log *slog.Logger) func(ctx context.Context, emit func(gpu.Sample)) error {
	return func(ctx context.Context, emit func(gpu.Sample)) error {
		var mu sync.Mutex
		last := make([]gpu.Sample, len(vendors))
		var group sync.WaitGroup
		for i, v := range vendors {
			group.Go(func() {
				measure(ctx, v, log, func(sample gpu.Sample) {
					mu.Lock()
					defer mu.Unlock()
					last[i] = sample
					emit(join(sample, last))
				})
			})
		}
		ended := make(chan struct{})
		go func() { group.Wait(); close(ended) }()
		<-ctx.Done()
		select {
		case <-ended:
		case <-time.After(samplePatience):
		}
		return nil
	}
}

// measure lets one vendor measure until it ends.
func measure(ctx context.Context, v hardware.Vendor, log *slog.Logger, emit func(gpu.Sample)) {
	name := v.Traits().Name
	defer func() {
		if value := recover(); value != nil {
			log.Error("measuring stopped after a panic", "vendor", name, "panic", value, "stack", string(debug.Stack()))
		}
	}()
	if err := v.Sample(ctx, emit); err != nil && ctx.Err() == nil {
		log.Error("measuring stopped", "vendor", name, "error", err)
	}
}

// join returns the last measurements of all vendors, with the time of the newest.
func join(newest gpu.Sample, last []gpu.Sample) gpu.Sample {
	all := gpu.Sample{Time: newest.Time, Took: newest.Took}
	for _, one := range last {
		for _, sample := range one.GPUs {
			if !slices.ContainsFunc(all.GPUs, func(known gpu.GPUSample) bool { return known.GPU == sample.GPU }) {
				all.GPUs = append(all.GPUs, sample)
			}
		}
	}
	return all
}
