package nvidia_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// waiting makes the event sets of a machine wait (in the bubble's time), and counts those that were created and freed.
func (n *node) waiting() (made, freed *atomic.Int32) {
	made, freed = new(atomic.Int32), new(atomic.Int32)
	n.library.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		made.Add(1)
		return &mock.EventSet{
			FreeFunc: func() nvml.Return { freed.Add(1); return nvml.SUCCESS },
			WaitFunc: func(millis uint32) (nvml.EventData, nvml.Return) {
				if n.callReturn != nvml.SUCCESS {
					return nvml.EventData{}, n.callReturn
				}
				if millis == 0 { // the end of a set: the events that it still holds
					select {
					case data := <-n.late:
						return data, nvml.SUCCESS
					default:
						return nvml.EventData{}, nvml.ERROR_TIMEOUT
					}
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
		n.events, n.late = make(chan nvml.EventData, 4), make(chan nvml.EventData, 1)
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
		first, second := n.gpus[0], n.gpus[1]
		n.events <- nvml.EventData{Device: first.Device, EventType: nvml.EventTypeXidCriticalError, EventData: 79, GpuInstanceId: whole, ComputeInstanceId: whole}
		n.events <- nvml.EventData{Device: second.Device, EventType: nvml.EventTypeXidCriticalError, EventData: 94, GpuInstanceId: 3, ComputeInstanceId: 0}
		n.events <- nvml.EventData{Device: second.Device, EventType: nvml.EventTypeDoubleBitEccError, GpuInstanceId: whole, ComputeInstanceId: whole}
		want := []gpu.Event{
			{GPU: gpu.UUID(first.UUID), Code: gpu.XID(79), GI: gpu.NoInstance, CI: gpu.NoInstance},
			{GPU: gpu.UUID(second.UUID), Code: gpu.XID(94), GI: 3},
			{GPU: gpu.UUID(second.UUID), GI: gpu.NoInstance, CI: gpu.NoInstance},
		}
		for i := range want {
			if diff := cmp.Diff(want[i], <-events); diff != "" {
				t.Errorf("event %d (-want +got):\n%s", i, diff)
			}
		}
		// A GPU whose UUID cannot be read is identified by its handle.
		first.broken = nvml.ERROR_GPU_IS_LOST
		n.events <- nvml.EventData{Device: first.Device, EventType: nvml.EventTypeXidCriticalError, EventData: 79, GpuInstanceId: whole, ComputeInstanceId: whole}
		if got := <-events; got.GPU != gpu.UUID(first.UUID) {
			t.Errorf("XID 79 of a lost GPU: got %+v; want that GPU's", got)
		}
		// Lost GPUs are no longer watched. A new set is created before the old one is freed, whose events are passed on.
		n.late <- nvml.EventData{Device: second.Device, EventType: nvml.EventTypeXidCriticalError, EventData: 31, GpuInstanceId: whole, ComputeInstanceId: whole}
		scan(t, a)
		if got := <-events; got.Code != gpu.XID(31) {
			t.Errorf("an event during the change of sets: got %+v; want XID 31", got)
		}
		time.Sleep(time.Second)
		if made.Load() != 2 || freed.Load() != 1 {
			t.Errorf("%d sets made, %d freed; want 2 and 1", made.Load(), freed.Load())
		}
		if got := len(first.Device.RegisterEventsCalls()); got != 1 {
			t.Errorf("the lost GPU was registered %d times; want once", got)
		}
		// A wait that returns GPU_IS_LOST calls for a scan, and does not spin.
		n.events <- nvml.EventData{EventType: uint64(nvml.ERROR_GPU_IS_LOST) << 32}
		if got := <-events; !got.Code.IsZero() || got.GPU != "" {
			t.Errorf("a spoiled wait: got %+v; want an event of every GPU without XID", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch at its end: %v; want nil", err)
		}
		if freed.Load() != made.Load() {
			t.Errorf("%d sets made, %d freed; want all", made.Load(), freed.Load())
		}
	})
}

// TestWatchEndsWithTheDriver: no event set of a session that ended is freed, which would crash the real library. The test runs
// in real time, since synctest's time does not advance while a goroutine waits for a lock.
func TestWatchEndsWithTheDriver(t *testing.T) {
	n := newNode(t, gpus.A100_SXM4_40GB)
	made, freed := 0, 0
	inWait, answer := make(chan struct{}), make(chan nvml.Return)
	n.library.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		made++
		return &mock.EventSet{
			FreeFunc: func() nvml.Return { freed++; return nvml.SUCCESS },
			WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
				inWait <- struct{}{}
				return nvml.EventData{}, <-answer
			},
		}, nvml.SUCCESS
	}
	a := n.adapter()
	scan(t, a)
	done := make(chan error, 1)
	watch := func() {
		go func() { done <- a.Watch(t.Context(), func(gpu.Event) {}) }()
		<-inWait
	}

	// The driver goes away during a wait.
	watch()
	answer <- nvml.ERROR_UNINITIALIZED
	if err := <-done; err == nil {
		t.Error("a wait that says UNINITIALIZED: Watch returned nil; want an error")
	}
	if made != 1 || freed != 1 {
		t.Errorf("%d sets made, %d freed; want 1 and 1", made, freed)
	}

	// The driver is replaced between two waits: the old set is not freed, and the GPUs are registered again.
	emitting, proceed := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		done <- a.Watch(ctx, func(gpu.Event) { emitting <- struct{}{}; <-proceed })
	}()
	<-inWait
	answer <- nvml.SUCCESS
	<-emitting
	a.Close()
	scan(t, a)
	close(proceed)
	<-inWait
	if made != 3 || freed != 1 {
		t.Errorf("a new driver: %d sets made, %d freed; want 3, and only that of before freed", made, freed)
	}
	cancel()
	answer <- nvml.ERROR_TIMEOUT
	if err := <-done; err != nil || freed != 2 {
		t.Errorf("the end: %v, %d sets freed; want nil and 2", err, freed)
	}
}

// TestWatchWithoutEvents has GPUs that support no events: the watch continues without any.
func TestWatchWithoutEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, gpus.A100_SXM4_40GB)
		n.gpus[0].Device.GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
		a := n.adapter()
		scan(t, a)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := a.Watch(ctx, func(gpu.Event) {}); err != nil {
			t.Errorf("got %v; want nil at the end of the context", err)
		}
	})
}
