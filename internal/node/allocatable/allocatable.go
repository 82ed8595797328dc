// Package allocatable owns what can be allocated on the node now, by GPU and partition: the use that is in force, the
// class of its health, whether it is ready, and what is injected into a container with it. The front ends read it from
// here, as does everything that is derived from the use: time slices, MPS daemons, the CDI spec, labels, GPUNode.
//
// It guarantees that a device which is held keeps its resource and its sharing mode until it is released, also over a
// restart of the agent and when the record of its use is lost; that the devices of a vendor whose driver does not answer,
// or whose first scan has not returned, keep their use and delay no other vendor's; that a change of the use is on
// disk before it is in force; and that reading the present state makes no file, API or hardware call and takes no lock that is held over
// one.
//
// What wakes it: the inventory, the configuration, and the ledger; a timer while units.json cannot be written. It settles the use when the
// hardware, the settings, the pending MIG changes, or the holders of a device that waits for its release have changed. An allocation of
// any other device changes none of these and is not followed by a settlement.
//
// What it writes: units.json, and the problems of the sources "offers", "units" and "units-file".
//
// What it never waits for: the API server, the driver, the kubelet. It waits for the disk; readers of the present state
// do not.
//
// It must not import a front end, an adapter or a publisher.
package allocatable

import (
	"context"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/inventory"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// FileName is the name of the file that records the use in force. The kubelet's checkpoint has the names of devices
// only, and nothing but this file distinguishes a time-sliced replica from an MPS replica of the same name.
const FileName = "units.json"

// Step is a moment at which a test can stop a settlement.
type Step string

// The steps.
const (
	// StepSettle: the use of the devices is about to be computed.
	StepSettle Step = "settle units"
	// StepKept: the new use of the devices is on disk and not yet in force.
	StepKept Step = "Stored units"
)

// Settings is the configuration.
type Settings interface {
	// Current returns the settings in force, and a version that changes with every change of the configuration; known
	// is false while it is not known which settings are in force.
	Current() (settings offer.Settings, version int, known bool)
	Subscribe() *signal.Subscription
}

// Ledger has the holdings.
type Ledger interface {
	Holdings() []ledger.Holding
	Subscribe() *signal.Subscription
}

// Deps are the dependencies of Devices.
type Deps struct {
	// StateDir is the folder of the file; content that was written in another boot than BootID is void.
	StateDir  string
	BootID    string
	Inventory inventory.Hardware
	Settings  Settings
	Ledger    Ledger
	// Changing returns the GPUs whose MIG mode is about to change, or that are being repartitioned, with the reason, and all that
	// are to have another layout than they have.
	Changing func(*gpu.Snapshot) (changing map[gpu.UUID]string, repartitioned map[gpu.UUID]bool)
	Injector Injector
	// Report replaces the problems of a source. It must not block.
	Report func(source string, problems ...gpu.Cause)
	// Fault is called at each step; an error stops the settlement there. For tests; nil for nothing.
	Fault func(Step) error
	// Clock is for the repetition of a write that failed; nil for the real one.
	Clock clock.Clock
}

// Devices is the actor. Create it with Open, start it with Run.
type Devices struct {
	deps    Deps
	file    statefile.File[[]offer.Unit]
	current atomic.Pointer[[]offer.Unit]
	began   *signal.Ready
	// use is signalled when the use or the settings have changed, present also when the Injector has changed, and settled also
	// when the use was settled for another snapshot.
	use     signal.Broadcast
	present signal.Broadcast
	settled signal.Broadcast

	// settling is held during a settlement, over the write of the file. No reader locks it.
	settling sync.Mutex
	// lost is true until the first settlement when there was an invalid file.
	lost bool
	// unsaved is true while the file does not have the units in force.
	unsaved bool
	// last has the inputs of the last settlement; nil before the first.
	last *inputs
	// signalled is what the subscriptions were last signalled for.
	signalled cause
}

// cause is what a settlement follows from besides the holders.
type cause struct {
	// version is that of the configuration.
	version  int
	snapshot *gpu.Snapshot
}

// inputs are the inputs of a settlement, besides the units that it starts from.
type inputs struct {
	snapshot *gpu.Snapshot
	settings offer.Settings
	// waiting has the holders of each device that waits for its release.
	waiting map[gpu.DeviceKey][]string
}

// file is the record of the use in a state directory.
func file(stateDir, bootID string) statefile.File[[]offer.Unit] {
	return statefile.File[[]offer.Unit]{
		Path: filepath.Join(stateDir, FileName), What: "what each GPU is used for", Format: "berth-units", Version: 1, BootID: bootID,
	}
}

// Open reads the units that were in force. After a reboot there are none, because no container is left. The result says
// whether the file was valid; the caller reports an invalid one.
func Open(deps Deps) (*Devices, statefile.Result) {
	if deps.Fault == nil {
		deps.Fault = func(Step) error { return nil }
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	d := &Devices{deps: deps, file: file(deps.StateDir, deps.BootID), began: signal.NewReady(), signalled: cause{version: -1}}
	before, result := d.file.Load()
	d.current.Store(&before)
	d.lost = result.Lost()
	return d, result
}

// Units returns the use in force. The list must not be changed.
func (d *Devices) Units() []offer.Unit { return *d.current.Load() }

// ResourceNames returns the names under which the device plugin advertises devices now, and those under which held devices were
// allocated, sorted.
func (d *Devices) ResourceNames() []string {
	var names []string
	for _, unit := range d.Units() {
		if unit.Use.API == offer.DevicePlugin {
			names = append(names, unit.Use.Resource)
		}
	}
	for _, h := range d.deps.Ledger.Holdings() {
		if h.Holder.Resource != "" {
			names = append(names, h.Holder.Resource)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Begin makes the first settlement. Before it, nothing is settled: the caller calls it when the holdings and the wanted
// MIG layout are known.
func (d *Devices) Begin() {
	d.began.Set()
	d.Settle()
}

// Run settles the use until ctx ends.
func (d *Devices) Run(ctx context.Context) error {
	if d.began.Wait(ctx) != nil {
		return nil
	}
	hardware, settings, holders := d.deps.Inventory.Subscribe(), d.deps.Settings.Subscribe(), d.deps.Ledger.Subscribe()
	defer hardware.Close()
	defer settings.Close()
	defer holders.Close()
	var retry statefile.Retry
	for {
		var again <-chan time.Time
		if d.isUnsaved() {
			again = d.deps.Clock.After(retry.Next())
		} else {
			retry.Reset()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-hardware.C():
		case <-holders.C():
		case <-settings.C():
		case <-again:
		}
		d.Settle()
	}
}

// isUnsaved reports whether the file does not have the units in force.
func (d *Devices) isUnsaved() bool {
	d.settling.Lock()
	defer d.settling.Unlock()
	return d.unsaved
}

// Settle brings the use in line with the present hardware, settings, MIG changes and holders, and returns when it is in
// force. It computes nothing while none of these has changed since the last settlement. It signals the subscriptions
// once when the use or the configuration has changed: settings that do not concern the use, such as the allocation
// policy, are read by the same subscribers.
func (d *Devices) Settle() {
	if !d.began.Is() {
		return
	}
	d.settling.Lock()
	defer d.settling.Unlock()
	settings, version, known := d.deps.Settings.Current()
	snapshot := d.deps.Inventory.Current()
	changed, rescanned := version != d.signalled.version, snapshot != d.signalled.snapshot
	d.signalled = cause{version: version, snapshot: snapshot}
	defer func() {
		if changed {
			d.useChanged()
		}
		if changed || rescanned {
			d.settled.Set()
		}
	}()
	if !known || !snapshot.DriverPresent() {
		return // What the GPUs are used for outlasts a driver that does not answer for a moment; see split for several vendors.
	}
	settings.Changing, settings.Repartitioned = d.deps.Changing(snapshot)
	// The holdings are read once. A release between two reads would be taken for one that was settled, and its device would keep waiting.
	held := sync.OnceValue(d.held)
	now := inputs{snapshot: snapshot, settings: settings, waiting: waiting(d.Units(), held)}
	if d.last != nil && !d.unsaved && reflect.DeepEqual(*d.last, now) {
		return
	}
	if d.deps.Fault(StepSettle) != nil {
		return
	}
	settled, err := d.settle(&now, held())
	if err != nil {
		return
	}
	changed = changed || settled
	now.waiting = waiting(d.Units(), held)
	d.last = &now
}

// settle computes the use and puts it in force. It returns whether the use has changed; the error is that of a step.
func (d *Devices) settle(now *inputs, held []gpu.Holding) (changed bool, err error) {
	before := d.Units()
	if d.lost {
		before = offer.Recover(held, now.settings.ResourceName)
	}
	answering, kept := split(now, before)
	settings := now.settings
	if silent(now.snapshot, settings.Vendor) {
		settings = offer.Settings{Vendor: settings.Vendor, OtherVendors: settings.OtherVendors}
	}
	wanted, problems := offer.Resolve(answering, settings)
	if !silent(now.snapshot, settings.Vendor) {
		d.deps.Report("offers", slices.DeleteFunc(problems, func(c gpu.Cause) bool {
			// One configuration can serve nodes that differ; inspect devices shows unused rules.
			return c.Code == offer.RuleUnused
		})...)
	}
	next := offer.Settle(answering, wanted, before, func(key gpu.DeviceKey) []string {
		return gpu.HolderNames(held, key)
	}, now.settings.Changing)
	next = append(next, kept...)
	if slices.Equal(before, next) && !d.lost && !d.unsaved {
		return false, nil
	}
	// It is saved before it takes effect, so that no restart loses a replica that may be held.
	err = d.file.Save(next)
	d.unsaved = err != nil
	if err != nil {
		d.deps.Report("units", gpu.Cause{Code: "STATE_UNWRITABLE", Message: err.Error()})
	} else {
		d.deps.Report("units")
	}
	if err := d.deps.Fault(StepKept); err != nil {
		return false, err
	}
	d.current.Store(&next)
	d.lost = false
	if !slices.ContainsFunc(next, func(u offer.Unit) bool { return u.Use.Mode == offer.Unknown }) {
		d.deps.Report("units-file")
	}
	return true, nil
}

// silent reports whether it is not known which devices a vendor has: its first scan has not returned, or its driver does not
// answer. Settings without a vendor's name are about all GPUs.
func silent(snapshot *gpu.Snapshot, vendor string) bool {
	return vendor != "" && !snapshot.Vendor(vendor).Driver.Present()
}

// split returns the part of the snapshot whose vendors answer, and the units of the others, which keep their use whether or not
// the snapshot has their GPUs: a vendor that is late or hangs loses nothing, and holds back no other.
func split(now *inputs, before []offer.Unit) (answering *gpu.Snapshot, kept []offer.Unit) {
	answering = now.snapshot
	if slices.ContainsFunc(answering.GPUs, func(g gpu.GPU) bool { return silent(now.snapshot, g.Vendor) }) {
		answering = &gpu.Snapshot{Vendors: now.snapshot.Vendors}
		for i := range now.snapshot.GPUs {
			if g := &now.snapshot.GPUs[i]; !silent(now.snapshot, g.Vendor) {
				answering.GPUs = append(answering.GPUs, *g)
			}
		}
	}
	for _, unit := range before {
		if silent(now.snapshot, now.settings.VendorOf(unit.Use.Resource)) && answering.GPU(unit.Key.GPU) == nil {
			kept = append(kept, unit)
		}
	}
	return answering, kept
}

// waiting returns the holders of each device that waits for its release or for a MIG change.
func waiting(units []offer.Unit, held func() []gpu.Holding) map[gpu.DeviceKey][]string {
	var holders map[gpu.DeviceKey][]string
	for _, unit := range units {
		if unit.Draining == "" {
			continue
		}
		if holders == nil {
			holders = map[gpu.DeviceKey][]string{}
		}
		holders[unit.Key] = gpu.HolderNames(held(), unit.Key)
	}
	return holders
}

// held returns what the ledger has, without maintenance.
func (d *Devices) held() []gpu.Holding {
	var held []gpu.Holding
	for _, h := range d.deps.Ledger.Holdings() {
		if h.Holder.Kind != gpu.HolderMaintenance {
			held = append(held, h.Holding)
		}
	}
	return held
}
