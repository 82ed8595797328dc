package drasync

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// inForce is the use of the devices.
type inForce struct {
	signal.Broadcast
	mu      sync.Mutex
	devices []offer.Placed
}

func (d *inForce) Current() []offer.Placed {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.devices)
}

func (d *inForce) Units() []offer.Unit {
	var units []offer.Unit
	for _, device := range d.Current() {
		units = append(units, offer.Unit{Key: device.Key, Use: device.Use})
	}
	return units
}

func (d *inForce) SubscribeSettled() *signal.Subscription { return d.Subscribe() }

func (d *inForce) set(devices ...offer.Placed) {
	d.mu.Lock()
	d.devices = devices
	d.mu.Unlock()
	d.Set()
}

func device(id gpu.UUID, use offer.Use) offer.Placed {
	one := offer.Placed{}
	one.Key, one.Use, one.Health = gpu.DeviceKey{GPU: id}, use, gpu.Healthy
	return one
}

// TestReadyWaits: a prepare waits for a device that is about to be ready, at most readyWithin, and no longer than its call.
func TestReadyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		devices := &inForce{}
		s := &Syncer{deps: Deps{Devices: devices, Hardware: found{"GPU-1", ""}, Clock: clock.RealClock{}}}
		wait := func(ctx context.Context) (time.Duration, error) {
			began := time.Now()
			err := s.ready(ctx, "GPU-1")
			return time.Since(began), err
		}
		missing := device("GPU-1", offer.Use{API: offer.DRA})
		missing.NotInjectable = true
		devices.set(missing)
		go func() {
			time.Sleep(2 * time.Second)
			devices.set(device("GPU-1", offer.Use{API: offer.DRA}))
		}()
		if took, err := wait(t.Context()); err != nil || took != 2*time.Second {
			t.Errorf("a device that becomes ready: %v after %s", err, took)
		}
		if took, err := wait(t.Context()); err != nil || took > 0 {
			t.Errorf("a device that is ready: %v after %s", err, took)
		}
		devices.set(missing)
		if took, err := wait(t.Context()); err == nil || took != readyWithin {
			t.Errorf("a device that does not become ready: %v after %s", err, took)
		}
		ended, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if took, err := wait(ended); err == nil || took != time.Second {
			t.Errorf("a call that ends: %v after %s", err, took)
		}
	})
}

// found is the hardware: a GPU, with one MIG device unless its UUID is empty.
type found [2]gpu.UUID

func (f found) Current() *gpu.Snapshot {
	one := gpu.GPU{UUID: f[0]}
	if f[1] != "" {
		one.MIG.Devices = []gpu.MIGDevice{{Partition: gpu.Partition{UUID: f[1]}}}
	}
	return &gpu.Snapshot{GPUs: []gpu.GPU{one}}
}

// TestReadyMIGDevice: a MIG device of a dynamic GPU is ready when the CDI spec has the MIG device itself, which no unit is about.
func TestReadyMIGDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		devices, spec := &inForce{}, ""
		s := &Syncer{deps: Deps{Devices: devices, Hardware: found{"GPU-1", "MIG-1"}, Clock: clock.RealClock{},
			CDI: CDI{Injectable: func(_ string, key gpu.DeviceKey) bool { return key.GPU == "GPU-1" && string(key.MIG) == spec }}}}
		devices.set(device("GPU-1", offer.Use{API: offer.DRA, DynamicMIG: true}))
		if err := s.ready(t.Context(), "MIG-1"); err == nil {
			t.Error("ready without an entry in the CDI spec")
		}
		spec = "MIG-1"
		if err := s.ready(t.Context(), "MIG-1"); err != nil {
			t.Error(err)
		}
		devices.set(device("GPU-1", offer.Use{API: offer.DRA}))
		if err := s.ready(t.Context(), "MIG-1"); err == nil {
			t.Error("ready although the GPU is not dynamic and the node does not offer the MIG device")
		}
	})
}
