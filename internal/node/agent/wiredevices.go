package agent

import (
	"context"
	"os"
	"time"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
	"github.com/berth-gpu/berth/internal/node/agent/apichoice"
	"github.com/berth-gpu/berth/internal/node/agent/drasync"
	"github.com/berth-gpu/berth/internal/node/allocatable"
	"github.com/berth-gpu/berth/internal/node/cdi"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/deviceplugin"
	"github.com/berth-gpu/berth/internal/node/filewatch"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/mps"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// wireDevices creates the parts that allocate devices: their use, the CDI spec and the device plugin.
func (a *Agent) wireDevices() error {
	a.devices.injection = cdi.NewInjectionSource(cdi.InjectionDeps{
		UsesCDI: a.config.UsesCDI(),
		Plain:   a.deps.Hardware.Plain(),
		MPSDirs: func(id gpu.UUID) (pipe, shm string) {
			return mps.PipeDir(a.config.MPSRoot, id), mps.ShmDir(a.config.MPSRoot, id)
		},
		Config:        func() *v1alpha1.AgentConfig { return a.deps.Config.Current().Config },
		Names:         func() (map[string]bool, bool) { return a.devices.cdi.Names() },
		MPSUnits:      func() []offer.Unit { return a.changes.mps.Units() },
		WithoutDaemon: func(id gpu.UUID) string { return a.changes.mps.Unready(id) },
		Ending:        func(id gpu.UUID) string { return a.changes.mps.Ending(id) },
	})
	a.devices.choice = apichoice.New(apichoice.Deps{
		Dir:       a.config.PersistentDir,
		Config:    a.deps.Config,
		Ledger:    a.node.ledger,
		Hardware:  a.node.inventory.Of(a.deps.Hardware.Configured()),
		Published: func() []gpu.UUID { return a.devices.handover.Published() },
		HasClass:  drasync.ClassExists(a.deps.Kube, a.config.DRADriverName),
		ClassName: a.config.DRADriverName,
		Chosen:    func() { a.devices.allocatable.Settle() },
		Event:     a.reports.events.Publish,
		FileLost:  a.stateLost,
		Report:    a.reports.list.Set,
		Clock:     a.deps.Clock,
		Log:       a.log("apichoice"),
	})
	var read statefile.Result
	a.devices.allocatable, read = allocatable.Open(allocatable.Deps{
		StateDir:  a.config.StateDir,
		BootID:    a.deps.BootID,
		Inventory: a.node.inventory,
		Settings: configwatch.Settings{
			Config:       a.deps.Config,
			Hardware:     a.node.inventory,
			Auto:         a.devices.choice.API,
			Vendor:       a.deps.Hardware.Configured(),
			OtherVendors: a.deps.Hardware.OtherVendors(),
		},
		Ledger:   a.node.ledger,
		Injector: a.devices.injection,
		Changing: func(s *gpu.Snapshot) (map[gpu.UUID]string, map[gpu.UUID]bool) { return a.changes.mig.Changing(s) },
		Report:   a.reports.list.Set,
		Fault:    func(step allocatable.Step) error { return a.deps.Fault(string(step)) },
		Clock:    a.deps.Clock,
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
	a.devices.cdi = cdi.NewSyncer(cdi.SyncerDeps{
		Writer: cdi.New(cdi.Deps{
			Dir:    a.config.CDIDir,
			Roots:  a.deps.Hardware.CDI,
			Vendor: a.deps.Hardware.CDIEdits(hook, a.log("cdi")),
			Clock:  a.deps.Clock,
			Log:    a.log("cdi"),
		}),
		Dir:      a.config.CDIDir,
		DevRoot:  a.deps.Hardware.Roots.Dev,
		Hardware: a.node.inventory,
		Extras:   noted(a.deps.Fault, "cdisync", a.devices.injection.Extras),
		Settled:  a.devices.allocatable.SubscribeSettled,
		Hook:     keepHook,
		Watch: func(ctx context.Context) <-chan struct{} {
			_ = os.MkdirAll(a.config.CDIDir, 0o755) // A folder that is made later is found later, and is then compared once more.
			return filewatch.Watch(ctx, filewatch.Deps{
				Files: cdi.Files(a.config.CDIDir, hook),
				Ops:   filewatch.Gone,
				Pause: time.Second,
				Clock: a.deps.Clock,
				Log:   a.log("cdi"),
			})
		},
		Report:  a.reports.list.Set,
		Changed: a.devices.allocatable.InjectionChanged,
		Clock:   a.deps.Clock,
	})
	a.devices.plugin, err = deviceplugin.New(deviceplugin.Deps{
		Vendors:    a.deps.Hardware.Traits(),
		KubeletDir: a.config.KubeletDir,
		State:      noted(a.deps.Fault, "deviceplugin", a.advertised),
		Changed:    a.devices.allocatable.Subscribe().C(),
		Ledger:     a.node.ledger,
		Grants:     a.node.grants,
		Hardware:   a.node.inventory.Subscribe,
		Holdings:   a.node.ledger.Subscribe,
		Strategy: deviceplugin.Strategy{
			ID:               a.config.DeviceIDStrategy,
			PassDeviceSpecs:  a.config.PassDeviceSpecs,
			AnnotationPrefix: a.config.CDIAnnotationPrefix,
			List:             a.config.DeviceListStrategy,
		},
		CDIName:          cdi.QualifiedName,
		Plain:            a.deps.Hardware.Plain(),
		Mark:             kubelet.Mark,
		KubeletRestarted: a.node.sync.KubeletRestarted,
		Warn:             func(resource, message string) { a.reports.events.Publish(nodeapi.SharesOfOneGPU(message)) },
		Clock:            a.deps.Clock,
		Log:              a.log("deviceplugin"),
	})
	return err
}

// advertised returns the present list of the device plugin. It is on the path from a fault to the kubelet: it makes no
// file, API or hardware call, and takes no lock that is held during one.
func (a *Agent) advertised() deviceplugin.State {
	config := a.deps.Config.Current().Config
	state := deviceplugin.State{
		Snapshot: a.node.inventory.Current(),
		Offers:   a.devices.handover.Advertise(a.devices.allocatable.Current()),
		Policy:   placement.Policy(config.SharedDevicesAllocationPolicy),
		Features: deviceplugin.Features{GDS: config.GDS, GDRCopy: config.GDRCopy, MOFED: config.MOFED},
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
