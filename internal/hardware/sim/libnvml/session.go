package main

import (
	"path/filepath"
	"sync"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// session is NVML in one process: the machine, and the addresses that stand for its handles in C.
type session struct {
	// file returns the path that the library was opened by.
	file func() string

	mu      sync.Mutex
	machine nvml.Interface
	objects map[unsafe.Pointer]any
	handles map[any]unsafe.Pointer
	texts   map[nvml.Return]unsafe.Pointer
}

func newSession(file func() string) *session {
	return &session{file: file, objects: map[unsafe.Pointer]any{}, handles: map[any]unsafe.Pointer{}, texts: map[nvml.Return]unsafe.Pointer{}}
}

// open returns the machine, and looks for it until it was found once.
func (s *session) open() (nvml.Interface, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.machine != nil {
		return s.machine, true
	}
	file, err := filepath.Abs(s.file())
	if err != nil {
		return nil, false
	}
	root, ok := sim.RootOf(file)
	if !ok {
		return nil, false
	}
	machine, err := sim.OpenRoot(root)
	if err != nil {
		return nil, false
	}
	s.machine = machine.NVML()
	return s.machine, true
}

// object returns what an address stands for.
func (s *session) object(address unsafe.Pointer) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[address]
}

// handle returns the address that stands for an object. The simulator has one object per device and instance.
func (s *session) handle(object any) unsafe.Pointer {
	const size = 16 // distinct addresses, aligned as malloc does it
	s.mu.Lock()
	defer s.mu.Unlock()
	address, ok := s.handles[object]
	if !ok {
		address = allocate(size)
		s.handles[object], s.objects[address] = address, object
	}
	return address
}

// forget ends the use of an address whose object was freed.
func (s *session) forget(address unsafe.Pointer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.handles, s.objects[address])
	delete(s.objects, address)
}

// errorText returns NVML's text of a return code, in memory that stays.
func (s *session) errorText(code nvml.Return) unsafe.Pointer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.texts[code]; ok {
		return at
	}
	text, ok := errorTexts()[code]
	if !ok {
		if code, text = nvml.ERROR_UNKNOWN, "Unknown Error"; s.texts[code] != nil {
			return s.texts[code]
		}
	}
	at := allocate(len(text) + 1)
	copy(unsafe.Slice((*byte)(at), len(text)), text)
	s.texts[code] = at
	return at
}

func errorTexts() map[nvml.Return]string {
	return map[nvml.Return]string{
		nvml.SUCCESS:                         "Success",
		nvml.ERROR_UNINITIALIZED:             "Uninitialized",
		nvml.ERROR_INVALID_ARGUMENT:          "Invalid Argument",
		nvml.ERROR_NOT_SUPPORTED:             "Not Supported",
		nvml.ERROR_NO_PERMISSION:             "Insufficient Permissions",
		nvml.ERROR_ALREADY_INITIALIZED:       "Already Initialized",
		nvml.ERROR_NOT_FOUND:                 "Not Found",
		nvml.ERROR_INSUFFICIENT_SIZE:         "Insufficient Size",
		nvml.ERROR_INSUFFICIENT_POWER:        "Insufficient External Power",
		nvml.ERROR_DRIVER_NOT_LOADED:         "Driver Not Loaded",
		nvml.ERROR_TIMEOUT:                   "Timeout",
		nvml.ERROR_IRQ_ISSUE:                 "Interrupt Request Issue",
		nvml.ERROR_LIBRARY_NOT_FOUND:         "NVML Shared Library Not Found",
		nvml.ERROR_FUNCTION_NOT_FOUND:        "Function Not Found",
		nvml.ERROR_CORRUPTED_INFOROM:         "Corrupted infoROM",
		nvml.ERROR_GPU_IS_LOST:               "GPU is lost",
		nvml.ERROR_RESET_REQUIRED:            "GPU requires reset",
		nvml.ERROR_OPERATING_SYSTEM:          "The operating system has blocked the request.",
		nvml.ERROR_LIB_RM_VERSION_MISMATCH:   "RM has detected an NVML/RM version mismatch.",
		nvml.ERROR_IN_USE:                    "In use by another client",
		nvml.ERROR_MEMORY:                    "Insufficient Memory",
		nvml.ERROR_NO_DATA:                   "No data",
		nvml.ERROR_INSUFFICIENT_RESOURCES:    "Insufficient Resources",
		nvml.ERROR_FREQ_NOT_SUPPORTED:        "Frequency not supported",
		nvml.ERROR_ARGUMENT_VERSION_MISMATCH: "Provided version of the argument is not supported",
		nvml.ERROR_DEPRECATED:                "Deprecated",
		nvml.ERROR_NOT_READY:                 "Not Ready",
		nvml.ERROR_GPU_NOT_FOUND:             "No GPUs were found",
		nvml.ERROR_INVALID_STATE:             "Invalid State",
		nvml.ERROR_UNKNOWN:                   "Unknown Error",
	}
}
