package nvidia

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

const (
	defaultInterval      = 10 * time.Second
	defaultSourceTimeout = 2 * time.Second
)

// SamplerDeps is what a Sampler needs; zero durations are the defaults (10 s and 2 s).
type SamplerDeps struct {
	// Interval is from the start of one pass to the start of the next.
	Interval time.Duration
	// SourceTimeout bounds each source of each card: what takes longer is left out of the sample.
	SourceTimeout time.Duration
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	Log *slog.Logger
}

// Sampler measures the cards that the adapter's last scan found, within the adapter's session with the
// driver: a Suspend waits for the source that is being read, and has no samples taken. A source that hangs makes it fail, and holds up
// no scan.
type Sampler struct {
	adapter *Adapter
	deps    SamplerDeps

	// pass is held during a pass; it guards the rest.
	pass    sync.Mutex
	session int
	cards   map[gpu.UUID]*sampledCard
	// has remembers which functions the library of this session exports.
	has map[string]bool
}

// sampledCard is what is kept of a card between passes. While a reader of it runs, only that reader touches it.
type sampledCard struct {
	session int
	// stuck is the reader that did not come back in time; nil when there is none.
	stuck *reader
	// seen is the newest process activity, in NVML's clock (microseconds); watched is true once there was a pass
	// from which on activity is counted.
	seen    uint64
	watched bool
	// profiling keeps the last GPM sample of the card and of each GPU instance.
	profiling map[int]nvml.GpmSample
	// profilable is nil until the card was asked whether it supports GPM.
	profilable *bool
}

func newSampledCard(list *watchList) *sampledCard {
	return &sampledCard{session: list.session, profiling: map[int]nvml.GpmSample{}}
}

// Sampler makes a sampler of the adapter's cards; it asks nothing until Run or Sample.
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
	return &Sampler{adapter: a, deps: deps, cards: map[gpu.UUID]*sampledCard{}}
}

// Run takes a sample at each interval and hands it to emit, until ctx ends. A call that hangs holds up
// neither the next pass nor the end of Run; its goroutine ends when it returns.
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

// Sample is one pass. Without a driver, and while the adapter is suspended, it has no cards.
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
		card := s.cards[h.uuid]
		if card == nil {
			card = newSampledCard(list)
			s.cards[h.uuid] = card
		}
		all.Go(func() { found[i] = s.readInTime(ctx, list, h, card) })
	}
	all.Wait()
	return gpu.Sample{Time: s.deps.Now(), Took: s.deps.Now().Sub(started), GPUs: found}
}

// begin prepares for the session; false when it is over.
func (s *Sampler) begin(list *watchList) bool {
	return s.adapter.within(list, func() (gpu.UUID, string) { return "", "a look-up of functions" }, func() {
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

// forget drops what is kept of cards that are not there any more.
func (s *Sampler) forget(list *watchList) {
	maps.DeleteFunc(s.cards, func(id gpu.UUID, card *sampledCard) bool {
		return card.stuck == nil && !slices.ContainsFunc(list.handles, func(h handle) bool { return h.uuid == id })
	})
}

// source is a group of NVML calls that answer one question.
type source struct {
	name string
	read func(*reader)
}

// sources are in the order in which they are read: if one hangs, those behind it are not read.
func sources() []source {
	return []source{
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
}

// reader asks one card in one pass.
type reader struct {
	sampler *Sampler
	list    *watchList
	device  nvml.Device
	card    *sampledCard
	q       *question
	out     gpu.GPUSample
	// migOn is true once the card is known to be partitioned.
	migOn bool
	// call is the NVML call that the reader is in.
	call atomic.Pointer[string]
	// steps has room for all of them, so that a reader never waits for who reads them.
	steps chan step
	// abandoned is set when nobody waits for the reader any more.
	abandoned atomic.Bool
}

// step is a source that was read, with all that is known after it.
type step struct {
	status gpu.SourceStatus
	out    gpu.GPUSample
}

// readInTime reads a card source by source, and gives up at the first that takes too long.
func (s *Sampler) readInTime(ctx context.Context, list *watchList, h handle, card *sampledCard) gpu.GPUSample {
	all := sources()
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
	if card.stuck != nil {
		if !card.stuck.over() {
			return giveUp(0, 0, card.stuck.trouble())
		}
		card.stuck = nil
	}
	if card.session != list.session { // the handles and the clock of another session mean nothing
		*card = *newSampledCard(list)
	}
	r := &reader{
		sampler: s, list: list, device: h.device, card: card, out: gpu.GPUSample{GPU: h.uuid},
		steps: make(chan step, len(all)),
	}
	r.q = &question{card: h.uuid, log: s.deps.Log, at: func(_ gpu.UUID, call string) { r.call.Store(&call) }}
	go r.run(all)
	timer := time.NewTimer(s.deps.SourceTimeout)
	defer timer.Stop()
	for i := range all {
		timer.Reset(s.deps.SourceTimeout)
		select {
		case done, ok := <-r.steps:
			if !ok {
				return giveUp(i, 0, "the driver was closed")
			}
			statuses := append(out.Sources, done.status)
			out = done.out
			out.Sources = statuses
			continue
		case <-timer.C:
		case <-ctx.Done():
		}
		r.abandoned.Store(true)
		card.stuck = r
		if ctx.Err() == nil {
			s.deps.Log.Warn("a card does not answer in time, its sample ends here", "gpu", h.uuid, "source", all[i].name, "trouble", r.trouble())
		}
		return giveUp(i, s.deps.SourceTimeout, r.trouble())
	}
	return out
}

// run reads all sources, as long as somebody waits for them.
func (r *reader) run(all []source) {
	defer close(r.steps)
	for _, one := range all {
		if r.abandoned.Load() {
			return
		}
		started := r.sampler.deps.Now()
		r.q.missing = nil
		if !r.sampler.adapter.within(r.list, r.doing, func() { one.read(r) }) {
			return
		}
		status := gpu.SourceStatus{Name: one.name, OK: true, Took: r.sampler.deps.Now().Sub(started)}
		switch {
		case r.q.lost != nil:
			status.OK, status.Trouble = false, fmt.Sprintf("%s returned %s", r.q.lost.call, say(r.q.lost.ret))
		case r.q.broken != nil:
			status.OK, status.Trouble = false, r.q.broken.Message
		case r.q.missing != nil:
			status.OK, status.Trouble = false, "a call failed"
		}
		r.steps <- step{status, r.out.Clone()}
	}
}

// doing is the card and the call that the reader is in.
func (r *reader) doing() (gpu.UUID, string) {
	if name := r.call.Load(); name != nil {
		return r.out.GPU, *name
	}
	return r.out.GPU, "a call"
}

// over tells whether an abandoned reader has ended.
func (r *reader) over() bool {
	for {
		select {
		case _, more := <-r.steps:
			if !more {
				return true
			}
		default:
			return false
		}
	}
}

// trouble says which call has not returned.
func (r *reader) trouble() string {
	call := "the driver"
	if name := r.call.Load(); name != nil {
		call = *name
	}
	return fmt.Sprintf("%s has not returned within %s", call, r.sampler.deps.SourceTimeout)
}
