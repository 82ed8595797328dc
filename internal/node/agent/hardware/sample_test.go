package hardware

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	vendor "github.com/berth-gpu/berth/internal/hardware"
)

// measuring is a vendor that can only measure.
type measuring struct {
	vendor.Vendor
	name   string
	sample func(ctx context.Context, emit func(gpu.Sample)) error
}

func (m measuring) Traits() gpu.Traits { return gpu.Traits{Name: m.name} }

func (m measuring) Sample(ctx context.Context, emit func(gpu.Sample)) error {
	return m.sample(ctx, emit)
}

// every returns a vendor's measurement of a GPU, once per second.
func every(id gpu.UUID) func(context.Context, func(gpu.Sample)) error {
	return func(ctx context.Context, emit func(gpu.Sample)) error {
		for ctx.Err() == nil {
			emit(gpu.Sample{Time: time.Now(), GPUs: []gpu.GPUSample{{GPU: id}}})
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
		return nil
	}
}

// TestSampler: whatever another vendor's measurement does, the first vendor is measured once per second, and the end takes no
// longer than samplePatience.
func TestSampler(t *testing.T) {
	tests := map[string]struct {
		other func(context.Context, func(gpu.Sample)) error
		gpus  []gpu.UUID
		// logged is what the log has; empty for nothing.
		logged string
		ends   time.Duration
	}{
		"measures":                        {every("EX-0"), []gpu.UUID{"GPU-a", "EX-0"}, "", 0},
		"fails":                           {func(context.Context, func(gpu.Sample)) error { return errors.New("no counters") }, []gpu.UUID{"GPU-a"}, "no counters", 0},
		"panics":                          {func(context.Context, func(gpu.Sample)) error { panic("a bug") }, []gpu.UUID{"GPU-a"}, "a bug", 0},
		"measures the first vendor's GPU": {every("GPU-a"), []gpu.UUID{"GPU-a"}, "", 0},
		"hangs": {func(context.Context, func(gpu.Sample)) error { time.Sleep(time.Minute); return nil },
			[]gpu.UUID{"GPU-a"}, "", samplePatience},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				var samples []gpu.Sample
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				run := Sampler([]vendor.Vendor{measuring{name: "first", sample: every("GPU-a")}, measuring{name: "other", sample: tc.other}},
					slog.New(slog.NewTextHandler(&log, nil)))
				go func() { done <- run(ctx, func(s gpu.Sample) { samples = append(samples, s) }) }()
				time.Sleep(10*time.Second + time.Millisecond)
				synctest.Wait()
				times := map[time.Time]bool{}
				for _, s := range samples {
					times[s.Time] = true
				}
				if len(times) != 11 {
					t.Errorf("measured %d times in 10 seconds, want 11", len(times))
				}
				var ids []gpu.UUID
				for _, one := range samples[len(samples)-1].GPUs {
					ids = append(ids, one.GPU)
				}
				if diff := cmp.Diff(tc.gpus, ids); diff != "" {
					t.Errorf("measured GPUs (-want +got):\n%s", diff)
				}
				text := log.String()
				if (text != "") != (tc.logged != "") || !strings.Contains(text, tc.logged) || tc.logged != "" && !strings.Contains(text, "vendor=other") {
					t.Errorf("the log is %q, want %q of the vendor other", text, tc.logged)
				}
				began := time.Now()
				cancel()
				if err := <-done; err != nil || time.Since(began) != tc.ends {
					t.Errorf("it ended after %v with %v, want %v", time.Since(began), err, tc.ends)
				}
				time.Sleep(time.Minute) // until nothing hangs
			})
		})
	}
}
