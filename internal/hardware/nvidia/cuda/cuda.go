// Package cuda calls the part of CUDA's driver API that proves that a GPU computes: it loads libcuda.so.1 at run time and adds two
// vectors with a kernel that the driver compiles from PTX text. Neither CUDA's headers nor its tools are needed.
//
// It guarantees that an error names the call and its result (NVIDIA's "CUDA Driver API", type CUresult), and that what a call has
// allocated is freed. A call that hangs cannot be ended; Calling names it. A library stays loaded for the life of the process.
//
// It must not import any package of Berth: what the calls are for is decided above.
package cuda

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "cuda.h"
import "C"

import (
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unsafe"
)

// LibraryName is the name under which programs load the library.
const LibraryName = "libcuda.so.1"

// Library is a loaded libcuda.so.1. One call is made at a time; File and Calling may be called at the same time.
type Library struct{ c *C.berth_cuda }

// Open loads a library: a path, or a name that the dynamic loader looks up.
func Open(file string) (*Library, error) {
	name := C.CString(file)
	defer C.free(unsafe.Pointer(name))
	var reason *C.char
	c := C.berth_cuda_open(name, &reason)
	if c == nil {
		defer C.free(unsafe.Pointer(reason))
		return nil, fmt.Errorf("load %s: %s", file, C.GoString(reason))
	}
	return &Library{c: c}, nil
}

// File returns the file that was loaded, as the dynamic loader found it.
func (l *Library) File() string { return C.GoString(C.berth_cuda_file(l.c)) }

// Calling names the call that has not returned yet; it is empty when there is none.
func (l *Library) Calling() string { return C.GoString(C.berth_cuda_calling(l.c)) }

// Error is a call that failed.
type Error struct {
	// Call is the function's name, such as cuInit.
	Call string
	// Number is the CUresult, and Name its name; empty when the library has none for it.
	Number int
	Name   string
}

// Error names the call and the result.
func (e *Error) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("%s returned %d", e.Call, e.Number)
	}
	return fmt.Sprintf("%s returned %d (%s)", e.Call, e.Number, e.Name)
}

// Result returns the CUresult.
func (e *Error) Result() int { return e.Number }

// check makes an error of a result other than CUDA_SUCCESS.
func (l *Library) check(call string, result C.int) error {
	if result == 0 {
		return nil
	}
	failed := &Error{Call: call, Number: int(result)}
	if name := C.berth_cuda_name(l.c, result); name != nil {
		failed.Name = C.GoString(name)
	}
	return failed
}

// Init initialises CUDA for this process.
func (l *Library) Init() error { return l.check("cuInit", C.berth_cuda_init(l.c)) }

// Version returns the newest version of CUDA that the library has, as 1000*major + 10*minor.
func (l *Library) Version() (int, error) {
	var version C.int
	err := l.check("cuDriverGetVersion", C.berth_cuda_version(l.c, &version))
	return int(version), err
}

// Count returns the number of devices that this process can use.
func (l *Library) Count() (int, error) {
	var count C.int
	err := l.check("cuDeviceGetCount", C.berth_cuda_count(l.c, &count))
	return int(count), err
}

// maxName is the space for the name of a device.
const maxName = 256

// Device returns the UUID of a device, GPU-... or MIG-..., and its name. CUDA says that a device is a MIG device by its name only, as in
// "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
func (l *Library) Device(index int) (uuid, name string, err error) {
	var number [16]C.uchar
	var text [maxName]C.char
	var call *C.char
	result := C.berth_cuda_device(l.c, C.int(index), &number[0], &text[0], maxName, &call)
	if result != 0 {
		return "", "", l.check(C.GoString(call), result)
	}
	name = C.GoString(&text[0])
	return formatUUID(C.GoBytes(unsafe.Pointer(&number[0]), C.int(len(number))), name), name, nil
}

// formatUUID writes the UUID as NVML does.
func formatUUID(number []byte, name string) string {
	digits, prefix := hex.EncodeToString(number), "GPU-"
	if strings.Contains(name, " MIG ") {
		prefix = "MIG-"
	}
	return prefix + strings.Join([]string{digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]}, "-")
}

// Add adds two vectors of the same length on a device: it copies them to the GPU, runs a kernel, and copies the sum back.
func (l *Library) Add(index int, a, b []uint32) ([]uint32, error) {
	if len(a) == 0 || len(a) != len(b) {
		return nil, errors.New("add vectors: want two of the same length")
	}
	// A context belongs to the thread that made it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	text, name := C.CString(kernel), C.CString(kernelName)
	defer C.free(unsafe.Pointer(text))
	defer C.free(unsafe.Pointer(name))
	sum := make([]uint32, len(a))
	var call *C.char
	result := C.berth_cuda_add(l.c, C.int(index), text, name, (*C.uint32_t)(&a[0]), (*C.uint32_t)(&b[0]), (*C.uint32_t)(&sum[0]),
		C.uint32_t(len(a)), &call)
	if result != 0 {
		return nil, l.check(C.GoString(call), result)
	}
	return sum, nil
}
