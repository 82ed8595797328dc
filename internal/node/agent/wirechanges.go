package agent

import (
	"context"
	"os"
	"strconv"

	"github.com/berth-gpu/berth/internal/core/gpu"
	vendor "github.com/berth-gpu/berth/internal/hardware"
	"github.com/berth-gpu/berth/internal/node/agent/drasync"
	"github.com/berth-gpu/berth/internal/node/agent/handover"
	"github.com/berth-gpu/berth/internal/node/agent/hardware"
	"github.com/berth-gpu/berth/internal/node/agent/migsync"
	"github.com/berth-gpu/berth/internal/node/agent/mpssync"
	"github.com/berth-gpu/berth/internal/node/agent/reset"
	"github.com/berth-gpu/berth/internal/node/agent/timeslice"
	"github.com/berth-gpu/berth/internal/node/cdi"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/mps"
	"github.com/berth-gpu/berth/internal/node/openers"
)

// wireChanges creates the parts that change the hardware: MIG, resets, time slices, MPS daemons.
func (a *Agent) wireChanges(vendors []vendor.Vendor) {
	program, _ := vendor.Find[timeslice.Program](vendors)
	shared := a.node.inventory.Of(vendor.NameOf[timeslice.Program](vendors)) // The driver that has time slices has MPS.
	a.changes.timeslices = timeslice.New(timeslice.Deps{
		Units:           a.devices.allocatable.Units,
		Settled:         a.devices.allocatable.SubscribeSettled,
		Hardware:        shared,
		Holdings:        a.node.ledger.Plain,
		HoldingsChanged: a.node.ledger.Subscribe,
		Writes:          a.node.ledger.Writes,
		Program:         program,
		StateDir:        a.config.StateDir,
		BootID:          a.deps.BootID,
		FileLost:        a.stateLost,
		Report:          a.reports.list.Set,
		Fault:           func(step timeslice.Step) error { return a.deps.Fault(string(step)) },
		Clock:           a.deps.Clock,
		Log:             a.log("timeslice"),
	})
	a.changes.mps = mpssync.New(mpssync.Deps{
		Units:           a.devices.allocatable.Units,
		UnitsChanged:    a.devices.allocatable.SubscribeUse,
		Hardware:        shared,
		Holdings:        a.node.ledger.Plain,
		HoldingsChanged: a.node.ledger.Subscribe,
		Writes:          a.node.ledger.Writes,
		Supervisor:      &mps.Client{Socket: mps.SocketPath(a.config.MPSRoot), Clock: a.deps.Clock},
		Report:          a.reports.list.Set,
		// The CDI spec has the directories of a daemon only while its replicas can be allocated.
		Changed: func() { a.devices.cdi.Recheck(); a.devices.allocatable.InjectionChanged() },
		Clock:   a.deps.Clock,
	})
	driver, _ := vendor.Find[hardware.MIGDriver](vendors)
	changed := a.node.inventory.Of(vendor.NameOf[hardware.MIGDriver](vendors))
	gpus := hardware.NewMIG(hardware.MIGDeps{
		Driver:    driver,
		WereReset: a.changes.timeslices.WereReset,
		Report:    a.node.inventory.Report,
		Now:       a.deps.Clock.Now,
	})
	finder := openers.New(openers.Deps{
		Current:   a.node.inventory.Current,
		Processes: hardware.Processes(vendors),
		Daemon:    a.changes.mps.PID,
		PodName:   a.node.sync.PodName,
		ProcRoot:  "/proc",
	})
	quiesce := func(by mpssync.Quiescer) func(context.Context, gpu.UUID) error {
		return func(ctx context.Context, id gpu.UUID) error { return a.changes.mps.Quiesce(ctx, by, id) }
	}
	a.changes.resetter = reset.New(reset.Deps{
		Dir:      a.config.StateDir,
		Hardware: changed,
		Ledger:   a.node.ledger,
		Openers:  finder.Find,
		Quiesce:  quiesce(mpssync.ForReset),
		Resume:   func(gpu.UUID) { a.changes.mps.Unquiesce(mpssync.ForReset) },
		Reset:    func(ctx context.Context, id gpu.UUID) error { return gpus.Reset(ctx, []gpu.UUID{id}) },
		Clock:    a.deps.Clock,
		Log:      a.log("reset"),
	})
	a.changes.partition = migapply.New(migapply.Deps{
		Dir:       a.config.PersistentDir,
		NodeUID:   a.deps.Config.NodeUID,
		Owner:     "berth-agent " + strconv.Itoa(os.Getpid()),
		Hardware:  gpus,
		Inventory: changed,
		Ledger:    a.node.ledger,
		Devices:   a.devices.allocatable.KeysOn,
		Blind:     a.node.sync.Unsure,
		Notify:    a.changes.partitioned.Set,
		Quiesce:   quiesce(mpssync.ForMIG),
		Openers:   finder.Find,
		Clock:     a.deps.Clock,
		Log:       a.log("migapply"),
	})
	a.changes.mig = migsync.New(migsync.Deps{
		Config:    a.deps.Config,
		Hardware:  changed,
		Ledger:    a.node.ledger,
		Partition: a.changes.partition,
		Node:      a.reports.publishers,
		Modes: migsync.OpenModes(migsync.ModesDeps{
			StateDir: a.config.StateDir,
			BootID:   a.deps.BootID,
			FileLost: a.stateLost,
			Report:   a.reports.list.Set,
		}),
		Settle: a.devices.allocatable.Settle,
		Resume: func(changing []gpu.UUID) { a.changes.mps.Unquiesce(mpssync.ForMIG, changing...) },
		Report: a.reports.list.Set,
		Clock:  a.deps.Clock,
	})
}

// wireDRA creates the front end for claims, and what keeps each GPU in one API. Without an API server there is none.
func (a *Agent) wireDRA() {
	if a.deps.Kube == nil {
		return
	}
	a.devices.handover = handover.Open(handover.Deps{
		Dir:      a.config.PersistentDir,
		NodeUID:  a.deps.Config.NodeUID,
		Before:   a.devices.allocatable.Units(),
		Kubelet:  kubelet.NewPodResources(a.config.KubeletDir),
		Hardware: a.node.inventory,
		Opened:   a.devices.allocatable.InjectionChanged,
		Changed:  func() { a.devices.dra.HandoverChanged() },
		FileLost: a.stateLost,
		Report:   a.reports.list.Set,
		Clock:    a.deps.Clock,
	})
	a.devices.dra = drasync.New(drasync.Deps{
		DriverName: a.config.DRADriverName,
		NodeName:   a.config.NodeName,
		KubeletDir: a.config.KubeletDir,
		HostRoot:   a.config.HostRoot,
		Client:     a.deps.Kube,
		Hardware:   a.node.inventory,
		Devices:    a.devices.allocatable,
		Ledger:     a.node.ledger,
		Handover:   a.devices.handover,
		CDI:        drasync.CDI{Name: cdi.QualifiedName, Injectable: a.devices.injection.Injectable, MPS: a.devices.injection.MPS},
		Changes: drasync.Changes{
			Ensure:    a.changes.mig.Ensure,
			Maintains: migapply.Maintains,
			Sliced:    a.changes.timeslices.Await,
			Daemon:    a.changes.mps.Await,
		},
		NotPrepared: a.reports.events.ClaimNotPrepared,
		Report:      a.reports.list.Set,
		Fault:       a.deps.Fault,
		Clock:       a.deps.Clock,
		Log:         a.log("dra"),
	})
}
