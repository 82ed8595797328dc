package allocatable

import (
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// Injector returns how devices are injected into containers. It only reads memory.
type Injector interface {
	// Injectable reports whether the container runtime can inject a device of a vendor; it cannot while that is not known,
	// such as before the host's files were read.
	Injectable(vendor string, key gpu.DeviceKey) bool
	// Injection returns what a container gets with a device in a use, and why that is not possible now; empty when it
	// is.
	Injection(key gpu.DeviceKey, use offer.Use) (injection offer.Injection, notReady string)
}

// Current returns what can be allocated now, with all that an allocation depends on but its holders, in the order of the GPUs' index, then
// the MIG devices'. It is computed from memory at each call: the latest snapshot, the use in force, and what can be injected.
func (d *Devices) Current() []offer.Placed {
	injector, snapshot := d.deps.Injector, d.deps.Inventory.Current()
	devices := offer.Place(snapshot, d.Units())
	for i := range devices {
		device := &devices[i]
		device.NotInjectable = !injector.Injectable(snapshot.GPUs[device.Position].Vendor, device.Key)
		device.Injection, device.NotReady = injector.Injection(device.Key, device.Use)
	}
	return devices
}

// KeysOn returns the keys under which devices of a GPU are in use or can be allocated: the GPU, its partitions, or
// replicas.
func (d *Devices) KeysOn(id gpu.UUID) []gpu.DeviceKey {
	var keys []gpu.DeviceKey
	for _, unit := range offer.Place(d.deps.Inventory.Current(), d.Units()) {
		if unit.Key.GPU == id {
			keys = append(keys, unit.Keys()...)
		}
	}
	return keys
}

// Subscribe signals when Current may have changed for another reason than the hardware, or the settings have changed.
func (d *Devices) Subscribe() *signal.Subscription { return d.present.Subscribe() }

// SubscribeUse signals when the use in force or the settings may have changed.
func (d *Devices) SubscribeUse() *signal.Subscription { return d.use.Subscribe() }

// SubscribeSettled signals when the hardware, the use or the settings may have changed, once for all that one settlement has found: a
// change of the hardware is signalled when the use is in line with it.
func (d *Devices) SubscribeSettled() *signal.Subscription { return d.settled.Subscribe() }

// InjectionChanged signals that the results of the Injector have changed. It never waits.
func (d *Devices) InjectionChanged() { d.present.Set() }

// useChanged signals all subscriptions.
func (d *Devices) useChanged() {
	d.use.Set()
	d.present.Set()
}
