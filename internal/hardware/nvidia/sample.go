package nvidia

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/bound"
)

const (
	defaultInterval      = 10 * time.Second
	defaultSourceTimeout = 2 * time.Second
)

// SamplerDeps is what a Sampler needs; zero durations are the defaults (10 s and 2 s).
type SamplerDeps struct {
	// Interval is from the start of one pass to the start of the next.
	Interval time.Duration
	// SourceTimeout bounds each source of each GPU: what takes longer is left out of the sample.
	SourceTimeout time.Duration
	// Optional are the measures to read of those that are [gpu.Measure.Optional]. No call is made for others.
	Optional []gpu.Measure
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	Log *slog.Logger
}

// Sampler measures the GPUs that the adapter's last scan found, within the adapter's session with the driver: Suspend waits for
// the source that is being read, and no samples are taken while the adapter is suspended. A source that hangs makes Suspend
// fail, and blocks no scan.
type Sampler struct {
	adapter *Adapter
	deps    SamplerDeps

	// pass is held during a pass; it guards the rest.
	pass    sync.Mutex
	session int
	gpus    map[gpu.UUID]*sampledGPU
	// has caches which functions the library of this session exports.
	has map[string]bool
}

// sampledGPU is what is kept of a GPU between passes. While a reader of it runs, only that reader uses it.
type sampledGPU struct {
	session int
	// stuck is the reader that has not returned in time; nil when there is none.
	stuck *reader
	// seen is the time of the newest process activity, in NVML's clock (microseconds); watched is true after the first pass.
	seen    uint64
	watched bool
	// profiling keeps the last GPM sample of the GPU and of each GPU instance.
	profiling map[int]nvml.GpmSample
	// profilable is whether the GPU supports GPM; nil until it was read.
	profilable *bool
}

func newSampledGPU(list *watchList) *sampledGPU {
	return &sampledGPU{session: list.session, profiling: map[int]nvml.GpmSample{}}
}

// Sampler returns a sampler of the adapter's GPUs. It makes no calls before Run or Sample.
func (a *Adapter) Sampler(deps SamplerDeps) *Sampler {
	if deps.Interval <= 0 {
		deps.Interval = defaultInterval
	}
	if deps.SourceTimeout <= 0 {
		deps.SourceTimeout = defaultSourceTimeout
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	return &Sampler{adapter: a, deps: deps, gpus: map[gpu.UUID]*sampledGPU{}}
}

// Run takes a sample at each interval and passes it to emit, until ctx ends. A call that hangs blocks neither the next pass nor
// the end of Run; its goroutine ends when it returns.
func (s *Sampler) Run(ctx context.Context, emit func(gpu.Sample)) error {
	ticker := time.NewTicker(s.deps.Interval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		if sample := s.Sample(ctx); ctx.Err() == nil {
			emit(sample)
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	return nil
}

// Sample makes one pass. The sample has no GPUs without a driver, and while the adapter is suspended.
func (s *Sampler) Sample(ctx context.Context) gpu.Sample {
	s.pass.Lock()
	defer s.pass.Unlock()
	started := s.deps.Now()
	list := s.adapter.watched.Load()
	if list == nil || !s.begin(list) {
		return gpu.Sample{Time: s.deps.Now(), Took: s.deps.Now().Sub(started)}
	}
	found := make([]gpu.GPUSample, len(list.handles))
	s.forget(list)
	var all sync.WaitGroup
	for i, h := range list.handles {
		sampled := s.gpus[h.uuid]
		if sampled == nil {
			sampled = newSampledGPU(list)
			s.gpus[h.uuid] = sampled
		}
		all.Go(func() { found[i] = s.readInTime(ctx, list, h, sampled) })
	}
	all.Wait()
	return gpu.Sample{Time: s.deps.Now(), Took: s.deps.Now().Sub(started), GPUs: found}
}

// begin prepares for the session; false when it has ended.
func (s *Sampler) begin(list *watchList) bool {
	return s.adapter.within(list, func() (gpu.UUID, string) { return "", "a lookup of functions" }, func() {
		if s.session == list.session && s.has != nil {
			return
		}
		s.session, s.has = list.session, map[string]bool{}
		extensions := s.adapter.library.Extensions()
		for _, symbol := range sampledSymbols() {
			s.has[symbol] = extensions == nil || extensions.LookupSymbol(symbol) == nil
		}
	})
}

// forget drops the state of GPUs that no longer exist.
func (s *Sampler) forget(list *watchList) {
	maps.DeleteFunc(s.gpus, func(id gpu.UUID, sampled *sampledGPU) bool {
		return sampled.stuck == nil && !slices.ContainsFunc(list.handles, func(h handle) bool { return h.uuid == id })
	})
}

// source is a group of NVML calls that belong together.
type source struct {
	name string
	read func(*reader)
}

// sources are in the order in which they are read: if one hangs, those behind it are not read.
func (s *Sampler) sources() []source {
	all := []source{
		{"clocks", (*reader).clocks},
		{"temperature", (*reader).temperature},
		{"power", (*reader).power},
		{"utilization", (*reader).utilization},
		{"memory", (*reader).memory},
		{"processes", (*reader).processes},
		{"errors", (*reader).errors},
		{"limits", (*reader).limits},
		{"nvlink", (*reader).nvlink},
		{"mig", (*reader).mig},
		{"profiling", (*reader).profiling},
		{"pcie", (*reader).pcie},
	}
	if len(s.deps.Optional) > 0 {
		all = append(all, source{"optional", (*reader).optional})
	}
	return all
}

// reader reads one GPU in one pass.
type reader struct {
	sampler *Sampler
	list    *watchList
	device  nvml.Device
	gpu     *sampledGPU
	q       *caller
	out     gpu.GPUSample
	// migOn is true once the GPU is known to be partitioned.
	migOn bool
	// call is the NVML call that the reader is making.
	call atomic.Pointer[string]
	// steps holds all sources, so that the reader never blocks on it. One goroutine reads all sources of a GPU: one for each source
	// takes half as many allocations again.
	steps chan step
	// abandoned is set when nothing receives from steps any longer.
	abandoned atomic.Bool
	reading   *bound.Pending[struct{}]
}

// step is a source that was read, with the sample so far.
type step struct {
	status gpu.SourceStatus
	out    gpu.GPUSample
}

// errDriverClosed is the error of a source that was not read since the session has ended.
var errDriverClosed = errors.New("the driver was closed")

// readInTime reads a GPU source by source, and gives up at the first that takes too long.
func (s *Sampler) readInTime(ctx context.Context, list *watchList, h handle, sampled *sampledGPU) gpu.GPUSample {
	all := s.sources()
	out := gpu.GPUSample{GPU: h.uuid}
	giveUp := func(first int, took time.Duration, why string) gpu.GPUSample {
		for i, one := range all[first:] {
			status := gpu.SourceStatus{Name: one.name, Trouble: why}
			if i == 0 {
				status.Took = took
			}
			out.Sources = append(out.Sources, status)
		}
		return out
	}
	if sampled.stuck != nil {
		if !sampled.stuck.reading.Returned() {
			return giveUp(0, 0, sampled.stuck.trouble())
		}
		sampled.stuck = nil
	}
	if sampled.session != list.session { // Handles and clocks are those of one session.
		*sampled = *newSampledGPU(list)
	}
	r := &reader{sampler: s, list: list, device: h.device, gpu: sampled, out: gpu.GPUSample{GPU: h.uuid}, steps: make(chan step, len(all))}
	r.q = &caller{gpu: h.uuid, log: s.deps.Log, at: func(_ gpu.UUID, call string) { r.call.Store(&call) }}
	r.reading = bound.Start(func() (struct{}, error) { r.run(all); return struct{}{}, nil })
	timer := time.NewTimer(s.deps.SourceTimeout)
	defer timer.Stop()
	for i := range all {
		timer.Reset(s.deps.SourceTimeout)
		select {
		case done, ok := <-r.steps:
			if !ok {
				return giveUp(i, 0, errDriverClosed.Error())
			}
			statuses := append(out.Sources, done.status)
			out = done.out
			out.Sources = statuses
			continue
		case <-timer.C:
		case <-ctx.Done():
		}
		r.abandoned.Store(true)
		sampled.stuck = r
		if ctx.Err() == nil {
			s.deps.Log.Warn("GPU did not answer in time; its sample is incomplete", "gpu", h.uuid, "source", all[i].name, "error", r.trouble())
		}
		return giveUp(i, s.deps.SourceTimeout, r.trouble())
	}
	return out
}

// run reads all sources, until one fails because the driver was closed or the reader is abandoned.
func (r *reader) run(all []source) {
	defer close(r.steps)
	for _, one := range all {
		if r.abandoned.Load() {
			return
		}
		status, err := r.read(one)
		if err != nil {
			return
		}
		r.steps <- step{status, r.out.Clone()}
	}
}

// read reads one source into out.
func (r *reader) read(one source) (gpu.SourceStatus, error) {
	started := r.sampler.deps.Now()
	r.q.missing = nil
	if !r.sampler.adapter.within(r.list, r.doing, func() { one.read(r) }) {
		return gpu.SourceStatus{}, errDriverClosed
	}
	status := gpu.SourceStatus{Name: one.name, OK: true, Took: r.sampler.deps.Now().Sub(started)}
	switch {
	case r.q.lost != nil:
		status.OK, status.Trouble = false, fmt.Sprintf("%s returned %s", r.q.lost.call, codeName(r.q.lost.ret))
	case r.q.broken != nil:
		status.OK, status.Trouble = false, r.q.broken.Message
	case r.q.missing != nil:
		status.OK, status.Trouble = false, "a call failed"
	}
	return status, nil
}

// doing returns the GPU and the call that the reader is making.
func (r *reader) doing() (gpu.UUID, string) {
	if name := r.call.Load(); name != nil {
		return r.out.GPU, *name
	}
	return r.out.GPU, "a call"
}

// trouble describes the call that has not returned.
func (r *reader) trouble() string {
	call := "the driver"
	if name := r.call.Load(); name != nil {
		call = *name
	}
	return fmt.Sprintf("%s has not returned within %s", call, r.sampler.deps.SourceTimeout)
}
