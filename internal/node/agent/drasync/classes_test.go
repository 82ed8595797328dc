package drasync

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/allocatable"
	"github.com/berth-gpu/berth/internal/node/dra/class"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// inForce is the use of the devices.
type inForce struct {
	signal.Broadcast
	mu      sync.Mutex
	devices []allocatable.Device
}

func (d *inForce) Current() []allocatable.Device {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.devices)
}

func (d *inForce) SubscribeSettled() *signal.Subscription { return d.Subscribe() }

func (d *inForce) set(devices ...allocatable.Device) {
	d.mu.Lock()
	d.devices = devices
	d.mu.Unlock()
	d.Set()
}

func device(id gpu.UUID, use offer.Use) allocatable.Device {
	one := allocatable.Device{Injectable: true}
	one.Key, one.Use, one.Health = gpu.DeviceKey{GPU: id}, use, gpu.Healthy
	return one
}

// TestClasses: a missing class is reported at once when a device needs it, and the report ends when the class is there or no device needs
// it any more.
func TestClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		devices, client := &inForce{}, fake.NewClientset()
		var mu sync.Mutex
		var codes []string
		reads := func() (n int) {
			for _, action := range client.Actions() {
				if action.GetVerb() == "list" {
					n++
				}
			}
			return n
		}
		s := &Syncer{deps: Deps{Client: client, Devices: devices, Clock: clock.RealClock{}, Report: func(_ string, problems ...gpu.Cause) {
			mu.Lock()
			defer mu.Unlock()
			codes = nil
			for _, p := range problems {
				codes = append(codes, p.Code)
			}
		}}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = s.checkClasses(ctx) }()
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(codes, want) {
				t.Errorf("%s: the problems are %v, want %v", when, codes, want)
			}
		}
		whole := offer.Use{API: offer.DRA, Resource: offer.DefaultResource}
		devices.set(device("GPU-1", offer.Use{Resource: offer.DefaultResource}))
		expect("without a device of DRA")
		if n := reads(); n > 0 {
			t.Errorf("read the classes %d times without a device that needs one", n)
		}
		devices.set(device("GPU-1", whole))
		expect("with a device", class.Missing)
		classes, err := class.Classes(class.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.ResourceV1().DeviceClasses().Create(ctx, &classes[0], metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(readClassesAgain)
		expect("with the class")
		before := reads()
		for range 100 {
			devices.Set()
			synctest.Wait()
		}
		if n := reads() - before; n > 0 {
			t.Errorf("read the classes %d times for changes of other things", n)
		}
		devices.set(device("GPU-1", whole), device("GPU-2", offer.Use{API: offer.DRA, Resource: "nvidia.com/mig-1g.10gb"}))
		expect("with a second resource", class.Missing)
		devices.set()
		expect("without devices")
	})
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
		missing.Injectable = false
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
