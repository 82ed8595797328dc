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
	"github.com/berth-gpu/berth/internal/node/agent/metricsync"
	"github.com/berth-gpu/berth/internal/node/agent/migsync"
	"github.com/berth-gpu/berth/internal/node/agent/mpssync"
	"github.com/berth-gpu/berth/internal/node/agent/reset"
	"github.com/berth-gpu/berth/internal/node/agent/serve"
	"github.com/berth-gpu/berth/internal/node/agent/timeslice"
	"github.com/berth-gpu/berth/internal/node/allocatable"
	"github.com/berth-gpu/berth/internal/node/cdi"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/deviceplugin"
	"github.com/berth-gpu/berth/internal/node/inventory"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/mps"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
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
	settings
	sources
	devices
	changes
	reports
	api

	// compared is set once the ledger was first compared with the node, and the use of the devices is settled.
	compared *signal.Ready
}

// settings are what the start settled; what changes later is the watcher's.
type settings struct {
	config *v1alpha1.AgentConfig
	clock  clock.WithTicker
	log    *slog.Logger
	fault  func(Step) error
	// devRoot is where this process sees the root of dev/, sys the root of sysfs.
	devRoot, sys string
	began        time.Time
	instance     string
	// simulated is the directory of simulated hardware; empty for a real driver.
	simulated string
}

// sources are the actors that know the node: its hardware, configuration, pods and holders.
type sources struct {
	watch     *configwatch.Watcher
	inventory *inventory.Inventory
	library   *library.Watch
	pods      *podwatch.Watch
	sync      *kubeletsync.Sync
	ledger    *ledger.Ledger
}

// devices are what allocates: the devices, what is injected with them, and the front end.
type devices struct {
	allocatable *allocatable.Devices
	injection   *injection.Source
	cdi         *cdisync.Syncer
	plugin      *deviceplugin.Manager
}

// changes are the actors that change the hardware.
type changes struct {
	timeslices *timeslice.Syncer
	mps        *mpssync.Syncer
	partition  *migapply.Partition
	mig        *migsync.Syncer
	resetter   *reset.Resetter
}

// reports are the actors that show the node's state.
type reports struct {
	// problemList holds the problems that belong to no GPU, by source.
	problemList *problems.List
	events      *nodeapi.Events
	conditions  *nodeapi.Conditions
	health      *healthsync.Reporter
	labels      *labelsync.Syncer
	metrics     *metricsync.Syncer
	server      *serve.Server
	liveness    *serve.Liveness
	// partitioned is set when the state of a MIG change has changed.
	partitioned signal.Broadcast
}

// api are the workers of one object of the API server each; client and workers are nil without one.
type api struct {
	client    dynamic.Interface
	retry     nodeapi.Retry
	condition *nodeapi.Publisher[nodeapi.NodeCondition]
	taint     *nodeapi.Publisher[bool]
	migState  *nodeapi.Publisher[string]
	gpuNode   *nodeapi.Publisher[*v1alpha1.GPUNode]
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
	a := &Agent{compared: signal.NewReady()}
	a.settings = settings{
		config: config, clock: deps.Clock, log: deps.Log, fault: deps.Fault, devRoot: deps.Hardware.Roots.Dev, sys: deps.Hardware.Roots.Sys,
		began: deps.Clock.Now(), instance: cmp.Or(deps.Instance, pages.DefaultInstance()), simulated: deps.Hardware.Simulated,
	}
	a.watch, a.client = deps.Config, deps.API
	a.problemList = problems.New(deps.Clock, deps.Log)
	a.retry = nodeapi.Retry{Clock: deps.Clock, NodeName: config.NodeName}
	a.events = nodeapi.NewEvents(deps.API, a.retry, deps.Log.With("component", "nodeapi"))
	a.conditions = nodeapi.NewConditions(deps.Clock, a.events.Publish)
	if a.fault == nil {
		a.fault = func(Step) error { return nil }
	}
	a.library = library.New(library.Deps{StateDir: config.StateDir, BootID: deps.BootID, Log: deps.Log.With("component", "library")})
	adapter := deps.Hardware.Adapter(deps.Log.With("component", "nvidia"), a.library.Replaced)
	xids := &metricsync.XIDs{}
	a.inventory = inventory.New(inventory.Deps{
		Source: counted{adapter, xids}, Clock: deps.Clock, Log: deps.Log.With("component", "inventory"),
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
	a.wirePages(adapter.Sampler(nvidia.SamplerDeps{Interval: config.SampleInterval.Duration, Log: deps.Log.With("component", "nvidia")}), xids)
	return a, nil
}

// wireHolders makes the parts that allocate devices: ledger, CDI and device plugin.
func (a *Agent) wireHolders(deps Deps) error {
	config := a.config
	a.pods = podwatch.New(podwatch.Deps{API: a.client, NodeName: config.NodeName, Log: a.log.With("component", "podwatch")})
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
		Path: filepath.Join(config.StateDir, ledger.File), BootID: deps.BootID, Clock: a.clock, Log: a.log.With("component", "ledger"),
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
	cdiLog := a.log.With("component", "cdi")
	a.cdi = cdisync.New(cdisync.Deps{
		Writer: cdi.New(cdi.Deps{
			Dir: config.CDIDir, Roots: deps.Hardware.CDI, Vendor: deps.Hardware.CDIEdits(hook, cdiLog), Clock: a.clock, Log: cdiLog,
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
		Clock: a.clock, Log: a.log.With("component", "deviceplugin"),
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
		Blind: a.sync.Unsure, Notify: a.partitioned.Set,
		Quiesce: func(ctx context.Context, id gpu.UUID) error { return a.mps.Quiesce(ctx, mpssync.ForMIG, id) },
		Openers: finder.Find,
		Clock:   a.clock, Log: a.log.With("component", "migapply"),
	})
	a.mig = migsync.New(migsync.Deps{
		Config: a.watch, Hardware: a.inventory, Ledger: a.ledger, Partition: a.partition, Node: migNode{a},
		Settle: a.allocatable.Settle, Resume: func() { a.mps.Unquiesce(mpssync.ForMIG) }, Report: a.problemList.Set, Clock: a.clock,
	})
}

// actor is one row of the agent's table: what runs, and after what.
type actor struct {
	name string
	// after is what has to be true before it runs; nil for nothing.
	after *signal.Ready
	run   func(context.Context) error
}

// actors are all that the agent runs. What advertises or changes devices, and what shows holders, runs after the comparison of
// the ledger with the node; the CDI spec too, since it names MPS daemons, of which nothing is known before.
func (a *Agent) actors() []actor {
	all := []actor{
		{name: "inventory", run: a.inventory.Run},
		{name: "configwatch", run: func(ctx context.Context) error { return a.watch.Run(ctx, configsync.Judge(a.inventory)) }},
		{name: "library", run: a.library.Run},
		{name: "podwatch", run: a.pods.Run},
		{name: "kubeletsync", run: a.follow},
		{name: "allocatable", run: a.allocatable.Run},
		{name: "configsync", run: configsync.New(configsync.Deps{Config: a.watch, Conditions: a.conditions, Report: a.problemList.Set}).Run},
		{name: "cdisync", after: a.compared, run: a.cdi.Run},
		{name: "deviceplugin", after: a.compared, run: a.plugin.Run},
		{name: "migsync", after: a.compared, run: a.mig.Run},
		{name: "reset", after: a.compared, run: a.resetter.Run},
		{name: "timeslice", after: a.compared, run: a.timeslices.Run},
		{name: "mpssync", after: a.compared, run: a.mps.Run},
		{name: "healthsync", after: a.compared, run: a.health.Run},
		{name: "labelsync", run: a.labels.Run},
		{name: "metricsync", run: a.metrics.Run},
		{name: "events", run: a.events.Run},
		{name: "serve", run: a.server.Run},
		// Before the comparison the device plugin's loop does not run.
		{name: "liveness", after: a.compared, run: func(ctx context.Context) error { return a.liveness.Run(ctx, a.checks()) }},
	}
	if a.client == nil {
		return all
	}
	return append(all,
		actor{name: "condition", run: a.condition.Run},
		actor{name: "taint", run: a.taint.Run},
		actor{name: "mig-state", run: a.migState.Run},
		actor{name: "gpunode", run: a.gpuNode.Run},
		actor{name: "definition", run: a.ensureDefinition},
		actor{name: "gpunodesync", run: gpunodesync.New(gpunodesync.Deps{
			NodeName: a.config.NodeName, Compared: a.compared.Done(), Hardware: a.inventory, Ledger: a.ledger, Devices: a.allocatable,
			Config: a.watch, Conditions: a.conditions, Problems: nodeProblems{a}, Publish: a.gpuNode.Publish,
		}).Run},
	)
}

// Run works until ctx ends. It returns an error only for a fault that cannot be repaired while it runs; it waits for a
// missing driver, kubelet or API server.
func (a *Agent) Run(ctx context.Context) error {
	defer a.ledger.Close()
	group, ctx := errgroup.WithContext(ctx)
	for _, actor := range a.actors() {
		group.Go(func() error {
			if actor.after != nil && actor.after.Wait(ctx) != nil {
				return nil
			}
			return actor.run(ctx)
		})
	}
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	a.log.Info("Stopped; nothing was removed, and containers keep their devices")
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
