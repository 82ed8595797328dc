// Command libnvml is the simulated libnvidia-ml.so.1, a C library (go build -buildmode=c-shared).
//
// It guarantees:
//   - It exports every function that nvml.h declares, by its real name, versions included. What package sim simulates
//     is answered from the machine in whose file tree the library lies, wherever that is mounted; the rest returns
//     NOT_SUPPORTED.
//   - Structs with a version are checked as NVML does it, and a null pointer or an unknown handle is INVALID_ARGUMENT.
//     No handle is dereferenced.
//   - It exports nothing else, so that two Go runtimes in one process do not see one another (exports.map).
//   - A call that hangs blocks the thread of its caller, in C.
//
// It must not import anything of Berth but internal/hardware/sim.
package main

//go:generate go run ../internal/genbridge

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "bridge.h"
*/
import "C"

import (
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// main is required of a C library, and never called.
func main() {}

// process is what this process has of NVML. A library of C has state that belongs to the process.
var process = newSession(func() string { return C.GoString(C.libraryFile()) })

//export berthCall
func berthCall(number C.int, arguments *C.uint64_t) (ret C.int) {
	defer func() {
		if recover() != nil {
			ret = C.int(nvml.ERROR_UNKNOWN)
		}
	}()
	return C.int(call{session: process, arguments: (*[maxArguments]uint64)(unsafe.Pointer(arguments))}.dispatch(int(number)))
}

//export nvmlErrorString
func nvmlErrorString(code C.int) *C.char {
	return (*C.char)(process.errorText(nvml.Return(code)))
}

// allocate returns zeroed memory of C, which never moves and is never freed: callers keep its address.
func allocate(size int) unsafe.Pointer { return C.calloc(1, C.size_t(size)) }
