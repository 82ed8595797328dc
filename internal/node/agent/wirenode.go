package agent

import (
	"context"
	"os"
	"path/filepath"

	"github.com/berth-gpu/berth/internal/core/gpu"
	vendor "github.com/berth-gpu/berth/internal/hardware"
	"github.com/berth-gpu/berth/internal/node/agent/drasync"
	"github.com/berth-gpu/berth/internal/node/agent/gpuhistory"
	"github.com/berth-gpu/berth/internal/node/agent/hardware"
	"github.com/berth-gpu/berth/internal/node/agent/kubeletsync"
	"github.com/berth-gpu/berth/internal/node/agent/library"
	"github.com/berth-gpu/berth/internal/node/agent/metricsync"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/gpunode"
	"github.com/berth-gpu/berth/internal/node/hostruntime"
	"github.com/berth-gpu/berth/internal/node/inventory"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/podwatch"
)

// newHistory returns what knows whether the node has ever had a GPU. A standalone agent knows no GPUNode.
func (a *Agent) newHistory() *gpuhistory.History {
	deps := gpuhistory.Deps{
		Dir:      a.config.PersistentDir,
		NodeUID:  a.deps.Config.NodeUID,
		OnBus:    a.deps.Hardware.OnBus,
		Hardware: a.node.inventory,
		Retry:    nodeapi.Retry{Clock: a.deps.Clock, NodeName: a.config.NodeName},
		FileLost: a.stateLost,
		Report:   a.reports.list.Set,
	}
	if a.deps.API != nil {
		deps.Published = func(ctx context.Context) (bool, error) { return gpunode.HadGPU(ctx, a.deps.API, a.config.NodeName) }
	}
	return gpuhistory.Open(deps)
}

// wireHardware creates the inventory and returns its vendors.
func (a *Agent) wireHardware(xids *metricsync.XIDs) ([]vendor.Vendor, error) {
	rules, err := config.HealthRules(a.config, os.Getenv)
	if err != nil {
		return nil, err
	}
	a.node.library = library.New(library.Deps{
		StateDir: a.config.StateDir,
		BootID:   a.deps.BootID,
		Clock:    a.deps.Clock,
		Log:      a.log("library"),
	})
	vendors := a.deps.Hardware.Vendors(hardware.VendorDeps{
		LibraryReplaced:  a.node.library.Replaced,
		SampleInterval:   a.config.SampleInterval.Duration,
		OptionalMeasures: a.counters.Optional,
		Log:              a.log("hardware"),
	})
	var sources []inventory.Source
	for _, v := range vendors {
		sources = append(sources, hardware.Observe(v, xids.Add))
	}
	a.node.inventory = inventory.New(inventory.Deps{
		Vendors:     sources,
		Clock:       a.deps.Clock,
		Log:         a.log("inventory"),
		Poll:        a.config.PollInterval.Duration,
		Deadline:    a.config.ScanDeadline.Duration,
		IgnoredXIDs: config.IgnoredXIDs(a.config),
		Rules:       rules,
		Keep:        filepath.Join(a.config.StateDir, inventory.KeepFile),
		BootID:      a.deps.BootID,
		Report:      a.reports.list.Set,
		Renewed:     func(gpus []gpu.UUID) { a.changes.timeslices.WereReset(gpus) },
	})
	a.node.history = a.newHistory()
	return vendors, nil
}

// wireLedger creates the ledger, its comparison with the kubelet, and the folders of grants.
func (a *Agent) wireLedger() error {
	a.node.pods = podwatch.New(podwatch.Deps{
		API:       a.deps.API,
		NodeName:  a.config.NodeName,
		Namespace: a.deps.Namespace,
		Start:     a.deps.Clock.Now(),
		Log:       a.log("podwatch"),
	})
	a.node.grants = kubeletsync.NewGrants(kubeletsync.GrantsDeps{StateDir: a.config.StateDir, Clock: a.deps.Clock, Log: a.log("grants")})
	names := func() []string { return a.devices.allocatable.ResourceNames() }
	a.node.host = hostruntime.Follow(hostruntime.FollowerDeps{
		Deps:  hostruntime.Deps{HostRoot: a.config.HostRoot, Proc: "/proc", ContainerdState: a.config.ContainerdStateDir},
		Clock: a.deps.Clock,
		Log:   a.log("hostruntime"),
	})
	view := kubeletsync.NewReader(kubeletsync.ReaderDeps{
		KubeletDir: a.config.KubeletDir,
		Pods:       a.node.pods,
		Containers: kubelet.NewContainers(kubelet.ContainersDeps{
			ProcRoot:   "/proc",
			CgroupRoot: a.config.CgroupRoot,
			Bundles:    a.node.host.Bundles,
			GrantsDir:  a.node.grants.Dir(),
			Vendors:    a.deps.Hardware.Traits(),
		}),
		Resources: kubelet.NewPodResources(a.config.KubeletDir),
		Snapshot:  a.node.inventory.Current,
		Names:     names,
		Granted:   func(id string) []gpu.DeviceKey { return a.node.ledger.Granted(id) },
		GrantsDir: a.node.grants.Dir(),
		Clock:     a.deps.Clock,
		Log:       a.log("nodeview"),
	})
	var err error
	a.node.ledger, err = ledger.Open(ledger.Deps{
		Path:      filepath.Join(a.config.StateDir, ledger.File),
		BootID:    a.deps.BootID,
		Follow:    a.deps.Kube != nil,
		Clock:     a.deps.Clock,
		Log:       a.log("ledger"),
		Look:      view.Living,
		LookIn:    view.LivingIn,
		Assigned:  view.Assigned,
		Stamp:     view.Stamp,
		Pod:       view.Pod,
		Ask:       view.Ask,
		Placement: view.Placement,
	})
	if err != nil {
		return err
	}
	a.node.sync = kubeletsync.New(kubeletsync.Deps{
		KubeletDir: a.config.KubeletDir,
		Node:       view,
		Claims:     drasync.RecordedClaims(a.config.HostRoot, a.config.KubeletDir, a.config.DRADriverName),
		Pods:       a.node.pods,
		Names:      names,
		Ledger:     a.node.ledger,
		Grants:     a.node.grants,
		Report:     a.reports.list.Set,
		Clock:      a.deps.Clock,
		Log:        a.log("kubeletsync"),
	})
	return nil
}
