package nvidia_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/gpu"
)

// waiting makes the event sets of a machine wait for real (in the bubble's time), and
// counts those that were made and freed.
func (n *node) waiting() (made, freed *int) {
	made, freed = new(int), new(int)
	n.library.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		*made++
		return &mock.EventSet{
			FreeFunc: func() nvml.Return { *freed++; return nvml.SUCCESS },
			WaitFunc: func(millis uint32) (nvml.EventData, nvml.Return) {
				if n.callReturn != nvml.SUCCESS {
					return nvml.EventData{}, n.callReturn
				}
				select {
				case data := <-n.events:
					return data, nvml.Return(data.EventType >> 32) // the upper half is the return code
				case <-time.After(time.Duration(millis) * time.Millisecond):
					return nvml.EventData{}, nvml.ERROR_TIMEOUT
				}
			},
		}, nvml.SUCCESS
	}
	return made, freed
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, gpus.Multiple(2, gpus.A100_SXM4_40GB)...)
		n.events = make(chan nvml.EventData, 4)
		made, freed := n.waiting()
		a := n.adapter()
		none := func(gpu.Event) { t.Error("an event without a driver") }
		if err := a.Watch(t.Context(), none); err == nil {
			t.Error("Watch before any scan: got nil; want an error")
		}
		scan(t, a)

		ctx, cancel := context.WithCancel(t.Context())
		events := make(chan gpu.Event, 4)
		done := make(chan error, 1)
		go func() { done <- a.Watch(ctx, func(e gpu.Event) { events <- e }) }()

		const whole = ^uint32(0)
		first, second := n.cards[0], n.cards[1]
		n.events <- nvml.EventData{Device: first.Device, EventType: nvml.EventTypeXidCriticalError, EventData: 79, GpuInstanceId: whole, ComputeInstanceId: whole}
		n.events <- nvml.EventData{Device: second.Device, EventType: nvml.EventTypeXidCriticalError, EventData: 94, GpuInstanceId: 3, ComputeInstanceId: 0}
		n.events <- nvml.EventData{Device: second.Device, EventType: nvml.EventTypeDoubleBitEccError, GpuInstanceId: whole, ComputeInstanceId: whole}
		want := []gpu.Event{
			{GPU: gpu.UUID(first.UUID), XID: 79, GI: gpu.NoInstance, CI: gpu.NoInstance},
			{GPU: gpu.UUID(second.UUID), XID: 94, GI: 3},
			{GPU: gpu.UUID(second.UUID), GI: gpu.NoInstance, CI: gpu.NoInstance},
		}
		for i := range want {
			if diff := cmp.Diff(want[i], <-events); diff != "" {
				t.Errorf("event %d (-want +got):\n%s", i, diff)
			}
		}
		// A card that cannot say its name is known by its handle.
		first.broken = nvml.ERROR_GPU_IS_LOST
		n.events <- nvml.EventData{Device: first.Device, EventType: nvml.EventTypeXidCriticalError, EventData: 79, GpuInstanceId: whole, ComputeInstanceId: whole}
		if got := <-events; got.GPU != gpu.UUID(first.UUID) {
			t.Errorf("XID 79 of a lost card: got %+v; want that card's", got)
		}
		// Lost cards are watched no more; a new set comes before the old one goes.
		scan(t, a)
		time.Sleep(time.Second)
		if *made != 2 || *freed != 1 {
			t.Errorf("%d sets made, %d freed; want 2 and 1", *made, *freed)
		}
		if got := len(first.Device.RegisterEventsCalls()); got != 1 {
			t.Errorf("the lost card was registered %d times; want once", got)
		}
		// A wait that a lost card spoils: worth a scan, not worth spinning.
		n.events <- nvml.EventData{EventType: uint64(nvml.ERROR_GPU_IS_LOST) << 32}
		if got := <-events; got.XID != 0 || got.GPU != "" {
			t.Errorf("a spoiled wait: got %+v; want an event of every card without XID", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch at its end: %v; want nil", err)
		}
		if *freed != *made {
			t.Errorf("%d sets made, %d freed; want all", *made, *freed)
		}
	})
}

// TestWatchEndsWithTheDriver frees no event set of a session that ended: with the real
// library that is a crash.
func TestWatchEndsWithTheDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, gpus.A100_SXM4_40GB)
		n.events = make(chan nvml.EventData)
		made, freed := n.waiting()
		a := n.adapter()
		scan(t, a)
		done := make(chan error, 1)
		go func() { done <- a.Watch(t.Context(), func(gpu.Event) {}) }()
		synctest.Wait()
		// The driver goes and another comes, between two waits.
		a.Close()
		scan(t, a)
		if err := <-done; err == nil {
			t.Error("Watch after the driver went: got nil; want an error")
		}
		if *made != 1 || *freed != 0 {
			t.Errorf("%d sets made, %d freed; want 1 and 0", *made, *freed)
		}
		// With the driver gone in the middle of a wait, the set is freed or forgotten, and
		// the error says so.
		go func() { done <- a.Watch(t.Context(), func(gpu.Event) {}) }()
		synctest.Wait()
		n.callReturn = nvml.ERROR_UNINITIALIZED
		if err := <-done; err == nil {
			t.Error("Watch with a driver that says UNINITIALIZED: got nil; want an error")
		}
	})
}

// TestWatchWithoutEvents has cards that support no events: polling is all there is.
func TestWatchWithoutEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, gpus.A100_SXM4_40GB)
		n.cards[0].Device.GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
		a := n.adapter()
		scan(t, a)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := a.Watch(ctx, func(gpu.Event) {}); err != nil {
			t.Errorf("got %v; want nil at the end of the context", err)
		}
	})
}
