package agent

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
	vendor "github.com/berth-gpu/berth/internal/hardware"
	"github.com/berth-gpu/berth/internal/hardware/nvidia/gpulabels"
	"github.com/berth-gpu/berth/internal/node/agent/actor"
	"github.com/berth-gpu/berth/internal/node/agent/apichoice"
	"github.com/berth-gpu/berth/internal/node/agent/cdisync"
	"github.com/berth-gpu/berth/internal/node/agent/configsync"
	"github.com/berth-gpu/berth/internal/node/agent/drasync"
	"github.com/berth-gpu/berth/internal/node/agent/gatesync"
	"github.com/berth-gpu/berth/internal/node/agent/gpuhistory"
	"github.com/berth-gpu/berth/internal/node/agent/gpunodesync"
	"github.com/berth-gpu/berth/internal/node/agent/grants"
	"github.com/berth-gpu/berth/internal/node/agent/handover"
	"github.com/berth-gpu/berth/internal/node/agent/hardware"
	"github.com/berth-gpu/berth/internal/node/agent/healthsync"
	"github.com/berth-gpu/berth/internal/node/agent/injection"
	"github.com/berth-gpu/berth/internal/node/agent/kubeletsync"
	"github.com/berth-gpu/berth/internal/node/agent/labelsync"
	"github.com/berth-gpu/berth/internal/node/agent/library"
	"github.com/berth-gpu/berth/internal/node/agent/metricsync"
	"github.com/berth-gpu/berth/internal/node/agent/migsync"
	"github.com/berth-gpu/berth/internal/node/agent/mpssync"
	"github.com/berth-gpu/berth/internal/node/agent/nodeview"
	"github.com/berth-gpu/berth/internal/node/agent/publishers"
	"github.com/berth-gpu/berth/internal/node/agent/reset"
	"github.com/berth-gpu/berth/internal/node/agent/serve"
	"github.com/berth-gpu/berth/internal/node/agent/timeslice"
	"github.com/berth-gpu/berth/internal/node/allocatable"
	"github.com/berth-gpu/berth/internal/node/cdi"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/counterlist"
	"github.com/berth-gpu/berth/internal/node/deviceplugin"
	"github.com/berth-gpu/berth/internal/node/dra/claims"
	"github.com/berth-gpu/berth/internal/node/dra/classcheck"
	"github.com/berth-gpu/berth/internal/node/filewatch"
	"github.com/berth-gpu/berth/internal/node/gatefacts"
	"github.com/berth-gpu/berth/internal/node/hostruntime"
	"github.com/berth-gpu/berth/internal/node/inventory"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/kubeletconfig"
	"github.com/berth-gpu/berth/internal/node/labels"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/metrics"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/mps"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/openers"
	"github.com/berth-gpu/berth/internal/node/pages"
	"github.com/berth-gpu/berth/internal/node/podwatch"
	"github.com/berth-gpu/berth/internal/node/problems"
	"github.com/berth-gpu/berth/internal/node/signal"
	"github.com/berth-gpu/berth/internal/node/stackfile"
	"github.com/berth-gpu/berth/internal/node/statefile"
	"github.com/berth-gpu/berth/internal/node/validationfiles"
)

// Deps are the dependencies of an Agent.
type Deps struct {
	// Config is the configuration, which follows its sources; Run runs it.
	Config   *configwatch.Watcher
	Hardware hardware.Machine
	// API and Kube are nil for an agent that publishes nothing (standalone). MetricsAPI is that of serve.Deps.
	API              dynamic.Interface
	Kube, MetricsAPI kubernetes.Interface
	// Namespace is that of the agent's pod, Stack the file with the gate's settings, ValidationFiles a directory (validationfiles.In).
	Namespace, Stack, ValidationFiles string
	Clock                             clock.WithTicker
	Log                               *slog.Logger
	// BootID invalidates the ledger of an earlier boot; empty means the machine's own.
	BootID string
	// Instance distinguishes this agent from another one of the node, which exists during an upgrade; empty means
	// [pages.DefaultInstance].
	Instance string
	// HookSource is the program that is installed as CDI hook where the configuration uses CDI.
	HookSource string
	// Fault is called at each step of settlements (allocatable), time slices (timeslice), prepares and unprepares (dra); an error stops
	// the change there, as the end of the process would. An actor's name is a step each time that it computes something. For tests.
	Fault func(step string) error
}

// Agent is the node side of Berth. Create it with New, start it with Run.
type Agent struct {
	deps Deps
	// config is the configuration at the start; the watcher has its changes. counters are the fields of DCGM that it wants.
	config   *v1alpha1.AgentConfig
	counters counterlist.List
	node     node
	devices  devices
	changes  changes
	reports  reports
	// compared is set once the ledger was first compared with the node, the use of the devices is settled, and this agent writes the
	// ledger; settled is set without the last.
	compared, settled *signal.Ready
}

// node has the actors for the state of the node: its hardware, pods and holders.
type node struct {
	inventory *inventory.Inventory
	history   *gpuhistory.History
	library   *library.Watch
	pods      *podwatch.Watch
	sync      *kubeletsync.Sync
	ledger    *ledger.Ledger
	grants    *grants.Grants
	kubelet   *kubeletconfig.Follower
	host      *hostruntime.Follower
}

// devices has the parts that allocate: the devices, their injection, and the front end.
type devices struct {
	allocatable *allocatable.Devices
	injection   *injection.Source
	cdi         *cdisync.Syncer
	plugin      *deviceplugin.Manager
	dra         *drasync.Syncer // nil without an API server, as handover is
	handover    *handover.Gate
	choice      *apichoice.Chooser
}

// changes has the actors that change the hardware.
type changes struct {
	timeslices *timeslice.Syncer
	mps        *mpssync.Syncer
	partition  *migapply.Partition
	mig        *migsync.Syncer
	resetter   *reset.Resetter
	// partitioned is set when the state of a MIG change has changed.
	partitioned signal.Broadcast
}

// reports has the actors that show the node's state.
type reports struct {
	// list holds the problems that belong to no GPU, by source; problems adds those that the inventory and the ledger keep.
	list       *problems.List
	problems   problems.Joined
	events     *nodeapi.Events
	conditions *nodeapi.Conditions
	publishers *publishers.Workers
	health     *healthsync.Reporter
	labels     *labelsync.Syncer
	gate       *gatesync.Syncer
	gpuNode    *gpunodesync.Syncer
	metrics    *metricsync.Syncer
	server     *serve.Server
	liveness   *serve.Liveness
}

// New wires an agent. It opens the ledger, reads the list of counters, and touches nothing else.
func New(deps Deps) (*Agent, error) {
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Fault == nil {
		deps.Fault = func(string) error { return nil }
	}
	if deps.BootID == "" {
		id, err := statefile.BootID(deps.Config.Base().HostRoot)
		if err != nil {
			return nil, fmt.Errorf("make agent: %w", err)
		}
		deps.BootID = id
	}
	a := &Agent{deps: deps, config: deps.Config.Base(), counters: counterlist.Read(deps.Config.Base()), compared: signal.NewReady(), settled: signal.NewReady()}
	a.wireAPI()
	xids := &metricsync.XIDs{}
	vendors, err := a.wireHardware(xids)
	if err != nil {
		return nil, fmt.Errorf("make agent: %w", err)
	}
	if err := a.wireLedger(); err != nil {
		return nil, fmt.Errorf("make agent: %w", err)
	}
	if err := a.wireDevices(); err != nil {
		return nil, fmt.Errorf("make agent: %w", err)
	}
	a.wireChanges(vendors)
	a.wireGate()
	if err := a.wireReports(); err != nil {
		return nil, fmt.Errorf("make agent: %w", err)
	}
	a.wirePages(vendors, xids)
	return a, nil
}

// log returns the log of a component.
func (a *Agent) log(component string) *slog.Logger { return a.deps.Log.With("component", component) }

// wireAPI creates the list of problems and the writers to the API server.
func (a *Agent) wireAPI() {
	retry := nodeapi.Retry{Clock: a.deps.Clock, NodeName: a.config.NodeName}
	a.reports.events = nodeapi.NewEvents(a.deps.API, retry, a.log("nodeapi"))
	a.reports.list = problems.New(a.deps.Clock, a.log("problems"), a.reports.events.Problem)
	a.reports.problems = problems.Joined{List: a.reports.list, Others: []func() []gpu.Cause{
		func() []gpu.Cause { return a.node.history.Faults() }, func() []gpu.Cause { return a.node.ledger.Faults() },
	}}
	a.reports.list.Set("counterlist", a.counters.Problems...)
	a.reports.conditions = nodeapi.NewConditions(a.deps.Clock, a.reports.events.Publish)
	a.reports.publishers = publishers.New(publishers.Deps{
		Client: a.deps.API, NodeName: a.config.NodeName, Retry: retry, Conditions: a.reports.conditions,
		Report: a.reports.list.SetError, Log: a.log("nodeapi"),
	})
}

// stateLost reports a state file that could not be used, and the consequences. The problem remains until the source is
// set again.
func (a *Agent) stateLost(source string, result statefile.Result, without string) {
	a.reports.list.SetError(source, result.Code(), fmt.Errorf("%w; %s", result.Err, without))
}

// wireHardware creates the inventory and returns its vendors.
func (a *Agent) wireHardware(xids *metricsync.XIDs) ([]vendor.Vendor, error) {
	rules, err := config.HealthRules(a.config, os.Getenv)
	if err != nil {
		return nil, err
	}
	a.node.library = library.New(library.Deps{StateDir: a.config.StateDir, BootID: a.deps.BootID, Clock: a.deps.Clock, Log: a.log("library")})
	vendors := a.deps.Hardware.Vendors(hardware.VendorDeps{
		LibraryReplaced: a.node.library.Replaced, SampleInterval: a.config.SampleInterval.Duration, OptionalMeasures: a.counters.Optional, Log: a.log("hardware"),
	})
	var sources []inventory.Source
	for _, v := range vendors {
		sources = append(sources, hardware.Observe(v, xids.Add))
	}
	a.node.inventory = inventory.New(inventory.Deps{
		Vendors: sources, Clock: a.deps.Clock, Log: a.log("inventory"),
		Poll: a.config.PollInterval.Duration, Deadline: a.config.ScanDeadline.Duration,
		IgnoredXIDs: config.IgnoredXIDs(a.config), Rules: rules,
		Keep: filepath.Join(a.config.StateDir, inventory.KeepFile), BootID: a.deps.BootID,
		Report:  a.reports.list.Set,
		Renewed: func(gpus []gpu.UUID) { a.changes.timeslices.WereReset(gpus) },
	})
	a.node.history = a.newHistory()
	return vendors, nil
}

// wireLedger creates the ledger, its comparison with the kubelet, and the folders of grants.
func (a *Agent) wireLedger() error {
	a.node.pods = podwatch.New(podwatch.Deps{API: a.deps.API, NodeName: a.config.NodeName, Namespace: a.deps.Namespace, Start: a.deps.Clock.Now(), Log: a.log("podwatch")})
	a.node.grants = grants.New(grants.Deps{StateDir: a.config.StateDir, Clock: a.deps.Clock, Log: a.log("grants")})
	names := func() []string { return a.devices.allocatable.ResourceNames() }
	a.node.host = hostruntime.Follow(hostruntime.FollowerDeps{Deps: hostruntime.Deps{HostRoot: a.config.HostRoot, Proc: "/proc", ContainerdState: a.config.ContainerdStateDir}, Clock: a.deps.Clock, Log: a.log("hostruntime")})
	view := nodeview.New(nodeview.Deps{
		KubeletDir: a.config.KubeletDir, Pods: a.node.pods, Containers: kubelet.NewContainers(kubelet.ContainersDeps{
			ProcRoot: "/proc", CgroupRoot: a.config.CgroupRoot, Bundles: a.node.host.Bundles, GrantsDir: a.node.grants.Dir(), Vendors: a.deps.Hardware.Traits(),
		}),
		Resources: kubelet.NewPodResources(a.config.KubeletDir), Snapshot: a.node.inventory.Current, Names: names,
		Granted: func(id string) []gpu.DeviceKey { return a.node.ledger.Granted(id) }, GrantsDir: a.node.grants.Dir(), Clock: a.deps.Clock, Log: a.log("nodeview"),
	})
	var err error
	a.node.ledger, err = ledger.Open(ledger.Deps{
		Path: filepath.Join(a.config.StateDir, ledger.File), BootID: a.deps.BootID, Follow: a.deps.Kube != nil, Clock: a.deps.Clock, Log: a.log("ledger"),
		Look: view.Living, LookIn: view.LivingIn, Assigned: view.Assigned, Stamp: view.Stamp, Pod: view.Pod, Ask: view.Ask, Placement: view.Placement,
	})
	if err != nil {
		return err
	}
	a.node.sync = kubeletsync.New(kubeletsync.Deps{
		KubeletDir: a.config.KubeletDir, Node: view, Claims: claims.Recorded(a.config.HostRoot, a.config.KubeletDir, a.config.DRADriverName), Pods: a.node.pods, Names: names, Ledger: a.node.ledger, Grants: a.node.grants,
		Report: a.reports.list.Set, Clock: a.deps.Clock, Log: a.log("kubeletsync"),
	})
	return nil
}

// wireDevices creates the parts that allocate devices: their use, the CDI spec and the device plugin.
func (a *Agent) wireDevices() error {
	a.devices.injection = injection.New(injection.Deps{
		UsesCDI: a.config.UsesCDI(), Plain: a.deps.Hardware.Plain(), MPSRoot: a.config.MPSRoot,
		Config:   func() *v1alpha1.AgentConfig { return a.deps.Config.Current().Config },
		Names:    func() (map[string]bool, bool) { return a.devices.cdi.Names() },
		MPSUnits: func() []offer.Unit { return a.changes.mps.Units() }, WithoutDaemon: func(id gpu.UUID) string { return a.changes.mps.Unready(id) },
		Ending: func(id gpu.UUID) string { return a.changes.mps.Ending(id) },
	})
	a.devices.choice = apichoice.New(apichoice.Deps{
		Dir: a.config.PersistentDir, Config: a.deps.Config, Ledger: a.node.ledger, Hardware: a.node.inventory.Of(a.deps.Hardware.Configured()), Published: func() []gpu.UUID { return a.devices.handover.Published() },
		HasClass: classcheck.Exists(a.deps.Kube, a.config.DRADriverName), ClassName: a.config.DRADriverName, Chosen: func() { a.devices.allocatable.Settle() },
		Event: a.reports.events.Publish, FileLost: a.stateLost, Report: a.reports.list.Set, Clock: a.deps.Clock, Log: a.log("apichoice"),
	})
	var read statefile.Result
	a.devices.allocatable, read = allocatable.Open(allocatable.Deps{
		StateDir: a.config.StateDir, BootID: a.deps.BootID, Inventory: a.node.inventory, Settings: configsync.Settings{Config: a.deps.Config, Hardware: a.node.inventory, Auto: a.devices.choice.API, Vendor: a.deps.Hardware.Configured(), OtherVendors: a.deps.Hardware.OtherVendors()},
		Ledger: a.node.ledger, Injector: a.devices.injection,
		Changing: func(s *gpu.Snapshot) (map[gpu.UUID]string, map[gpu.UUID]bool) { return a.changes.mig.Changing(s) },
		Report:   a.reports.list.Set, Fault: func(step allocatable.Step) error { return a.deps.Fault(string(step)) }, Clock: a.deps.Clock,
	})
	if read.Lost() {
		a.stateLost("units-file", read, "a GPU that is in use keeps its resource and is not allocated to others until it is free")
	}
	hook, keepHook, err := "", func() error { return nil }, error(nil)
	if a.config.UsesCDI() {
		if hook, err = cdi.InstallHook(a.deps.HookSource, a.config.HookDir); err != nil {
			return err
		}
		keepHook = func() error { return cdi.KeepHook(a.deps.HookSource, hook) }
	}
	a.devices.cdi = cdisync.New(cdisync.Deps{
		Writer: cdi.New(cdi.Deps{Dir: a.config.CDIDir, Roots: a.deps.Hardware.CDI, Vendor: a.deps.Hardware.CDIEdits(hook, a.log("cdi")), Clock: a.deps.Clock, Log: a.log("cdi")}),
		Dir:    a.config.CDIDir, DevRoot: a.deps.Hardware.Roots.Dev, Hardware: a.node.inventory,
		Extras: actor.Noted(a.deps.Fault, "cdisync", a.devices.injection.Extras), Settled: a.devices.allocatable.SubscribeSettled,
		Hook: keepHook, Watch: func(ctx context.Context) <-chan struct{} {
			_ = os.MkdirAll(a.config.CDIDir, 0o755) // A folder that is made later is found later, and is then compared once more.
			return filewatch.Watch(ctx, filewatch.Deps{Files: cdi.Files(a.config.CDIDir, hook), Ops: filewatch.Gone, Pause: time.Second, Clock: a.deps.Clock, Log: a.log("cdi")})
		},
		Report: a.reports.list.Set, Changed: a.devices.allocatable.InjectionChanged, Clock: a.deps.Clock,
	})
	a.devices.plugin, err = deviceplugin.New(deviceplugin.Deps{
		Vendors:    a.deps.Hardware.Traits(),
		KubeletDir: a.config.KubeletDir, State: actor.Noted(a.deps.Fault, "deviceplugin", a.advertised), Changed: a.devices.allocatable.Subscribe().C(), Ledger: grants.Holders{Ledger: a.node.ledger, Grants: a.node.grants},
		Hardware: func() deviceplugin.Subscription { return a.node.inventory.Subscribe() },
		Holdings: func() deviceplugin.Subscription { return a.node.ledger.Subscribe() },
		Strategy: deviceplugin.Strategy{ID: a.config.DeviceIDStrategy, PassDeviceSpecs: a.config.PassDeviceSpecs, AnnotationPrefix: a.config.CDIAnnotationPrefix, List: a.config.DeviceListStrategy},
		CDIName:  cdi.QualifiedName, Plain: a.deps.Hardware.Plain(), Mark: kubelet.Mark, KubeletRestarted: a.node.sync.KubeletRestarted,
		Warn:  func(resource, message string) { a.reports.events.Publish(nodeapi.SharesOfOneGPU(message)) },
		Clock: a.deps.Clock, Log: a.log("deviceplugin"),
	})
	return err
}

// advertised returns the present list of the device plugin. It is on the path from a fault to the kubelet: it makes no
// file, API or hardware call, and takes no lock that is held during one.
func (a *Agent) advertised() deviceplugin.State {
	config := a.deps.Config.Current().Config
	state := deviceplugin.State{
		Snapshot: a.node.inventory.Current(), Offers: a.devices.handover.Advertise(a.devices.allocatable.Current()),
		Policy: placement.Policy(config.SharedDevicesAllocationPolicy), Features: deviceplugin.Features{GDS: config.GDS, GDRCopy: config.GDRCopy, MOFED: config.MOFED},
	}
	if injection := a.devices.cdi.Current(); injection != nil {
		state.Features.IMEXChannels = injection.IMEXChannels
	}
	return state
}

// offers returns the devices for the kubelet.
func (a *Agent) offers() []offer.Offer {
	return a.devices.handover.Offers(a.devices.allocatable.Current())
}

// wireChanges creates the parts that change the hardware: MIG, resets, time slices, MPS daemons.
func (a *Agent) wireChanges(vendors []vendor.Vendor) {
	program, _ := vendor.Find[timeslice.Program](vendors)
	shared := a.node.inventory.Of(vendor.NameOf[timeslice.Program](vendors)) // The driver that has time slices has MPS.
	a.changes.timeslices = timeslice.New(timeslice.Deps{
		Units: a.devices.allocatable.Units, Settled: a.devices.allocatable.SubscribeSettled, Hardware: shared,
		Holdings: a.node.ledger.Plain, HoldingsChanged: a.node.ledger.Subscribe, Writes: a.node.ledger.Writes,
		Program: program, StateDir: a.config.StateDir, BootID: a.deps.BootID, FileLost: a.stateLost, Report: a.reports.list.Set,
		Fault: func(step timeslice.Step) error { return a.deps.Fault(string(step)) }, Clock: a.deps.Clock, Log: a.log("timeslice"),
	})
	a.changes.mps = mpssync.New(mpssync.Deps{
		Units: a.devices.allocatable.Units, UnitsChanged: a.devices.allocatable.SubscribeUse, Hardware: shared,
		Holdings: a.node.ledger.Plain, HoldingsChanged: a.node.ledger.Subscribe, Writes: a.node.ledger.Writes,
		Supervisor: &mps.Client{Socket: mps.SocketPath(a.config.MPSRoot), Clock: a.deps.Clock}, Report: a.reports.list.Set,
		// The CDI spec has the directories of a daemon only while its replicas can be allocated.
		Changed: func() { a.devices.cdi.Recheck(); a.devices.allocatable.InjectionChanged() }, Clock: a.deps.Clock,
	})
	driver, _ := vendor.Find[hardware.MIGDriver](vendors)
	changed := a.node.inventory.Of(vendor.NameOf[hardware.MIGDriver](vendors))
	gpus := hardware.NewMIG(hardware.MIGDeps{Driver: driver, WereReset: a.changes.timeslices.WereReset, Report: a.node.inventory.Report, Now: a.deps.Clock.Now})
	finder := openers.New(openers.Deps{Current: a.node.inventory.Current, Processes: hardware.Processes(vendors), Daemon: a.changes.mps.PID, PodName: a.node.sync.PodName, ProcRoot: "/proc"})
	quiesce := func(by mpssync.Quiescer) func(context.Context, gpu.UUID) error {
		return func(ctx context.Context, id gpu.UUID) error { return a.changes.mps.Quiesce(ctx, by, id) }
	}
	a.changes.resetter = reset.New(reset.Deps{
		Dir: a.config.StateDir, Hardware: changed, Ledger: a.node.ledger, Openers: finder.Find,
		Quiesce: quiesce(mpssync.ForReset), Resume: func(gpu.UUID) { a.changes.mps.Unquiesce(mpssync.ForReset) },
		Reset: func(ctx context.Context, id gpu.UUID) error { return gpus.Reset(ctx, []gpu.UUID{id}) }, Clock: a.deps.Clock, Log: a.log("reset"),
	})
	a.changes.partition = migapply.New(migapply.Deps{
		Dir: a.config.PersistentDir, NodeUID: a.deps.Config.NodeUID, Owner: "berth-agent " + strconv.Itoa(os.Getpid()),
		Hardware: gpus, Inventory: changed, Ledger: a.node.ledger, Devices: a.devices.allocatable.KeysOn,
		Blind: a.node.sync.Unsure, Notify: a.changes.partitioned.Set, Quiesce: quiesce(mpssync.ForMIG), Openers: finder.Find,
		Clock: a.deps.Clock, Log: a.log("migapply"),
	})
	a.changes.mig = migsync.New(migsync.Deps{
		Config: a.deps.Config, Hardware: changed, Ledger: a.node.ledger, Partition: a.changes.partition, Node: a.reports.publishers,
		Modes:  migsync.OpenModes(migsync.ModesDeps{StateDir: a.config.StateDir, BootID: a.deps.BootID, FileLost: a.stateLost, Report: a.reports.list.Set}),
		Settle: a.devices.allocatable.Settle, Resume: func(changing []gpu.UUID) { a.changes.mps.Unquiesce(mpssync.ForMIG, changing...) }, Report: a.reports.list.Set, Clock: a.deps.Clock,
	})
	if a.deps.Kube != nil {
		a.devices.handover = handover.Open(handover.Deps{
			Dir: a.config.PersistentDir, NodeUID: a.deps.Config.NodeUID, Before: a.devices.allocatable.Units(),
			Kubelet: kubelet.NewPodResources(a.config.KubeletDir), Hardware: a.node.inventory,
			Opened: a.devices.allocatable.InjectionChanged, Changed: func() { a.devices.dra.HandoverChanged() },
			FileLost: a.stateLost, Report: a.reports.list.Set, Clock: a.deps.Clock,
		})
		a.devices.dra = drasync.New(drasync.Deps{
			DriverName: a.config.DRADriverName, NodeName: a.config.NodeName,
			KubeletDir: a.config.KubeletDir, HostRoot: a.config.HostRoot, Client: a.deps.Kube, Hardware: a.node.inventory,
			Devices: a.devices.allocatable, Ledger: a.node.ledger, Handover: a.devices.handover, CDI: drasync.CDI{Name: cdi.QualifiedName, Injectable: a.devices.injection.Injectable, MPS: a.devices.injection.MPS},
			Changes:     drasync.Changes{Ensure: a.changes.mig.Ensure, Maintains: migapply.Maintains, Sliced: a.changes.timeslices.Await, Daemon: a.changes.mps.Await},
			NotPrepared: a.reports.events.ClaimNotPrepared, Report: a.reports.list.Set, Fault: a.deps.Fault, Clock: a.deps.Clock, Log: a.log("dra"),
		})
	}
}

// wireGate creates the actor that keeps pods away until the node is validated.
func (a *Agent) wireGate() {
	configured := a.deps.Hardware.Configured()
	sources := gatesync.Sources{
		BootID: a.deps.BootID, Vendor: configured, WithoutCDI: !a.config.UsesCDI(), Runtime: gatefacts.Runtime(a.config.HostRoot, a.node.host.Host),
		OnBus: a.deps.Hardware.OnBus, Hardware: a.node.inventory.Current, Spec: a.devices.cdi.Status, Units: a.devices.allocatable.Units,
		Excluded: func() map[gpu.UUID]bool {
			return config.Excluded(a.node.inventory.Current().Of(configured), a.deps.Config.Current().Config)
		},
		Injectable: a.devices.injection.Injectable, Registered: a.devices.plugin.Registered, Published: a.devices.dra.Published,
	}
	a.reports.gate = gatesync.Open(gatesync.Deps{
		Settings: stackfile.New(a.deps.Stack, a.deps.API != nil && a.deps.Namespace != "", a.deps.Clock, a.reports.list.Set).Settings, Observe: sources.Observe, Holdings: a.node.ledger.Plain, Pods: a.node.pods,
		Changed: []func() *signal.Subscription{
			a.node.inventory.Subscribe, a.node.ledger.Subscribe, a.devices.allocatable.SubscribeUse, a.devices.cdi.SubscribeStatus, a.node.pods.SubscribePods,
		},
		StateDir: a.config.StateDir, BootID: a.deps.BootID, Node: a.reports.publishers, Files: validationfiles.In(a.deps.ValidationFiles, a.config.DriverRoot), Report: a.reports.list.Set, FileLost: a.stateLost, Clock: a.deps.Clock,
	})
}

// wireReports creates the actors that compute the content of the API objects.
func (a *Agent) wireReports() error {
	publish := a.reports.publishers
	a.reports.health = healthsync.New(healthsync.Deps{
		Hardware: a.node.inventory, Holders: func(key gpu.DeviceKey) []string { return gpu.HolderNames(a.node.ledger.Plain(), key) },
		Event: a.reports.events.Publish, Condition: actor.NotedSet(a.deps.Fault, "healthsync", publish.SetCondition), Taint: publish.SetTaint, TaintUnhealthy: a.config.TaintUnhealthy,
	})
	places, err := labelsync.PlacesOf(a.config, a.deps.API)
	if err != nil {
		return err
	}
	wanted := labelsync.Deps{
		Places: places, Hardware: a.node.inventory.Of(gpulabels.Vendor{}.Name()).Current, Facts: actor.Noted(a.deps.Fault, "labelsync", a.labelFacts),
		Changed: []func() *signal.Subscription{a.node.inventory.Subscribe, a.devices.allocatable.SubscribeUse, a.changes.partitioned.Subscribe},
		Vendors: []labels.Vendor{gpulabels.Vendor{}},
		Sys:     a.deps.Hardware.Roots.Sys, Report: func(err error) { a.reports.list.SetError("labels", "LABELS", err) },
		Retry: nodeapi.Retry{Clock: a.deps.Clock, NodeName: a.config.NodeName}, Log: a.log("labelsync"),
	}
	if !a.config.Labels.NoTimestamp {
		wanted.Timestamp = a.deps.Clock.Now()
	}
	a.reports.labels = labelsync.New(wanted)
	a.node.kubelet = kubeletconfig.New(kubeletconfig.Deps{KubeletDir: a.config.KubeletDir, ProcRoot: "/proc", Clock: a.deps.Clock, Log: a.log("kubeletconfig")})
	a.reports.gpuNode = gpunodesync.New(gpunodesync.Deps{
		NodeName: a.config.NodeName, Vendor: a.deps.Hardware.Configured(), Ready: []<-chan struct{}{a.compared.Done(), a.node.history.Asked()},
		Hardware: a.node.inventory, Ledger: a.node.ledger, Devices: a.devices.allocatable,
		Config: a.deps.Config, Conditions: a.reports.conditions, Problems: a.reports.problems, Gate: a.reports.gate, Kubelet: a.node.kubelet, Publish: actor.NotedSet(a.deps.Fault, "gpunodesync", publish.SetGPUNode),
	})
	return nil
}

// labelFacts returns the inputs of the labels besides the hardware.
func (a *Agent) labelFacts() labelsync.Facts {
	config := a.deps.Config.Current().Config
	return labelsync.Facts{
		Units: a.devices.allocatable.Units(), ResourceName: config.ResourceName, MIGStrategy: string(config.MIGStrategy),
		Changing: slices.ContainsFunc(a.changes.partition.Statuses(), func(s migapply.Status) bool { return s.State == migapply.Changing }),
	}
}

// wirePages creates the pages and their content.
func (a *Agent) wirePages(vendors []vendor.Vendor, xids *metricsync.XIDs) {
	page := metrics.NewPage(metrics.PageDeps{Own: metricsync.NewRegistry(metricsync.OwnDeps{
		Plugin: a.devices.plugin.Stats, Holdings: a.node.ledger.Plain, Problems: a.reports.problems.All, DRA: a.devices.dra.Stats, Refused: a.node.pods.Refused,
	})})
	a.reports.metrics = metricsync.New(metricsync.Deps{
		NodeName: a.config.NodeName, DCGMFields: a.counters.Fields, DCGMHostnameLabel: a.config.DCGMHostnameLabel, Vendors: a.deps.Hardware.Traits(), ProcRoot: "/proc",
		Sample: hardware.Sampler(vendors, a.log("hardware")), Hardware: a.node.inventory.Current, Units: a.devices.allocatable.Units, Holdings: a.node.ledger.Plain,
		XIDs: xids.All, ContainerName: a.node.sync.ContainerName, Changed: []func() *signal.Subscription{a.node.inventory.Subscribe, a.node.ledger.Subscribe, a.devices.allocatable.SubscribeUse, a.reports.list.Subscribe},
		Report: a.reports.list.Set, Page: page,
	})
	a.reports.liveness = serve.NewLiveness(a.deps.Clock)
	a.reports.server = serve.New(serve.Deps{
		NodeName: a.config.NodeName, Simulated: a.deps.Hardware.Simulated, Vendors: a.deps.Hardware.Traits(), StateDir: a.config.StateDir,
		Instance: cmp.Or(a.deps.Instance, pages.DefaultInstance()), MetricsListen: a.config.MetricsListen, MetricsAPI: a.deps.MetricsAPI, Compared: a.compared,
		State: serve.State{
			Inventory: a.node.inventory.Current, Holdings: a.node.ledger.Holdings, Units: a.devices.allocatable.Units, Offers: a.offers, MIG: a.changes.partition.Statuses,
			Daemon: a.changes.mps.Status, Config: a.deps.Config.Current, Plugin: a.devices.plugin.Stats, Problems: a.reports.list.All, InjectionKnown: a.devices.injection.Known,
		},
		Metrics: page, Samples: http.HandlerFunc(page.ServeSamples), Reset: a.changes.resetter, Liveness: a.reports.liveness,
		Report: a.reports.list.Set, Clock: a.deps.Clock, Log: a.log("pages"),
	})
}
