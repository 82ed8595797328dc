package agent

import (
	"fmt"
	"log/slog"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/agent/apichoice"
	"github.com/berth-gpu/berth/internal/node/agent/drasync"
	"github.com/berth-gpu/berth/internal/node/agent/gpuhistory"
	"github.com/berth-gpu/berth/internal/node/agent/gpunodesync"
	"github.com/berth-gpu/berth/internal/node/agent/handover"
	"github.com/berth-gpu/berth/internal/node/agent/hardware"
	"github.com/berth-gpu/berth/internal/node/agent/healthsync"
	"github.com/berth-gpu/berth/internal/node/agent/kubeletsync"
	"github.com/berth-gpu/berth/internal/node/agent/library"
	"github.com/berth-gpu/berth/internal/node/agent/metricsync"
	"github.com/berth-gpu/berth/internal/node/agent/migsync"
	"github.com/berth-gpu/berth/internal/node/agent/mpssync"
	"github.com/berth-gpu/berth/internal/node/agent/reset"
	"github.com/berth-gpu/berth/internal/node/agent/serve"
	"github.com/berth-gpu/berth/internal/node/agent/timeslice"
	"github.com/berth-gpu/berth/internal/node/allocatable"
	"github.com/berth-gpu/berth/internal/node/cdi"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/deviceplugin"
	"github.com/berth-gpu/berth/internal/node/gate"
	"github.com/berth-gpu/berth/internal/node/hostruntime"
	"github.com/berth-gpu/berth/internal/node/inventory"
	"github.com/berth-gpu/berth/internal/node/labels"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/metrics"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/podwatch"
	"github.com/berth-gpu/berth/internal/node/problemlist"
	"github.com/berth-gpu/berth/internal/node/signal"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// Deps are the dependencies of an Agent.
type Deps struct {
	// Config is the configuration, which follows its sources; Run runs it.
	Config   *configwatch.Watcher
	Hardware hardware.Machine
	// API and Kube are nil for an agent that publishes nothing (standalone). MetricsAPI is that of serve.Deps.
	API        dynamic.Interface
	Kube       kubernetes.Interface
	MetricsAPI kubernetes.Interface
	// Namespace is that of the agent's pod, Stack the file with the gate's settings, ValidationFiles a directory (gate.FilesIn).
	Namespace       string
	Stack           string
	ValidationFiles string
	Clock           clock.WithTicker
	Log             *slog.Logger
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
	counters metrics.CounterList
	node     node
	devices  devices
	changes  changes
	reports  reports
	// compared is set once the ledger was first compared with the node, the use of the devices is settled, and this agent writes the
	// ledger; settled is set without the last.
	compared *signal.Ready
	settled  *signal.Ready
}

// node has the actors for the state of the node: its hardware, pods and holders.
type node struct {
	inventory *inventory.Inventory
	history   *gpuhistory.History
	library   *library.Watch
	pods      *podwatch.Watch
	sync      *kubeletsync.Sync
	ledger    *ledger.Ledger
	grants    *kubeletsync.Grants
	kubelet   *hostruntime.KubeletFollower
	host      *hostruntime.Follower
}

// devices has the parts that allocate: the devices, their injection, and the front end.
type devices struct {
	allocatable *allocatable.Devices
	injection   *cdi.InjectionSource
	cdi         *cdi.Syncer
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
	list       *problemlist.List
	problems   problemlist.Joined
	events     *nodeapi.Events
	conditions *nodeapi.Conditions
	publishers *workers
	health     *healthsync.Reporter
	labels     *labels.Syncer
	gate       *gate.Syncer
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
	a := &Agent{
		deps:     deps,
		config:   deps.Config.Base(),
		counters: metrics.ReadCounterList(deps.Config.Base()),
		compared: signal.NewReady(),
		settled:  signal.NewReady(),
	}
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
	a.wireDRA()
	a.wireGate()
	if err := a.wireReports(); err != nil {
		return nil, fmt.Errorf("make agent: %w", err)
	}
	a.wirePages(vendors, xids)
	return a, nil
}

// log returns the log of a component.
func (a *Agent) log(component string) *slog.Logger { return a.deps.Log.With("component", component) }
