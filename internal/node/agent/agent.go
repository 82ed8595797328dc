package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/node/agent/cdisync"
	"github.com/berth-gpu/berth/internal/node/agent/configsync"
	"github.com/berth-gpu/berth/internal/node/agent/gpunodesync"
	"github.com/berth-gpu/berth/internal/node/agent/hardware"
	"github.com/berth-gpu/berth/internal/node/agent/healthsync"
	"github.com/berth-gpu/berth/internal/node/agent/injection"
	"github.com/berth-gpu/berth/internal/node/agent/kubeletsync"
	"github.com/berth-gpu/berth/internal/node/agent/labelsync"
	"github.com/berth-gpu/berth/internal/node/agent/library"
	"github.com/berth-gpu/berth/internal/node/agent/migsync"
	"github.com/berth-gpu/berth/internal/node/agent/mpssync"
	"github.com/berth-gpu/berth/internal/node/agent/reset"
	"github.com/berth-gpu/berth/internal/node/agent/timeslice"
	"github.com/berth-gpu/berth/internal/node/allocatable"
	"github.com/berth-gpu/berth/internal/node/cdi"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/deviceplugin"
	"github.com/berth-gpu/berth/internal/node/inventory"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/metrics"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/mps"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/pages"
	"github.com/berth-gpu/berth/internal/node/podwatch"
	"github.com/berth-gpu/berth/internal/node/problems"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// Deps is what an Agent is made of.
type Deps struct {
	// Config is the configuration with all that follows its changes; Run runs it.
	Config   *configwatch.Watcher
	Hardware hardware.Machine
	// API is nil for an agent that publishes nothing (standalone).
	API   dynamic.Interface
	Clock clock.WithTicker
	Log   *slog.Logger
	// BootID voids the ledger of an earlier boot; empty means the machine's own.
	BootID string
	// Instance distinguishes this agent from another one of the node, as there is during an upgrade; empty means
	// [pages.DefaultInstance].
	Instance string
	// HookSource is the program that is installed as CDI hook where the configuration uses CDI.
	HookSource string
	// Fault is called at each step of a change; an error stops the change there, as death
	// would. For tests.
	Fault func(Step) error
}

// Step is a moment of a change at which a test can stop the agent. Those of a changed
// configuration are configwatch's, those of MIG partition's, those of MPS mps's, those of time slices timeslice's.
type Step string

// The steps.
const (
	// StepUnitsKept: the new use of the devices is on disk and not yet in force.
	StepUnitsKept = Step(allocatable.StepKept)
)

// Agent is the node side of Berth. Make it with New, start it with Run.
type Agent struct {
	// config is what the start settled; what changes later is watch's.
	config *v1alpha1.AgentConfig
	watch  *configwatch.Watcher
	api    dynamic.Interface
	clock  clock.WithTicker
	log    *slog.Logger
	fault  func(Step) error
	// devRoot is where this process sees the root of dev/.
	devRoot string
	// sys is the root of sysfs; began is when this agent did.
	sys      string
	began    time.Time
	instance string
	// simulated is the directory of simulated hardware; empty for a real driver.
	simulated string

	// problemList holds the problems that belong to no GPU, by source.
	problemList *problems.List
	// republish wakes the projections for what they have no subscription of their own.
	republish   signal.Broadcast
	retry       nodeapi.Retry
	events      *nodeapi.Events
	conditions  *nodeapi.Conditions
	inventory   *inventory.Inventory
	allocatable *allocatable.Devices
	injection   *injection.Source
	timeslices  *timeslice.Syncer
	mps         *mpssync.Syncer
	partition   *migapply.Partition
	mig         *migsync.Syncer
	resetter    *reset.Resetter
	// health and labels report to the API; condition, taint, migState and gpuNode are the workers of one object each, nil
	// without an API server.
	health    *healthsync.Reporter
	labels    *labelsync.Syncer
	condition *nodeapi.Publisher[nodeapi.NodeCondition]
	taint     *nodeapi.Publisher[bool]
	migState  *nodeapi.Publisher[string]
	gpuNode   *nodeapi.Publisher[*v1alpha1.GPUNode]
	sampler   *nvidia.Sampler
	page      *metrics.Page
	xids      *xidCounts
	ledger    *ledger.Ledger
	liveness  *liveness
	pods      *podwatch.Watch
	sync      *kubeletsync.Sync
	cdi       *cdisync.Syncer
	plugin    *deviceplugin.Manager

	// compared is closed when the ledger was first compared with the node.
	compared chan struct{}
	library  *library.Watch
	// sample is the last measurement.
	sample atomic.Pointer[gpu.Sample]
}

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
	rules, err := config.HealthRules(deps.Config.Base(), os.Getenv)
	if err != nil {
		return nil, fmt.Errorf("make agent: %w", err)
	}
	ignored := config.IgnoredXIDs(deps.Config.Base())
	config := deps.Config.Base()
	a := &Agent{
		simulated: deps.Hardware.Simulated,
		instance:  cmp.Or(deps.Instance, pages.DefaultInstance()),
		config:    config, watch: deps.Config, api: deps.API, clock: deps.Clock, log: deps.Log, fault: deps.Fault, devRoot: deps.Hardware.Roots.Dev,
		sys: deps.Hardware.Roots.Sys, began: deps.Clock.Now(), xids: &xidCounts{},
		problemList: problems.New(deps.Clock, deps.Log),
		compared:    make(chan struct{}),
	}
	a.retry = nodeapi.Retry{Clock: deps.Clock, NodeName: config.NodeName}
	a.events = nodeapi.NewEvents(deps.API, a.retry, deps.Log.With("component", "nodeapi"))
	a.conditions = nodeapi.NewConditions(deps.Clock, a.events.Publish)
	if a.fault == nil {
		a.fault = func(Step) error { return nil }
	}
	a.library = library.New(library.Deps{StateDir: config.StateDir, BootID: deps.BootID, Log: deps.Log.With("component", "library")})
	adapter := deps.Hardware.Adapter(deps.Log.With("component", "nvidia"), a.library.Replaced)
	a.sampler = adapter.Sampler(nvidia.SamplerDeps{Interval: config.SampleInterval.Duration, Log: deps.Log.With("room", "nvidia")})
	a.inventory = inventory.New(inventory.Deps{
		Source: counted{adapter, a.xids}, Clock: deps.Clock, Log: deps.Log.With("room", "inventory"),
		Poll: config.PollInterval.Duration, Deadline: config.ScanDeadline.Duration,
		IgnoredXIDs: ignored, Rules: rules,
		Keep: filepath.Join(config.StateDir, inventory.KeepFile), BootID: deps.BootID,
		KeepLost: func(cause gpu.Cause) { a.events.Publish(nodeapi.StateLost(cause.Message)) },
		Renewed:  func(gpus []gpu.UUID) { a.timeslices.WereReset(gpus) },
	})
	if err := a.wireHolders(deps); err != nil {
		return nil, err
	}
	a.wireChanges(deps, adapter)
	if err := a.wireAPI(); err != nil {
		return nil, fmt.Errorf("make agent: %w", err)
	}
	a.page = metrics.NewPage(metrics.PageDeps{Own: newRegistry(a), DCGMNames: config.DCGMNames})
	return a, nil
}

// wireHolders makes the parts that give devices out: ledger, CDI and device plugin.
func (a *Agent) wireHolders(deps Deps) error {
	config := a.config
	a.liveness = newLiveness(a.clock)
	a.pods = podwatch.New(podwatch.Deps{API: a.api, NodeName: config.NodeName, Log: a.log.With("component", "podwatch")})
	grants := &kubeletsync.Grants{Dir: filepath.Join(config.StateDir, kubeletsync.GrantsFolder), Clock: a.clock, Log: a.log.With("component", "kubeletsync")}
	node := kubeletsync.NewNode(kubeletsync.NodeDeps{
		KubeletDir: config.KubeletDir, Pods: a.pods,
		Containers: kubelet.NewContainers(kubelet.ContainersDeps{
			ProcRoot: "/proc", CgroupRoot: config.CgroupRoot, Bundles: bundles(config), GrantsDir: grants.Dir,
		}),
		Resources: kubelet.NewPodResources(config.KubeletDir), Snapshot: func() *gpu.Snapshot { return a.inventory.Current() },
		Names: a.resourceNames, Granted: func(id string) []gpu.DeviceKey { return a.ledger.Granted(id) }, GrantsDir: grants.Dir, Clock: a.clock, Log: a.log.With("component", "kubeletsync"),
	})
	var err error
	a.ledger, err = ledger.Open(ledger.Deps{
		Path: filepath.Join(config.StateDir, ledger.File), BootID: deps.BootID, Clock: a.clock, Log: a.log.With("room", "ledger"),
		Look: node.Living, LookIn: node.LivingIn, Assigned: node.Assigned, Stamp: node.Stamp, Pod: node.Pod, Ask: node.Ask,
	})
	if err != nil {
		return fmt.Errorf("make agent: %w", err)
	}
	a.wireAllocatable(deps.BootID)
	a.sync = kubeletsync.New(kubeletsync.Deps{
		Node: node, Ledger: a.ledger, Grants: grants, PodsChanged: a.pods.Changed(), Report: a.problemList.Set,
	})
	hook, err := installHook(config, deps.HookSource)
	if err != nil {
		return fmt.Errorf("make agent: %w", err)
	}
	a.cdi = cdisync.New(cdisync.Deps{
		Writer: cdi.New(cdi.Deps{
			Dir: config.CDIDir, Roots: deps.Hardware.CDI, Library: deps.Hardware.Library, HookPath: hook,
			Clock: a.clock, Log: a.log.With("room", "cdi"),
		}),
		Dir: config.CDIDir, DevRoot: a.devRoot, Hardware: a.inventory,
		Extras: a.injection.Extras, ExtrasChanged: a.allocatable.SubscribeUse,
		Report: a.problemList.Set, Changed: a.allocatable.InjectionChanged, Clock: a.clock,
	})
	a.plugin, err = deviceplugin.New(deviceplugin.Deps{
		KubeletDir: config.KubeletDir, State: a.advertised, Changed: a.allocatable.Subscribe().C(), Ledger: holders{a.ledger, grants},
		Hardware: func() deviceplugin.Subscription { return a.inventory.Subscribe() },
		Holdings: func() deviceplugin.Subscription { return a.ledger.Subscribe() },
		Strategy: strategy(config), CDIName: cdi.QualifiedName, Mark: mark, KubeletRestarted: a.kubeletRestarted,
		Told:  func(resource, message string) { a.events.Publish(nodeapi.SharesOfOneGPU(message)) },
		Clock: a.clock, Log: a.log.With("room", "deviceplugin"),
	})
	if err != nil {
		return fmt.Errorf("make agent: %w", err)
	}
	return nil
}

// wireChanges makes the parts that change the hardware: MIG, time slices, MPS daemons.
func (a *Agent) wireChanges(deps Deps, adapter *nvidia.Adapter) {
	program := deps.Hardware.NVIDIASMI(a.log.With("component", "smi"))
	a.timeslices = timeslice.New(timeslice.Deps{
		Units: a.allocatable.Units, UnitsChanged: a.allocatable.SubscribeUse, Hardware: a.inventory,
		Program: program, StateDir: a.config.StateDir, BootID: deps.BootID, FileLost: a.stateLost, Report: a.problemList.Set,
		Fault: func(step timeslice.Step) error { return a.fault(Step(step)) },
		Clock: a.clock, Log: a.log.With("component", "timeslice"),
	})
	a.mps = mpssync.New(mpssync.Deps{
		Units: a.allocatable.Units, UnitsChanged: a.allocatable.SubscribeUse, Hardware: a.inventory,
		Supervisor: &mps.Client{Socket: mps.SocketPath(a.config.MPSRoot), Clock: a.clock}, Report: a.problemList.Set,
		Changed: func() {
			// The CDI spec has the directories of a daemon only while its replicas can be allocated.
			a.cdi.Poke()
			a.allocatable.InjectionChanged()
		},
		Clock: a.clock,
	})
	actions := deps.Hardware.Actions(a.log.With("component", "nvidia"))
	gpus := hardware.NewMIG(hardware.MIGDeps{
		Actions: actions, Adapter: adapter, SMI: program, WereReset: a.timeslices.WereReset, Report: a.inventory.Report, Now: a.clock.Now,
	})
	finder := a.newFinder(actions)
	a.resetter = reset.New(reset.Deps{
		Dir: a.config.StateDir, Hardware: a.inventory, Ledger: a.ledger, Openers: finder.Find,
		Quiesce: func(ctx context.Context, id gpu.UUID) error { return a.mps.Quiesce(ctx, mpssync.ForReset, id) },
		Resume:  func(gpu.UUID) { a.mps.Unquiesce(mpssync.ForReset) },
		Reset:   func(ctx context.Context, id gpu.UUID) error { return gpus.Reset(ctx, []gpu.UUID{id}) },
		Clock:   a.clock, Log: a.log.With("component", "reset"),
	})
	a.partition = migapply.New(migapply.Deps{
		Dir: a.config.PersistentDir, NodeUID: a.watch.NodeUID, Owner: "berth-agent " + strconv.Itoa(os.Getpid()),
		Hardware:  gpus,
		Inventory: scanned{a.inventory}, Ledger: a.ledger, Devices: a.allocatable.KeysOn,
		Blind: a.sync.Unsure, Notify: a.republish.Set,
		Quiesce: func(ctx context.Context, id gpu.UUID) error { return a.mps.Quiesce(ctx, mpssync.ForMIG, id) },
		Openers: finder.Find,
		Clock:   a.clock, Log: a.log.With("room", "partition"),
	})
	a.mig = migsync.New(migsync.Deps{
		Config: a.watch, Hardware: a.inventory, Ledger: a.ledger, Partition: a.partition, Node: migNode{a},
		Settle: a.allocatable.Settle, Resume: func() { a.mps.Unquiesce(mpssync.ForMIG) }, Report: a.problemList.Set, Clock: a.clock,
	})
}

// Run works until ctx ends. It returns an error only for what no waiting would
// mend; a missing driver, kubelet or API server are waited for.
func (a *Agent) Run(ctx context.Context) error {
	defer a.ledger.Close()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.inventory.Run(ctx) })
	group.Go(func() error { return a.watch.Run(ctx, configsync.Judge(a.inventory)) })
	group.Go(func() error { return a.library.Run(ctx) })
	group.Go(func() error { return a.events.Run(ctx) })
	group.Go(func() error { return a.allocatable.Run(ctx) })
	group.Go(func() error {
		return configsync.New(configsync.Deps{Config: a.watch, Conditions: a.conditions, Report: a.problemList.Set}).Run(ctx)
	})
	group.Go(func() error { return a.measure(ctx) })
	group.Go(func() error { return a.labels.Run(ctx) })
	group.Go(func() error { return a.pages(ctx) })
	group.Go(func() error { return a.metricsPage(ctx) })
	group.Go(func() error { return a.pods.Run(ctx) })
	group.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-a.compared: // Before, the device plugin's loop does not run.
		}
		return a.liveness.run(ctx, a.checks())
	})
	group.Go(func() error { return a.shadow(ctx) })
	group.Go(func() error { return a.project(ctx) })
	// The order that the package promises: compare first, advertise then. The spec waits too, since it names MPS
	// daemons, of which nothing is known before.
	for _, run := range []func(context.Context) error{a.cdi.Run, a.plugin.Run, a.mig.Run, a.resetter.Run, a.timeslices.Run, a.mps.Run, a.health.Run} {
		group.Go(func() error {
			select {
			case <-ctx.Done():
				return nil
			case <-a.compared:
			}
			return run(ctx)
		})
	}
	if a.api != nil {
		for _, run := range []func(context.Context) error{a.condition.Run, a.taint.Run, a.migState.Run, a.gpuNode.Run, a.ensureDefinition} {
			group.Go(func() error { return run(ctx) })
		}
		group.Go(func() error {
			return gpunodesync.New(gpunodesync.Deps{
				NodeName: a.config.NodeName, Compared: a.compared, Hardware: a.inventory, Ledger: a.ledger, Devices: a.allocatable,
				Config: a.watch, Conditions: a.conditions, Problems: nodeProblems{a}, Publish: a.gpuNode.Publish,
			}).Run(ctx)
		})
	}
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	a.log.Info("stopped; nothing was removed, containers keep their devices")
	return nil
}

// advertised is what the device plugin shows at this moment. It is on the path from a fault to the kubelet:
// no file, API or hardware call, and no lock that is held over one.
func (a *Agent) advertised() deviceplugin.State {
	config := a.watch.Current().Config
	state := deviceplugin.State{
		Snapshot: a.inventory.Current(), Offers: a.offers(),
		Policy:   placement.Policy(config.SharedDevicesAllocationPolicy),
		Features: deviceplugin.Features{GDS: config.GDS, GDRCopy: config.GDRCopy, MOFED: config.MOFED},
	}
	if injection := a.cdi.Current(); injection != nil {
		state.Features.IMEXChannels = injection.IMEXChannels
	}
	return state
}

// offers are the devices that the kubelet gets.
func (a *Agent) offers() []offer.Offer { return allocatable.Offers(a.allocatable.Current()) }
