package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cdi"
	"github.com/berth-gpu/berth/internal/deviceplugin"
	"github.com/berth-gpu/berth/internal/gpu"
	"github.com/berth-gpu/berth/internal/gpunode"
	"github.com/berth-gpu/berth/internal/health"
	"github.com/berth-gpu/berth/internal/inventory"
	"github.com/berth-gpu/berth/internal/kubelet"
	"github.com/berth-gpu/berth/internal/ledger"
	"github.com/berth-gpu/berth/internal/offer"
	"github.com/berth-gpu/berth/internal/trace"
)

// Deps is what an Agent is made of.
type Deps struct {
	Config   *v1alpha1.AgentConfig
	Hardware Hardware
	// API is nil for an agent that publishes nothing (standalone).
	API   dynamic.Interface
	Clock clock.WithTicker
	Log   *slog.Logger
	// BootID voids the ledger of an earlier boot; empty means the machine's own.
	BootID string
}

// Agent is the node side of Berth. Make it with New, start it with Run.
type Agent struct {
	config *v1alpha1.AgentConfig
	api    dynamic.Interface
	clock  clock.WithTicker
	log    *slog.Logger

	board      *board
	inventory  *inventory.Inventory
	ledger     *ledger.Ledger
	containers *kubelet.Containers
	resources  *kubelet.PodResources
	orphans    *orphanPods
	cdi        *cdi.Writer
	plugin     *deviceplugin.Manager
	publisher  *gpunode.Publisher
	registry   *prometheus.Registry

	// compared is closed when the ledger was first compared with the node.
	compared chan struct{}
	// changed wakes the device plugin.
	changed chan struct{}
	// injectable are the devices that the CDI spec on disk knows; nil before the first sync.
	injectable atomic.Pointer[map[gpu.UUID]bool]
	// entries are what the last comparison read, for the names of pods.
	entries atomic.Pointer[nodeEntries]
}

// nodeEntries are what the checkpoint and PodResources last said, to put names to UIDs.
type nodeEntries struct{ checkpoint, listed []trace.Entry }

// New wires an agent. It opens the ledger and touches nothing else.
func New(deps Deps) (*Agent, error) {
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.BootID == "" {
		id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return nil, fmt.Errorf("make agent: read boot ID: %w", err)
		}
		deps.BootID = strings.TrimSpace(string(id))
	}
	config := deps.Config
	a := &Agent{
		config: config, api: deps.API, clock: deps.Clock, log: deps.Log,
		board:    newBoard(deps.Clock, deps.Log),
		compared: make(chan struct{}),
		changed:  make(chan struct{}, 1),
	}
	a.inventory = inventory.New(inventory.Deps{
		Source: deps.Hardware.adapter(deps.Log.With("room", "nvidia")), Clock: deps.Clock, Log: deps.Log.With("room", "inventory"),
		Poll: config.PollInterval.Duration, Deadline: config.ScanDeadline.Duration,
		IgnoredXIDs: ignoredXIDs(config.IgnoredXIDs),
	})
	a.containers = kubelet.NewContainers(kubelet.ContainersDeps{
		ProcRoot: "/proc", CgroupRoot: config.CgroupRoot, Bundles: bundles(config),
	})
	a.resources = kubelet.NewPodResources(config.KubeletDir)
	a.orphans = &orphanPods{api: deps.API, resource: config.ResourceName, clock: deps.Clock, board: a.board}
	if err := a.wireHolders(deps); err != nil {
		return nil, err
	}
	a.registry = newRegistry(a)
	return a, nil
}

// wireHolders makes the parts that give devices out: ledger, CDI and device plugin.
func (a *Agent) wireHolders(deps Deps) error {
	config := a.config
	var err error
	a.ledger, err = ledger.Open(ledger.Deps{
		Path: filepath.Join(config.StateDir, "ledger"), BootID: deps.BootID,
		Clock: a.clock, Log: a.log.With("room", "ledger"), Look: a.living,
	})
	if err != nil {
		return fmt.Errorf("make agent: %w", err)
	}
	hook, err := installHook(config)
	if err != nil {
		return fmt.Errorf("make agent: %w", err)
	}
	a.cdi = cdi.New(cdi.Deps{
		Dir: config.CDIDir, Roots: deps.Hardware.CDI, Library: deps.Hardware.Library, HookPath: hook,
		Clock: a.clock, Log: a.log.With("room", "cdi"),
	})
	a.plugin, err = deviceplugin.New(deviceplugin.Deps{
		KubeletDir: config.KubeletDir, State: a.advertised, Changed: a.changed, Ledger: holders{a.ledger},
		Strategy: strategy(config), CDIName: cdi.QualifiedName, Mark: mark, KubeletRestarted: a.kubeletRestarted,
		Clock: a.clock, Log: a.log.With("room", "deviceplugin"),
	})
	if err != nil {
		return fmt.Errorf("make agent: %w", err)
	}
	if a.api != nil {
		a.publisher = gpunode.NewPublisher(gpunode.Deps{
			Client: gpunode.NewClient(a.api), NodeName: config.NodeName, Clock: a.clock, Log: a.log.With("room", "gpunode"),
		})
	}
	return nil
}

// Run works until ctx ends. It returns an error only for what no waiting would
// mend; a missing driver, kubelet or API server are waited for.
func (a *Agent) Run(ctx context.Context) error {
	defer a.ledger.Close()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.inventory.Run(ctx) })
	group.Go(func() error { return a.pages(ctx) })
	group.Go(func() error { return a.shadow(ctx) })
	group.Go(func() error { return a.project(ctx) })
	group.Go(func() error {
		// The order that the package promises: compare first, advertise then.
		select {
		case <-ctx.Done():
			return nil
		case <-a.compared:
		}
		return a.plugin.Run(ctx)
	})
	if a.publisher != nil {
		group.Go(func() error { return a.publisher.Run(ctx) })
		group.Go(func() error { a.ensureDefinition(ctx); return nil })
	}
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	a.log.Info("stopped; nothing was removed, containers keep their devices")
	return nil
}

// advertised is what the device plugin shows at this moment; from memory.
func (a *Agent) advertised() deviceplugin.State {
	return deviceplugin.State{Snapshot: a.inventory.Current(), Offers: a.offers()}
}

// offers leaves out what the container runtime could not inject yet: a card that
// was found a moment ago is in the inventory before it is in the CDI spec.
func (a *Agent) offers() []offer.Offer {
	snapshot := a.inventory.Current()
	offers := offer.Build(snapshot, offer.Settings{ResourceName: a.config.ResourceName, Exclude: excluded(snapshot, a.config.Exclude)})
	if !usesCDI(a.config) {
		return offers
	}
	known := a.injectable.Load()
	var ready []offer.Offer
	for _, o := range offers {
		var devices []offer.Device
		for _, device := range o.Devices {
			if known != nil && (*known)[device.Key.Device()] {
				devices = append(devices, device)
			}
		}
		if len(devices) > 0 {
			ready = append(ready, offer.Offer{Resource: o.Resource, Devices: devices})
		}
	}
	return ready
}

// excluded turns the configured UUIDs and indices into UUIDs.
func excluded(snapshot *gpu.Snapshot, names []string) []gpu.UUID {
	var ids []gpu.UUID
	for _, name := range names {
		index, err := strconv.Atoi(name)
		if err != nil {
			ids = append(ids, gpu.UUID(name))
			continue
		}
		for i := range snapshot.GPUs {
			if snapshot.GPUs[i].Index == index {
				ids = append(ids, snapshot.GPUs[i].UUID)
			}
		}
	}
	return ids
}

func ignoredXIDs(more []uint64) map[uint64]bool {
	ignored := health.DefaultIgnoredXIDs()
	for _, xid := range more {
		ignored[xid] = true
	}
	return ignored
}

func itoa(n int) string { return strconv.Itoa(n) }
