package agent

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
	vendor "github.com/berth-gpu/berth/internal/hardware"
	"github.com/berth-gpu/berth/internal/hardware/nvidia/gpulabels"
	"github.com/berth-gpu/berth/internal/node/agent/gpunodesync"
	"github.com/berth-gpu/berth/internal/node/agent/hardware"
	"github.com/berth-gpu/berth/internal/node/agent/healthsync"
	"github.com/berth-gpu/berth/internal/node/agent/metricsync"
	"github.com/berth-gpu/berth/internal/node/agent/serve"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/gate"
	"github.com/berth-gpu/berth/internal/node/hostruntime"
	"github.com/berth-gpu/berth/internal/node/labels"
	"github.com/berth-gpu/berth/internal/node/metrics"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/pages"
	"github.com/berth-gpu/berth/internal/node/problemlist"
	"github.com/berth-gpu/berth/internal/node/signal"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// wireAPI creates the list of problems and the writers to the API server.
func (a *Agent) wireAPI() {
	retry := nodeapi.Retry{Clock: a.deps.Clock, NodeName: a.config.NodeName}
	a.reports.events = nodeapi.NewEvents(a.deps.API, retry, a.log("nodeapi"))
	a.reports.list = problemlist.New(a.deps.Clock, a.log("problems"), a.reports.events.Problem)
	a.reports.problems = problemlist.Joined{
		List: a.reports.list,
		Others: []func() []gpu.Cause{
			func() []gpu.Cause { return a.node.history.Faults() }, func() []gpu.Cause { return a.node.ledger.Faults() },
		},
	}
	a.reports.list.Set("counterlist", a.counters.Problems...)
	a.reports.conditions = nodeapi.NewConditions(a.deps.Clock, a.reports.events.Publish)
	a.reports.publishers = newWorkers(workersDeps{
		Client:     a.deps.API,
		NodeName:   a.config.NodeName,
		Retry:      retry,
		Conditions: a.reports.conditions,
		Report:     a.reports.list.SetError,
		Log:        a.log("nodeapi"),
	})
}

// stateLost reports a state file that could not be used, and the consequences. The problem remains until the source is
// set again.
func (a *Agent) stateLost(source string, result statefile.Result, without string) {
	a.reports.list.SetError(source, result.Code(), fmt.Errorf("%w; %s", result.Err, without))
}

// wireGate creates the actor that keeps pods away until the node is validated.
func (a *Agent) wireGate() {
	configured := a.deps.Hardware.Configured()
	sources := gate.Sources{
		BootID:     a.deps.BootID,
		Vendor:     configured,
		WithoutCDI: !a.config.UsesCDI(),
		Runtime:    gate.Runtime(a.config.HostRoot, a.node.host.Host),
		OnBus:      a.deps.Hardware.OnBus,
		Hardware:   a.node.inventory.Current,
		Spec:       a.devices.cdi.Status,
		Units:      a.devices.allocatable.Units,
		Excluded: func() map[gpu.UUID]bool {
			return config.Excluded(a.node.inventory.Current().Of(configured), a.deps.Config.Current().Config)
		},
		Injectable: a.devices.injection.Injectable,
		Registered: a.devices.plugin.Registered,
		Published:  a.devices.dra.Published,
	}
	a.reports.gate = gate.Open(gate.Deps{
		Settings: gate.NewSettingsFile(a.deps.Stack, a.deps.API != nil && a.deps.Namespace != "", a.deps.Clock, a.reports.list.Set).Settings,
		Observe:  sources.Observe,
		Holdings: a.node.ledger.Plain,
		Pods:     a.node.pods,
		Changed: []func() *signal.Subscription{
			a.node.inventory.Subscribe,
			a.node.ledger.Subscribe,
			a.devices.allocatable.SubscribeUse,
			a.devices.cdi.SubscribeStatus,
			a.node.pods.SubscribePods,
		},
		StateDir: a.config.StateDir,
		BootID:   a.deps.BootID,
		Node:     a.reports.publishers,
		Files:    gate.FilesIn(a.deps.ValidationFiles, a.config.DriverRoot),
		Report:   a.reports.list.Set,
		FileLost: a.stateLost,
		Clock:    a.deps.Clock,
	})
}

// wireReports creates the actors that compute the content of the API objects.
func (a *Agent) wireReports() error {
	publish := a.reports.publishers
	a.reports.health = healthsync.New(healthsync.Deps{
		Hardware:       a.node.inventory,
		Holders:        func(key gpu.DeviceKey) []string { return gpu.HolderNames(a.node.ledger.Plain(), key) },
		Event:          a.reports.events.Publish,
		Condition:      notedSet(a.deps.Fault, "healthsync", publish.SetCondition),
		Taint:          publish.SetTaint,
		TaintUnhealthy: a.config.TaintUnhealthy,
	})
	places, err := labels.OutputsOf(a.config, a.deps.API)
	if err != nil {
		return err
	}
	wanted := labels.SyncerDeps{
		Outputs:  places,
		Hardware: a.node.inventory.Of(gpulabels.Vendor{}.Name()).Current,
		Facts:    noted(a.deps.Fault, "labelsync", a.labelFacts),
		Changed: []func() *signal.Subscription{
			a.node.inventory.Subscribe,
			a.devices.allocatable.SubscribeUse,
			a.changes.partitioned.Subscribe,
		},
		Vendors: []labels.Vendor{gpulabels.Vendor{}},
		Sys:     a.deps.Hardware.Roots.Sys,
		Report:  func(err error) { a.reports.list.SetError("labels", "LABELS", err) },
		Retry:   nodeapi.Retry{Clock: a.deps.Clock, NodeName: a.config.NodeName},
		Log:     a.log("labelsync"),
	}
	if !a.config.Labels.NoTimestamp {
		wanted.Timestamp = a.deps.Clock.Now()
	}
	a.reports.labels = labels.NewSyncer(wanted)
	a.node.kubelet = hostruntime.FollowKubelet(hostruntime.KubeletDeps{
		KubeletDir: a.config.KubeletDir,
		ProcRoot:   "/proc",
		Clock:      a.deps.Clock,
		Log:        a.log("kubeletconfig"),
	})
	a.reports.gpuNode = gpunodesync.New(gpunodesync.Deps{
		NodeName:   a.config.NodeName,
		Vendor:     a.deps.Hardware.Configured(),
		Ready:      []<-chan struct{}{a.compared.Done(), a.node.history.Asked()},
		Hardware:   a.node.inventory,
		Ledger:     a.node.ledger,
		Devices:    a.devices.allocatable,
		Config:     a.deps.Config,
		Conditions: a.reports.conditions,
		Problems:   a.reports.problems,
		Gate:       a.reports.gate,
		Kubelet:    a.node.kubelet,
		Publish:    notedSet(a.deps.Fault, "gpunodesync", publish.SetGPUNode),
	})
	return nil
}

// labelFacts returns the inputs of the labels besides the hardware.
func (a *Agent) labelFacts() labels.SyncFacts {
	config := a.deps.Config.Current().Config
	return labels.SyncFacts{
		Units:        a.devices.allocatable.Units(),
		ResourceName: config.ResourceName,
		MIGStrategy:  string(config.MIGStrategy),
		Changing:     slices.ContainsFunc(a.changes.partition.Statuses(), func(s migapply.Status) bool { return s.State == migapply.Changing }),
	}
}

// wirePages creates the pages and their content.
func (a *Agent) wirePages(vendors []vendor.Vendor, xids *metricsync.XIDs) {
	page := metrics.NewPage(metrics.PageDeps{Own: metricsync.NewRegistry(metricsync.OwnDeps{
		Plugin:   a.devices.plugin.Stats,
		Holdings: a.node.ledger.Plain,
		Problems: a.reports.problems.All,
		DRA:      a.devices.dra.Stats,
		Refused:  a.node.pods.Refused,
	})})
	a.reports.metrics = metricsync.New(metricsync.Deps{
		NodeName:          a.config.NodeName,
		DCGMFields:        a.counters.Fields,
		DCGMHostnameLabel: a.config.DCGMHostnameLabel,
		Vendors:           a.deps.Hardware.Traits(),
		ProcRoot:          "/proc",
		Sample:            hardware.Sampler(vendors, a.log("hardware")),
		Hardware:          a.node.inventory.Current,
		Units:             a.devices.allocatable.Units,
		Holdings:          a.node.ledger.Plain,
		XIDs:              xids.All,
		ContainerName:     a.node.sync.ContainerName,
		Changed: []func() *signal.Subscription{
			a.node.inventory.Subscribe,
			a.node.ledger.Subscribe,
			a.devices.allocatable.SubscribeUse,
			a.reports.list.Subscribe,
		},
		Report: a.reports.list.Set,
		Page:   page,
	})
	a.reports.liveness = serve.NewLiveness(a.deps.Clock)
	a.reports.server = serve.New(serve.Deps{
		NodeName:      a.config.NodeName,
		Simulated:     a.deps.Hardware.Simulated,
		Vendors:       a.deps.Hardware.Traits(),
		StateDir:      a.config.StateDir,
		Instance:      cmp.Or(a.deps.Instance, pages.DefaultInstance()),
		MetricsListen: a.config.MetricsListen,
		MetricsAPI:    a.deps.MetricsAPI,
		Compared:      a.compared,
		State: serve.State{
			Inventory:      a.node.inventory.Current,
			Holdings:       a.node.ledger.Holdings,
			Units:          a.devices.allocatable.Units,
			Offers:         a.offers,
			MIG:            a.changes.partition.Statuses,
			Daemon:         a.changes.mps.Status,
			Config:         a.deps.Config.Current,
			Plugin:         a.devices.plugin.Stats,
			Problems:       a.reports.list.All,
			InjectionKnown: a.devices.injection.Known,
		},
		Metrics:  page,
		Samples:  http.HandlerFunc(page.ServeSamples),
		Reset:    a.changes.resetter,
		Liveness: a.reports.liveness,
		Report:   a.reports.list.Set,
		Clock:    a.deps.Clock,
		Log:      a.log("pages"),
	})
}
