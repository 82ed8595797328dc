package sim

import (
	"path/filepath"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/fsnotify/fsnotify"
)

// anyInstance is NVML's value for "not a MIG instance".
const anyInstance = 0xFFFFFFFF

// pollInterval is how often a waiting set checks the log when no file notification arrives.
const pollInterval = 100 * time.Millisecond

// eventSet reads the event log from the moment it was created. Each set has its own offset in the log, so that every
// set sees every event.
type eventSet struct {
	unsupportedEventSet
	lib  *library
	path string
	// changed delivers changes in the directory; nil when no inotify watch could be created.
	changed *fsnotify.Watcher

	mu         sync.Mutex
	freed      bool
	offset     int64
	ready      []queued
	registered map[string][]registration
}

// registration is one call of RegisterEvents: the event types, and the offset in the log from which they are delivered.
type registration struct {
	types uint64
	from  int64
}

var _ nvml.EventSet = (*eventSet)(nil)

func (l *library) EventSetCreate() (nvml.EventSet, nvml.Return) {
	if _, ret := l.enter("EventSetCreate"); ret != nvml.SUCCESS {
		return nil, ret
	}
	path := filepath.Join(l.machine.root, eventsFile)
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		// It watches the directory, not the log alone: a change of state.json (driver unloaded) must wake a waiting set
		// too.
		if err = watcher.Add(filepath.Join(l.machine.root, machineFolder)); err != nil {
			watcher.Close()
		}
	}
	if err != nil {
		watcher = nil // no inotify instance is free: rely on the poll interval
	}
	end, err := logEnd(path)
	if err != nil {
		if watcher != nil {
			watcher.Close()
		}
		return nil, nvml.ERROR_UNKNOWN
	}
	set := &eventSet{lib: l, path: path, changed: watcher, offset: end, registered: map[string][]registration{}}
	set.answer = func(call string) nvml.Return {
		_, ret := l.enter(call)
		return orUnsupported(ret)
	}
	return set, nvml.SUCCESS
}

// Free closes the set's watch; it may be called more than once.
func (s *eventSet) Free() nvml.Return {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.freed {
		s.freed = true
		if s.changed != nil {
			s.changed.Close()
		}
	}
	return nvml.SUCCESS
}

// supportedEvents returns the event types that a GPU can report.
func supportedEvents(c *gpuHardware) uint64 {
	types := uint64(nvml.EventTypeSingleBitEccError | nvml.EventTypeDoubleBitEccError | nvml.EventTypePState |
		nvml.EventTypeXidCriticalError | nvml.EventTypeClock)
	if c.Geometry != nil {
		types |= nvml.EventMigConfigChange
	}
	return types
}

func (d *device) GetSupportedEventTypes() (uint64, nvml.Return) {
	return attribute(d, "GetSupportedEventTypes", func(c snapshot) uint64 { return supportedEvents(c.gpu) })
}

// RegisterEvents adds the GPU to a set; earlier events are not delivered.
func (d *device) RegisterEvents(types uint64, set nvml.EventSet) nvml.Return {
	c, ret := d.enter("RegisterEvents")
	if ret != nvml.SUCCESS {
		return ret
	}
	own, ok := set.(*eventSet)
	switch {
	case !ok || own.lib != d.lib:
		return nvml.ERROR_INVALID_ARGUMENT
	case types&^supportedEvents(c.gpu) != 0:
		return nvml.ERROR_NOT_SUPPORTED
	}
	end, err := logEnd(own.path)
	if err != nil {
		return nvml.ERROR_UNKNOWN
	}
	own.mu.Lock()
	defer own.mu.Unlock()
	own.registered[c.gpu.UUID] = append(own.registered[c.gpu.UUID], registration{types: types, from: end})
	return nvml.SUCCESS
}

// typeOf returns NVML's type and data of an event; the type is 0 for events that NVML does not report.
func typeOf(e event) (kind, data uint64) {
	switch e.Type {
	case eventXID:
		return nvml.EventTypeXidCriticalError, e.XID
	case eventDoubleBit:
		return nvml.EventTypeDoubleBitEccError, 0
	case eventMIG:
		return nvml.EventMigConfigChange, 0
	}
	return 0, 0
}

// wants reports whether the set was registered for the event when it happened.
func (s *eventSet) wants(q queued) bool {
	kind, _ := typeOf(q.event)
	for _, r := range s.registered[q.event.GPU] {
		if r.types&kind != 0 && q.end > r.from {
			return true
		}
	}
	return false
}

// next returns the oldest event that was not delivered yet.
func (s *eventSet) next() (event, bool, nvml.Return) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freed {
		return event{}, false, nvml.ERROR_INVALID_ARGUMENT
	}
	if len(s.ready) == 0 {
		found, end, err := readEvents(s.path, s.offset)
		if err != nil {
			return event{}, false, nvml.ERROR_UNKNOWN
		}
		s.offset = end
		s.ready = found
	}
	for len(s.ready) > 0 {
		first := s.ready[0]
		s.ready = s.ready[1:]
		if s.wants(first) {
			return first.event, true, nvml.SUCCESS
		}
	}
	return event{}, false, nvml.SUCCESS
}

// Wait blocks until an event arrives, or returns ERROR_TIMEOUT after timeout milliseconds. When the driver is unloaded
// it returns ERROR_DRIVER_NOT_LOADED.
func (s *eventSet) Wait(timeout uint32) (nvml.EventData, nvml.Return) {
	deadline := time.NewTimer(time.Duration(timeout) * time.Millisecond)
	defer deadline.Stop()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	if _, ret := s.lib.enter("EventSetWait"); ret != nvml.SUCCESS {
		return nvml.EventData{}, ret
	}
	for {
		if _, ret := s.lib.loaded(); ret != nvml.SUCCESS {
			return nvml.EventData{}, ret
		}
		e, ok, ret := s.next()
		if ret != nvml.SUCCESS {
			return nvml.EventData{}, ret
		}
		if ok {
			return s.data(e), nvml.SUCCESS
		}
		select {
		case <-deadline.C:
			return nvml.EventData{}, nvml.ERROR_TIMEOUT
		case <-tick.C:
		case <-s.wakes():
		case <-s.overflows():
		}
	}
}

// wakes returns the watch's events; without a watch, a nil channel, which is never ready.
func (s *eventSet) wakes() <-chan fsnotify.Event {
	if s.changed == nil {
		return nil
	}
	return s.changed.Events
}

// overflows returns the watch's errors, which must be received too: the watch stops at the first unread error.
func (s *eventSet) overflows() <-chan error {
	if s.changed == nil {
		return nil
	}
	return s.changed.Errors
}

// data converts an event to NVML's form.
func (s *eventSet) data(e event) nvml.EventData {
	kind, datum := typeOf(e)
	out := nvml.EventData{EventType: kind, EventData: datum, GpuInstanceId: anyInstance, ComputeInstanceId: anyInstance}
	for slot := range s.lib.machine.hw.GPUs {
		if s.lib.machine.hw.GPUs[slot].UUID == e.GPU {
			out.Device = s.lib.device(slot)
		}
	}
	if e.GI != nil && e.CI != nil {
		out.GpuInstanceId, out.ComputeInstanceId = *e.GI, *e.CI
	}
	return out
}
