package labels

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// settle is how long further changes are waited for before the labels are computed.
const settle = 50 * time.Millisecond

// SyncFacts are the inputs of the labels besides the hardware.
type SyncFacts struct {
	Units        []offer.Unit
	ResourceName string
	MIGStrategy  string
	// Changing is true while a GPU is being repartitioned.
	Changing bool
}

// SyncerDeps are the dependencies of a Syncer.
type SyncerDeps struct {
	Outputs Outputs
	// Hardware is the current inventory of the GPUs that have labels; SyncFacts is all else. Both are from memory.
	Hardware func() *gpu.Snapshot
	Facts    func() SyncFacts
	// Changed are the subscriptions to all that Hardware and SyncFacts depend on.
	Changed []func() *signal.Subscription
	// Vendors compute the labels about their GPUs.
	Vendors []Vendor
	// Sys is the root of sysfs.
	Sys string
	// Timestamp is the value of the label with the time; zero for none.
	Timestamp time.Time
	// Report gets the outcome of each write; it must not block.
	Report func(error)
	Retry  nodeapi.Retry
	Log    *slog.Logger
}

// Syncer computes the labels about the node's GPUs and passes them to their publisher. Create it with NewSyncer, start it with Run.
//
// The labels follow from the present hardware, use and configuration; while a GPU is being repartitioned, or no driver responds, the last
// ones are kept. Labels that an earlier choice of the output left in another place are removed once at the start. Nothing is removed when
// it ends.
//
// What wakes it: a change of the inventory, of the settled use (which follows the configuration), or of a MIG change. Changes within 50 ms,
// which mostly have one cause, are computed once. It waits neither for the API server nor for the driver; it reads files of sysfs when the
// set of GPUs has changed.
type Syncer struct {
	deps SyncerDeps
	// publisher is nil where no labels are wanted.
	publisher *nodeapi.Publisher[Labels]
	// host are the facts of sysfs, which do not change while gpus are the GPUs.
	host *Host
	gpus []gpu.PCIAddress
}

// NewSyncer returns a Syncer.
func NewSyncer(deps SyncerDeps) *Syncer {
	s := &Syncer{deps: deps}
	if writer := deps.Outputs.Chosen; writer != nil {
		s.publisher = nodeapi.NewPublisher(nodeapi.PublisherDeps[Labels]{
			Read: func(ctx context.Context) (Labels, bool, error) {
				found, err := writer.Read(ctx)
				return found, true, err
			},
			Write: writer.Write, Equal: maps.Equal[Labels, Labels],
			Report: deps.Report, Retry: deps.Retry, Log: deps.Log,
		})
	}
	return s
}

// Run keeps the labels until ctx ends.
func (s *Syncer) Run(ctx context.Context) error {
	s.deps.Outputs.removeStale(ctx, s.deps.Log)
	if s.publisher == nil {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.publisher.Run(ctx) })
	wake := signal.New()
	group.Go(func() error { return signal.Join(ctx, wake, s.deps.Changed...) })
	group.Go(func() error {
		for signal.Settled(ctx, wake, settle) == nil {
			s.compute()
		}
		return nil
	})
	return group.Wait()
}

// compute passes the labels to their publisher, unless the last ones are kept.
func (s *Syncer) compute() {
	snapshot, facts := s.deps.Hardware(), s.deps.Facts()
	if facts.Changing || len(snapshot.GPUs) == 0 && !snapshot.DriverPresent() {
		return
	}
	gpus := make([]gpu.PCIAddress, len(snapshot.GPUs))
	for i := range snapshot.GPUs {
		gpus[i] = snapshot.GPUs[i].PCI
	}
	if s.host == nil || !slices.Equal(gpus, s.gpus) {
		host := ReadHost(s.deps.Sys, snapshot, s.deps.Vendors...)
		s.host, s.gpus = &host, gpus
	}
	computed := Build(Input{
		Snapshot: snapshot, Vendors: s.deps.Vendors, Units: facts.Units, ResourceName: facts.ResourceName, MIGStrategy: facts.MIGStrategy,
		Host: *s.host, Timestamp: s.deps.Timestamp,
	})
	s.publisher.Publish(computed)
}
