// Package metricsync keeps the agent's metrics page: it renders the page of the GPUs from the last measurement, and
// computes the agent's own metrics at each scrape.
//
// It guarantees that a scrape waits for no measurement, that the page is rendered by one goroutine, and that an error
// that NVML and the kernel log both report is counted once ([XIDs]).
//
// What wakes it: a measurement; a change of the inventory, of the ledger, of the use in force or of the problems.
//
// What it writes: [metrics.Page], and the problem of listed fields of which no GPU has a value. What it never waits for: the API
// server and the kubelet. It reads the cgroups of the processes that use a GPU. Nothing waits for it.
//
// It must not import the agent, another package below it, or an adapter.
package metricsync

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/berth-gpu/berth/internal/core/dcgm"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/metrics"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// Deps are the dependencies of a Syncer. All functions only read memory.
type Deps struct {
	NodeName string
	// DCGMFields are what the page has under dcgm-exporter's names.
	DCGMFields []dcgm.Export
	// DCGMHostnameLabel is the label of dcgm-exporter's metrics with the node's name.
	DCGMHostnameLabel string
	// Vendors are those whose GPUs are measured.
	Vendors []gpu.Traits
	// ProcRoot is the host's /proc.
	ProcRoot string
	// Sample measures the GPUs until ctx ends, and calls take with each measurement.
	Sample   func(ctx context.Context, take func(gpu.Sample)) error
	Hardware func() *gpu.Snapshot
	Units    func() []offer.Unit
	Holdings func() []gpu.Holding
	XIDs     func() []metrics.XIDCount
	// ContainerName is the name of a running container; empty when it is not known.
	ContainerName func(id string) string
	// Report replaces the problems of a source. It must not block.
	Report func(source string, problems ...gpu.Cause)
	// Changed are the subscriptions to what the page shows besides the measurement.
	Changed []func() *signal.Subscription
	Page    *metrics.Page
}

// Syncer is the actor. Create it with New, start it with Run.
type Syncer struct {
	deps Deps
	wake *signal.Signal
	last atomic.Pointer[gpu.Sample]
	// samples counts the measurements.
	samples atomic.Int64
}

// New returns a Syncer.
func New(deps Deps) *Syncer { return &Syncer{deps: deps, wake: signal.New()} }

// Run measures and renders until ctx ends.
func (s *Syncer) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return s.deps.Sample(ctx, func(sample gpu.Sample) {
			s.last.Store(&sample)
			s.samples.Add(1)
			s.wake.Set()
		})
	})
	group.Go(func() error { return signal.Join(ctx, s.wake, s.deps.Changed...) })
	group.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-s.wake.C():
				s.render()
			}
		}
	})
	return group.Wait()
}

// render renders the page; without a measurement there is none yet.
func (s *Syncer) render() {
	sample := s.last.Load()
	if sample == nil {
		return
	}
	modes := map[gpu.UUID]string{}
	for _, unit := range s.deps.Units() {
		modes[unit.Key.Device()] = modeName(unit.Use.Mode)
	}
	holdings := s.deps.Holdings()
	in := metrics.Input{
		Node: s.deps.NodeName, Snapshot: s.deps.Hardware(), Sample: *sample, XIDs: s.deps.XIDs(), Owners: s.owners(sample, holdings),
		DCGMFields: s.deps.DCGMFields, DCGMHostnameLabel: s.deps.DCGMHostnameLabel, Vendors: s.deps.Vendors,
	}
	for _, h := range holdings {
		in.Holdings = append(in.Holdings, metrics.HoldingsOf(h, modes[h.Key.Device()])...)
		if h.Holder.Kind == gpu.HolderClaim {
			in.Claims = append(in.Claims, h)
		}
	}
	s.deps.Page.Render(in)
	if s.samples.Load() < complete {
		return
	}
	if fields, ok := metrics.Unanswered(in); ok {
		s.deps.Report("metricsync", metrics.UnansweredProblems(fields)...)
	}
}

// complete is the number of measurements after which each value that there is was read: some are those between two.
const complete = 2

// modeName returns the sharing mode of a device as the metrics name it.
func modeName(mode offer.Mode) string {
	switch mode {
	case offer.TimeSlicing:
		return "timeslicing"
	case offer.MPS:
		return "mps"
	}
	return "exclusive"
}

// owners finds the containers of the processes in a measurement, by their cgroups.
func (s *Syncer) owners(sample *gpu.Sample, holdings []gpu.Holding) map[int]metrics.Owner {
	owners, pods := map[int]metrics.Owner{}, map[string]metrics.Owner{}
	for _, h := range holdings {
		for _, owner := range metrics.OwnersOf(h) {
			if _, known := pods[owner.PodUID]; owner.PodUID != "" && (h.Holder.OfPod() || !known) {
				pods[owner.PodUID] = owner
			}
		}
	}
	for i := range sample.GPUs {
		for _, process := range sample.GPUs[i].Processes {
			found, err := kubelet.ProcessOf(s.deps.ProcRoot, process.PID)
			if err != nil {
				continue // It has ended, or belongs to no container.
			}
			owner, ok := pods[found.PodUID]
			if !ok {
				owner = metrics.Owner{PodUID: found.PodUID}
			}
			if name := s.deps.ContainerName(found.ContainerID); name != "" {
				owner.Container = name
			}
			owners[process.PID] = owner
		}
	}
	return owners
}
