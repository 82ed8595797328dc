package sim

import (
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// library is one process's handle on the simulated libnvidia-ml. Init and Shutdown are reference-counted, as in
// go-nvml.
type library struct {
	unsupportedLibrary
	machine *Machine

	mu    sync.Mutex
	uses  int
	loads uint64 // the driver load that Init saw
	// version is the version of the driver whose library this is; empty when the machine could not be read.
	version string
	devices map[int]*device
	// instances are the handles of MIG devices and instances: one each, as in NVML.
	instances map[instanceKey]any
	// made counts the calls by name; seen counts the calls for which an injected error was looked up, by the error's
	// ID.
	made map[string]int
	seen map[uint64]int
}

var (
	_ nvml.Interface         = (*library)(nil)
	_ nvml.ExtendedInterface = (*library)(nil)
)

// NVML returns a new library handle, as loading libnvidia-ml does; Init must be called first. Handles of GPUs are
// comparable: the same GPU of the same library has the same handle. Changes of the machine are visible at once,
// including removed and added GPUs. After the driver was unloaded, calls return ERROR_UNINITIALIZED until Init is
// called again.
func (m *Machine) NVML() nvml.Interface {
	l := &library{machine: m, devices: map[int]*device{}, instances: map[instanceKey]any{}, made: map[string]int{}, seen: map[uint64]int{}}
	if v, err := m.view(); err == nil {
		l.version = v.hw.Driver
	}
	l.answer = func(call string) nvml.Return {
		_, ret := l.enter(call)
		return orUnsupported(ret)
	}
	return l
}

// orUnsupported is the return code of a call that is not simulated: NOT_SUPPORTED unless the call fails anyway.
func orUnsupported(ret nvml.Return) nvml.Return {
	if ret == nvml.SUCCESS {
		return nvml.ERROR_NOT_SUPPORTED
	}
	return ret
}

// Init opens the driver. Without a driver it returns ERROR_LIBRARY_NOT_FOUND, because the driver's libraries are
// missing too.
func (l *library) Init() nvml.Return {
	v, err := l.machine.view()
	if err != nil {
		return nvml.ERROR_UNKNOWN
	}
	if v.st.DriverGone {
		return nvml.ERROR_LIBRARY_NOT_FOUND
	}
	if l.version != "" && l.version != v.hw.Driver {
		return nvml.ERROR_LIB_RM_VERSION_MISMATCH
	}
	l.note("Init")
	if ret := l.transientAnswer(v.st.Transients, "Init"); ret != nvml.SUCCESS {
		return ret
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.uses++
	l.loads = v.st.DriverLoads
	return nvml.SUCCESS
}

func (l *library) InitWithFlags(uint32) nvml.Return { return l.Init() }

func (l *library) Shutdown() nvml.Return {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.uses == 0 {
		return nvml.ERROR_UNINITIALIZED
	}
	l.uses--
	return nvml.SUCCESS
}

// enter starts every call of the library. It returns the state to read, or the error that the call returns.
func (l *library) enter(call string) (*view, nvml.Return) {
	l.note(call)
	v, ret := l.loaded()
	if ret == nvml.SUCCESS {
		ret = l.transientAnswer(v.st.Transients, call)
	}
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	return v, nvml.SUCCESS
}

// loaded returns the machine's state while the driver that Init saw is loaded.
func (l *library) loaded() (*view, nvml.Return) {
	l.mu.Lock()
	uses, loads := l.uses, l.loads
	l.mu.Unlock()
	if uses == 0 {
		return nil, nvml.ERROR_UNINITIALIZED
	}
	v, err := l.machine.view()
	switch {
	case err != nil:
		return nil, nvml.ERROR_UNKNOWN
	case v.st.DriverGone:
		return nil, nvml.ERROR_DRIVER_NOT_LOADED
	case v.st.DriverLoads != loads:
		return nil, nvml.ERROR_UNINITIALIZED
	}
	return v, nvml.SUCCESS
}

// hangTick is how often a hung call checks whether the fault was cleared.
const hangTick = 10 * time.Millisecond

// enterGPU starts a call that concerns the GPU in a slot: it applies hangs and injected errors, and fails for a lost or
// removed GPU.
func (l *library) enterGPU(call string, slot int) (*view, nvml.Return) {
	l.note(call)
	started := time.Now()
	for {
		v, ret := l.loaded()
		if ret != nvml.SUCCESS {
			return nil, ret
		}
		c := &v.st.GPUs[slot]
		if c.hangs(call, time.Since(started)) {
			time.Sleep(hangTick)
			continue
		}
		if c.Removed || c.Lost {
			return v, nvml.ERROR_GPU_IS_LOST
		}
		if ret := l.transientAnswer(c.Transients, call); ret != nvml.SUCCESS {
			return nil, ret
		}
		return v, nvml.SUCCESS
	}
}

func (c *gpuState) hangs(call string, waited time.Duration) bool {
	for _, h := range c.Hangs {
		if (h.Call == call || h.Call == AllCalls) && (h.For == 0 || waited < h.For) {
			return true
		}
	}
	return false
}

// device returns the library's handle of a slot; there is one per slot.
func (l *library) device(slot int) *device {
	l.mu.Lock()
	defer l.mu.Unlock()
	d, ok := l.devices[slot]
	if !ok {
		d = newDevice(l, slot)
		l.devices[slot] = d
	}
	return d
}

// instanceKey names a MIG device or instance: its GPU instance alone (ci is -1), or a compute instance, of which there is a handle and
// a MIG device.
type instanceKey struct {
	slot   int
	gi     int
	ci     int
	device bool
}

// handleOf is the library's one handle of a MIG device or instance.
func handleOf[T any](l *library, key instanceKey, create func() T) T {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.instances[key].(T); ok {
		return known
	}
	created := create()
	l.instances[key] = created
	return created
}

func (l *library) DeviceGetCount() (int, nvml.Return) {
	v, ret := l.enter("DeviceGetCount")
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	return len(v.order), nvml.SUCCESS
}

func (l *library) DeviceGetHandleByIndex(index int) (nvml.Device, nvml.Return) {
	v, ret := l.loaded()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	if index < 0 || index >= len(v.order) {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	return l.open("DeviceGetHandleByIndex", v.order[index])
}

// open implements the DeviceGetHandleBy… calls; they fail for a lost GPU.
func (l *library) open(call string, slot int) (nvml.Device, nvml.Return) {
	if _, ret := l.enterGPU(call, slot); ret != nvml.SUCCESS {
		return nil, ret
	}
	return l.device(slot), nvml.SUCCESS
}

func (l *library) DeviceGetHandleByUUID(uuid string) (nvml.Device, nvml.Return) {
	const call = "DeviceGetHandleByUUID"
	v, ret := l.loaded()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	for _, slot := range v.order {
		if v.hw.GPUs[slot].UUID == uuid {
			return l.open(call, slot)
		}
		for _, m := range migDevices(&v.hw.GPUs[slot], &v.st.GPUs[slot]) {
			if m.uuid == uuid {
				if _, ret := l.enterGPU(call, slot); ret != nvml.SUCCESS {
					return nil, ret
				}
				return newMIGDevice(l, slot, m.gi.ID, m.ci.ID), nvml.SUCCESS
			}
		}
	}
	return nil, nvml.ERROR_NOT_FOUND
}

func (l *library) DeviceGetHandleByPciBusId(busID string) (nvml.Device, nvml.Return) {
	v, ret := l.loaded()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	for _, slot := range v.order {
		if sameBusID(v.hw.GPUs[slot].PCI, busID) {
			return l.open("DeviceGetHandleByPciBusId", slot)
		}
	}
	return nil, nvml.ERROR_NOT_FOUND
}

func (l *library) DeviceGetHandleBySerial(serial string) (nvml.Device, nvml.Return) {
	v, ret := l.loaded()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	for _, slot := range v.order {
		if v.hw.GPUs[slot].Serial == serial {
			return l.open("DeviceGetHandleBySerial", slot)
		}
	}
	return nil, nvml.ERROR_NOT_FOUND
}

func (l *library) SystemGetDriverVersion() (string, nvml.Return) {
	v, ret := l.enter("SystemGetDriverVersion")
	if ret != nvml.SUCCESS {
		return "", ret
	}
	return v.hw.Driver, nvml.SUCCESS
}

func (l *library) SystemGetNVMLVersion() (string, nvml.Return) {
	v, ret := l.enter("SystemGetNVMLVersion")
	if ret != nvml.SUCCESS {
		return "", ret
	}
	return v.hw.NVML, nvml.SUCCESS
}

func (l *library) SystemGetCudaDriverVersion() (int, nvml.Return) {
	v, ret := l.enter("SystemGetCudaDriverVersion")
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	return v.hw.CUDA, nvml.SUCCESS
}

func (l *library) SystemGetCudaDriverVersion_v2() (int, nvml.Return) {
	return l.SystemGetCudaDriverVersion()
}

func (l *library) UnitGetCount() (int, nvml.Return) {
	_, ret := l.enter("UnitGetCount")
	return 0, ret
}

// ErrorString returns NVML's description of a return code.
func (l *library) ErrorString(ret nvml.Return) string { return ret.Error() }

func (l *library) Extensions() nvml.ExtendedInterface { return l }

// LookupSymbol finds every symbol of NVML except those whose Go calls end in the C library (see the package comment),
// so that callers which check first use the alternative.
func (l *library) LookupSymbol(symbol string) error {
	if !strings.HasPrefix(symbol, "nvml") || strings.HasSuffix(symbol, "V") {
		return nvml.ERROR_FUNCTION_NOT_FOUND
	}
	if v, err := l.machine.view(); err == nil && v.hw.lacks(symbol) {
		return nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return nil
}
