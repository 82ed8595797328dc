package nvidia

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

const (
	// waitMillis bounds one wait for an event, and with it the delay until the end of a context or a line of the kernel log is
	// noticed: a fault must reach the kubelet within 100 ms also where only the log reports it, as during a reset.
	waitMillis = 50
	// suspendedPause is the time between two reads of the kernel log while the driver is closed and the log is the only source
	// of events.
	suspendedPause = 20 * time.Millisecond
	// lostPause is the pause after a wait that returned GPU_IS_LOST, since such waits return at once.
	lostPause = time.Second
	// maxLate bounds what is taken out of an event set before it is freed.
	maxLate = 256
)

// wanted are the events about a GPU's health.
const wanted = nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError |
	nvml.EventTypeGpuUnavailableError | nvml.EventTypeGpuRecoveryAction

var (
	errNoDriver   = errors.New("watch GPU events: no scan has found a driver yet")
	errDriverGone = errors.New("watch GPU events: the driver went away")
)

// watchList are the GPUs to watch, of one session. A new one replaces it when the set of answering GPUs changes.
type watchList struct {
	session int
	handles []handle
	// addresses are those of all GPUs, including the ones that do not answer.
	addresses map[gpu.PCIAddress]gpu.UUID
}

type handle struct {
	uuid   gpu.UUID
	device nvml.Device
}

func (h handle) same(other handle) bool { return h.uuid == other.uuid }

// Watch calls emit for each NVML event, with its XID or without a code for an event that only calls for a scan, and for each
// fault in the kernel log. Time is zero, since NVML reports none. Watch follows the GPUs that scans find. It returns nil when
// ctx ends, and an error when there is no driver or it went away.
func (a *Adapter) Watch(ctx context.Context, emit func(gpu.Event)) error {
	w := &watch{adapter: a}
	defer w.free()
	a.kernelLog.open()
	defer func() {
		if ctx.Err() != nil {
			a.kernelLog.close()
		}
	}()
	// suspended: the adapter has closed the driver, and no scan has listed GPUs to watch since.
	suspended := false
	for ctx.Err() == nil {
		list := a.watched.Load()
		if a.closedByUs.Load() {
			w.list, w.set, suspended = nil, nil, true
		}
		if suspended && (list == nil || a.closedByUs.Load()) {
			a.readKernelLog(emit)
			sleep(ctx, suspendedPause)
			continue
		}
		suspended = false
		if err := w.step(ctx, list, emit); err != nil && !a.closedByUs.Load() {
			return err
		}
	}
	return nil
}

// step waits for one event of the GPUs of list and passes it on.
func (w *watch) step(ctx context.Context, list *watchList, emit func(gpu.Event)) error {
	if list == nil {
		if w.list == nil {
			return errNoDriver
		}
		return errDriverGone
	}
	if list != w.list {
		late, err := w.register(list)
		for _, event := range late {
			emit(event)
		}
		if err != nil {
			return err
		}
	}
	event, pause, err := w.wait()
	if err != nil {
		return err
	}
	if event != nil {
		emit(*event)
	}
	w.adapter.readKernelLog(emit)
	if pause > 0 {
		sleep(ctx, pause)
	}
	return nil
}

// readKernelLog passes on the events in the kernel log of the GPUs of the last scan.
func (a *Adapter) readKernelLog(emit func(gpu.Event)) {
	list := a.addresses.Load()
	if list == nil {
		return
	}
	a.kernelLog.drain(func(n notice) {
		if event, ok := list.convert(n); ok {
			emit(event)
		}
	})
}

// Past returns the faults and resets of the GPUs of the last scan that the kernel log still has, oldest first, from the boot on, and the
// number of the log's last record plus one. Their time is zero. Watch passes on what follows that record. A log that cannot be read has
// none; Watch logs that.
func (a *Adapter) Past() (events []gpu.Event, last uint64) {
	list := a.addresses.Load()
	if list == nil {
		return nil, 0
	}
	log := kernelLog{dev: a.kernelLog.dev, log: a.kernelLog.log, past: true}
	defer log.close()
	for range maxPast {
		more := log.drain(func(n notice) {
			if event, ok := list.convert(n); ok {
				events = append(events, event)
			}
		})
		if !more {
			break
		}
	}
	last = log.after.Load()
	a.kernelLog.after.CompareAndSwap(0, last)
	return events, last
}

// sleep returns after the pause, or when ctx ends.
func sleep(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// watch is an event set with the GPUs that are registered with it.
type watch struct {
	adapter *Adapter
	list    *watchList
	set     nvml.EventSet
	// count is how many GPUs are registered with the set.
	count int
}

// alive runs f while the library cannot be closed, if the session still is list's.
func (w *watch) alive(list *watchList, f func()) bool {
	return w.adapter.within(list, func() (gpu.UUID, string) { return "", "nvmlEventSetWait" }, f)
}

// within runs f in list's session, if that is still the present one. doing returns the call that f is making.
func (a *Adapter) within(list *watchList, doing func() (gpu.UUID, string), f func()) bool {
	if list == nil {
		return false
	}
	leave, ok := a.enter(list.session, doing)
	if !ok {
		return false
	}
	defer leave()
	f()
	return true
}

// register creates a new set before it frees the old one, and returns the events that the old one still held, so that no event
// is lost. An event may be returned twice.
func (w *watch) register(list *watchList) ([]gpu.Event, error) {
	old := *w
	var ret nvml.Return
	alive := w.alive(list, func() {
		w.list, w.count = list, 0
		if w.set, ret = w.adapter.library.EventSetCreate(); ret != nvml.SUCCESS {
			w.set = nil
			return
		}
		for _, h := range list.handles {
			types, ret := h.device.GetSupportedEventTypes()
			if types &= wanted; ret != nvml.SUCCESS || types == 0 {
				continue
			}
			if ret := h.device.RegisterEvents(types, w.set); ret != nvml.SUCCESS {
				w.adapter.log.Warn("Could not register for GPU events; relying on scans", "gpu", h.uuid, "return", codeName(ret))
				continue
			}
			w.count++
		}
	})
	late := old.drain()
	old.free()
	switch {
	case !alive:
		return late, errDriverGone
	case ret == nvml.SUCCESS || unsupported(ret):
		return late, nil // scans still find faults
	}
	return late, fmt.Errorf("watch GPU events: nvmlEventSetCreate returned %s", codeName(ret))
}

// drain returns the events in the set, without waiting.
func (w *watch) drain() []gpu.Event {
	var events []gpu.Event
	for w.set != nil && len(events) < maxLate {
		var event *gpu.Event
		w.alive(w.list, func() {
			if data, ret := w.set.Wait(0); ret == nvml.SUCCESS {
				event = w.convert(data)
			}
		})
		if event == nil {
			break
		}
		events = append(events, *event)
	}
	return events
}

// free frees the set, unless it ended with its session.
func (w *watch) free() {
	if w.set != nil {
		w.alive(w.list, func() { w.set.Free() })
		w.set = nil
	}
}

// wait waits for one event, for a bounded time. pause is how long to wait before the next call.
func (w *watch) wait() (event *gpu.Event, pause time.Duration, err error) {
	if w.set == nil || w.count == 0 {
		return nil, waitMillis * time.Millisecond, nil
	}
	alive := w.alive(w.list, func() {
		data, ret := w.set.Wait(waitMillis)
		switch {
		case ret == nvml.SUCCESS:
			event = w.convert(data)
		case ret == nvml.ERROR_TIMEOUT:
		case ret == nvml.ERROR_GPU_IS_LOST:
			// NVML does not name the GPU. The next scan finds it and changes the list.
			event, pause = &gpu.Event{GI: gpu.NoInstance, CI: gpu.NoInstance}, lostPause
		default:
			err = fmt.Errorf("watch GPU events: nvmlEventSetWait returned %s", codeName(ret))
		}
	})
	if !alive {
		err = errDriverGone
	}
	return event, pause, err
}

// convert converts an NVML event. A GPU whose UUID can no longer be read is identified by its handle; otherwise the event
// concerns every GPU.
func (w *watch) convert(data nvml.EventData) *gpu.Event {
	event := &gpu.Event{GI: instance(data.GpuInstanceId), CI: instance(data.ComputeInstanceId)}
	if data.EventType&nvml.EventTypeXidCriticalError != 0 {
		event.Code = gpu.XID(data.EventData)
	}
	if data.Device == nil {
		return event
	}
	if uuid, ret := data.Device.GetUUID(); ret == nvml.SUCCESS {
		event.GPU = gpu.UUID(uuid)
		return event
	}
	for _, h := range w.list.handles {
		if sameDevice(h.device, data.Device) {
			event.GPU = h.uuid
		}
	}
	return event
}

// convert converts a notice of the kernel log; false when it is about an unknown GPU. A fatal error of an NVSwitch concerns
// every GPU.
func (l *watchList) convert(n notice) (gpu.Event, bool) {
	event := gpu.Event{GI: gpu.NoInstance, CI: gpu.NoInstance, Code: n.code, Reset: n.reset, Log: true, Record: n.record, Detail: n.detail}
	if n.code.Kind == gpu.KindSXID {
		return event, true
	}
	event.GPU = l.addresses[n.pci]
	return event, event.GPU != ""
}

// sameDevice compares handles; an implementation of nvml.Device may be of a type that is not comparable.
func sameDevice(a, b nvml.Device) bool {
	t := reflect.TypeOf(a)
	return t == reflect.TypeOf(b) && t.Comparable() && a == b
}

func instance(id uint32) int {
	if id == ^uint32(0) {
		return gpu.NoInstance
	}
	return int(id)
}
