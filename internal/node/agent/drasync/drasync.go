// Package drasync connects the DRA front end with the node: the inventory, the use of the devices, and the ledger.
//
// It guarantees that a GPU is published only while the device plugin does not list it (Handover); that old slices are deleted at once
// at a start without DRA; that only devices whose use in force is DRA are published and prepared; that a GPU that goes back to the
// device plugin has a taint, so that no new claim gets it, until its claims have ended; and that the ledger has the claims that the kubelet
// lists as prepared before it is compared with the node (Adopt). A MIG device of a dynamic GPU is held by its placement until it exists,
// and by its UUID from then on. On a node that allocates nothing through DRA, it registers and publishes nothing.
//
// A claim waits, instead of being refused, for a MIG change that has one of its devices, and for the facts about a pod that may have ended.
// Which of the DeviceClasses that the node's devices need are missing or ambiguous is a problem of the node.
//
// What wakes it: a change of the use of the devices or of the hardware. What it writes: the ResourceSlices and the sockets, by
// internal/node/dra, and the problems of the source "dra devices". What it never waits for: the driver; only publishing
// waits for the API server.
package drasync

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/dra"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
	"github.com/berth-gpu/berth/internal/node/dra/publish"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
)

const (
	// adoption is the source of the problem that prepared claims are not known.
	adoption = "dra claims"
	// retryAdoption is the time between two attempts to read the kubelet's record.
	retryAdoption = time.Second
)

// Inventory is the node's hardware.
type Inventory interface{ Current() *gpu.Snapshot }

// Devices has the use of the devices.
type Devices interface {
	Current() []offer.Placed
	// Units has the use in force, also of GPUs that are not there now.
	Units() []offer.Unit
	SubscribeSettled() *signal.Subscription
	// Subscribe signals when a device can be injected, or cannot any more.
	Subscribe() *signal.Subscription
}

// Handover keeps GPUs out of one of the two APIs; the type Gate of package handover has it.
type Handover interface {
	// Publish takes the GPUs that are to be in slices and returns those that may be.
	Publish(wanted []gpu.UUID) (allowed map[gpu.UUID]bool)
	// Write begins to write a slice with these GPUs, unless one of them must be in none.
	Write(gpus []gpu.UUID) (end func(), err error)
	// Read begins to read the slices of the node; seen takes the GPUs that they have.
	Read() (seen func(gpus []gpu.UUID))
	// Counted returns the GPUs and the resources of which the kubelet counts devices for a device plugin.
	Counted() (gpus map[gpu.UUID]bool, resources map[string]bool)
	// Published returns the GPUs that slices may have, sorted.
	Published() []gpu.UUID
}

// Changes are what changes devices for claims.
type Changes struct {
	// Ensure makes the devices of dynamic GPUs, as dra.Deps says.
	Ensure func(ctx context.Context, key gpu.DeviceKey, profile string) (gpu.UUID, error)
	// Maintains reports whether a holder is a MIG change, which ends when it is done.
	Maintains func(gpu.Holder) bool
	// Sliced returns when a GPU has the time slice of its claim, with nil, or at the end of ctx with the reason why not.
	Sliced func(ctx context.Context, id gpu.UUID, slice string) error
	// Daemon returns when a GPU has the MPS daemon of its claim, or none, with nil, or at the end of ctx with the reason why not.
	Daemon func(ctx context.Context, id gpu.UUID, limits gpu.MPSLimits) error
}

// CDI is how containers get devices.
type CDI struct {
	// Name returns the qualified CDI name of a device.
	Name func(id string) string
	// Injectable reports whether the CDI spec on disk has a device of a vendor, from memory.
	Injectable func(vendor string, key gpu.DeviceKey) bool
	// MPS returns what a client of a GPU's MPS daemon gets, and why it cannot be injected now; empty when it can. It reads memory.
	MPS func(id gpu.UUID) (injection offer.Injection, notReady string)
}

// Deps are the dependencies of a Syncer.
type Deps struct {
	// DriverName is the name of the DRA driver, NodeName that of the Node and of its pool.
	DriverName string
	NodeName   string
	// KubeletDir is the kubelet's root directory, and HostRoot where the host's root is mounted.
	KubeletDir string
	HostRoot   string
	Client     kubernetes.Interface
	Hardware   Inventory
	Devices    Devices
	Ledger     *ledger.Ledger
	Changes    Changes
	CDI        CDI
	Handover   Handover
	// Report replaces the problems of a source. It must not block.
	Report func(source string, problems ...gpu.Cause)
	// NotPrepared reports on a claim why it could not be prepared. It must not block.
	NotPrepared func(namespace, name, uid, message string)
	// Fault is called at each step of a prepare and an unprepare; an error ends the call there. For tests.
	Fault func(step string) error
	Clock clock.WithTicker
	Log   *slog.Logger
}

// Syncer is the actor. Create it with New, call Adopt, start it with Run.
type Syncer struct {
	deps      Deps
	driver    *dra.Driver
	server    *dra.Server
	publisher *publish.Publisher
	statuses  *dra.StatusWriter
	reader    publish.Checker

	// calls counts the kubelet's calls; active is true from the time at which a device is allocated through DRA. tainted is how many
	// devices are in both APIs.
	calls  dra.CallRecorder
	active atomic.Bool
	// registered is true once a kubelet has registered the driver.
	registered *signal.Ready
	tainted    atomic.Int64

	mu sync.Mutex
	// last are the slices that were published last.
	last []resourceapi.ResourceSlice
}

// New returns a Syncer; it touches nothing.
func New(deps Deps) *Syncer {
	s := &Syncer{deps: deps, registered: signal.NewReady(), reader: publish.Checker{
		Client: deps.Client, Driver: deps.DriverName, Node: deps.NodeName, Pool: deps.NodeName, Read: func() func([]resourceapi.ResourceSlice) {
			seen := deps.Handover.Read()
			return func(list []resourceapi.ResourceSlice) { seen(pool.GPUs(list...)) }
		},
	}}
	s.driver = dra.New(dra.Deps{
		DriverName: deps.DriverName, Pool: deps.NodeName, Ledger: newLedgerClaims(ledgerClaimsDeps{Ledger: deps.Ledger, Current: deps.Hardware.Current, Maintains: deps.Changes.Maintains, Clock: deps.Clock, Log: deps.Log}),
		Ensure: deps.Changes.Ensure, Devices: s.devices, Changed: deps.Devices.SubscribeSettled,
		Ready: s.ready, Sliced: s.sliced, Served: s.client, CDIName: deps.CDI.Name, Report: deps.Report, Observe: s.observe, Fault: func(step dra.Step) error { return deps.Fault(string(step)) }, Clock: deps.Clock, Log: deps.Log,
		Prepared: preparedClaims(deps.HostRoot, deps.KubeletDir, deps.DriverName),
	})
	s.server = dra.NewServer(dra.ServerDeps{
		Driver: s.driver, NodeName: deps.NodeName, KubeletDir: deps.KubeletDir,
		Client: publish.Guard(deps.Client, func(slice *resourceapi.ResourceSlice) (func(), error) {
			return deps.Handover.Write(pool.GPUs(*slice))
		}, func() { s.publisher.Wrote() }),
		Serving:    func() { s.publisher.Registered() },
		Registered: func() { s.registered.Set(); s.publisher.Registered() }, Failed: func(err error) { s.publisher.Failed(err) },
	})
	s.publisher = publish.New(publish.Deps{
		Pool: deps.NodeName, Slices: s.slices, Changed: deps.Devices.SubscribeSettled, Target: s.server, Waiting: notServing,
		Check: s.reader.Check, Report: deps.Report, Clock: deps.Clock, Log: deps.Log,
	})
	s.statuses = dra.NewStatusWriter(dra.StatusDeps{
		Client: deps.Client, Driver: deps.DriverName, Claims: s.claimed, Held: deps.Ledger.Subscribe, Settled: deps.Devices.SubscribeSettled,
		Report: deps.Report, Clock: deps.Clock,
	})
	return s
}

// Sockets returns the paths of the driver's sockets that are served now, that of the registration first; nil when none is.
func (s *Syncer) Sockets() []string { return s.server.Sockets() }

// AwaitAdopted gives the ledger the claims that the kubelet lists as prepared, and returns when it has them or ctx ends. It is
// called after the first scan of the hardware and before the first comparison of the ledger with the node. While the kubelet's
// record cannot be read, it is not known which devices claims have, so nothing is allocated.
func (s *Syncer) AwaitAdopted(ctx context.Context) {
	for {
		err := s.driver.Adopt()
		if err == nil {
			s.deps.Report(adoption)
			return
		}
		s.deps.Report(adoption, gpu.Cause{Code: "DRA_NOT_ADOPTED", Message: err.Error()})
		select {
		case <-ctx.Done():
			return
		case <-s.deps.Clock.After(retryAdoption):
		}
	}
}

// Registered is closed once a kubelet has registered the driver, so that it calls this agent and no other one.
func (s *Syncer) Registered() <-chan struct{} { return s.registered.Done() }

// InUse reports whether a device is, or was, allocated through DRA.
func (s *Syncer) InUse() bool {
	return slices.ContainsFunc(s.deps.Devices.Units(), func(u offer.Unit) bool { return u.Use.API == offer.DRA })
}

// HandoverChanged signals a change of what Handover returns. It never waits.
func (s *Syncer) HandoverChanged() { s.publisher.Permitted() }

// Run deletes the slices that are left of an earlier agent while no device is allocated through DRA. From the time at which one is, it
// serves the kubelet and publishes until ctx ends.
func (s *Syncer) Run(ctx context.Context) error {
	remains := publish.Remains{Checker: s.reader, Changed: s.deps.Devices.SubscribeSettled, Published: s.deps.Handover.Published, Report: s.deps.Report, Clock: s.deps.Clock, Log: s.deps.Log,
		InUse: s.InUse}
	if !remains.AwaitUse(ctx) {
		return nil
	}
	s.active.Store(true)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.server.Run(ctx) })
	group.Go(func() error { return s.publisher.Run(ctx) })
	classes := classChecker{
		Client: s.deps.Client, DriverName: s.deps.DriverName, Served: s.served, Changed: s.deps.Devices.SubscribeSettled, Report: s.deps.Report, Clock: s.deps.Clock,
	}
	group.Go(func() error { return classes.Run(ctx) })
	group.Go(func() error { return s.statuses.Run(ctx) })
	return group.Wait()
}
