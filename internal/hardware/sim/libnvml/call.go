package main

import (
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/hardware/sim"
)

const (
	// maxArguments bounds the arguments of a function of NVML; its C function passes as many as it has.
	maxArguments = 12
	// maxText bounds a string that a caller passes.
	maxText = 256
	// fixedText is the size of a buffer whose size is not passed (NVML_GSP_FIRMWARE_VERSION_BUF_SIZE).
	fixedText = 0x40
)

// call is one call from C. The arguments are the caller's memory.
type call struct {
	*session
	arguments *[maxArguments]uint64
}

// number returns an argument that is a number.
func (c call) number(at int) uint64 { return c.arguments[at] }

// pointer returns an argument that is an address.
func (c call) pointer(at int) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&c.arguments[at]))
}

func (c call) null(at int) bool { return c.arguments[at] == 0 }

// text returns a string of C.
func (c call) text(at int) string {
	all := unsafe.Slice((*byte)(c.pointer(at)), maxText)
	for i := range all {
		if all[i] == 0 {
			return string(all[:i])
		}
	}
	return ""
}

// putText writes a string with its end into a buffer of that size.
func (c call) putText(at int, text string, size uint64) nvml.Return {
	if uint64(len(text)) >= size {
		return nvml.ERROR_INSUFFICIENT_SIZE
	}
	copy(unsafe.Slice((*byte)(c.pointer(at)), size), append([]byte(text), 0))
	return nvml.SUCCESS
}

// put writes a value where an argument points.
func put[T any](c call, at int, value T) { *(*T)(c.pointer(at)) = value }

// get reads the value that an argument points to.
func get[T any](c call, at int) T { return *(*T)(c.pointer(at)) }

func flag(is bool) uint32 {
	if is {
		return 1
	}
	return 0
}

// putHandle writes the handle of an object.
func (c call) putHandle(at int, object any) {
	put(c, at, c.handle(object))
}

// library returns the machine, or a library that is not initialised when there is none.
func (c call) library() nvml.Interface {
	if machine, ok := c.open(); ok {
		return machine
	}
	return sim.NoMachine()
}

// handleOf returns the object of a handle; an unknown one is INVALID_ARGUMENT, unless the library does not work at all.
func handleOf[T any](c call, at int) (T, nvml.Return) {
	object, ok := c.object(c.pointer(at)).(T)
	if ok {
		return object, nvml.SUCCESS
	}
	if ret := sim.Unsupported(c.library(), ""); ret != nvml.ERROR_NOT_SUPPORTED {
		return object, ret
	}
	return object, nvml.ERROR_INVALID_ARGUMENT
}

// unsupported returns the result of a function that is not simulated, of a kind of handle or, when that is empty, of
// the library.
func (c call) unsupported(kind, name string) nvml.Return {
	if kind == "" {
		return sim.Unsupported(c.library(), name)
	}
	on, ret := handleOf[any](c, 0)
	if ret != nvml.SUCCESS {
		return ret
	}
	return sim.Unsupported(on, name)
}

// versionOf is the version of a struct as nvml.h computes it: its size, and its number in the highest byte.
func versionOf[T any](number uint32) uint32 {
	var one T
	return uint32(unsafe.Sizeof(one)) | number<<24
}

// versioned reports whether the struct that an argument points to has that version.
func versioned[T any](c call, at int, number uint32) bool {
	return get[uint32](c, at) == versionOf[T](number)
}

// putList writes values into an array whose size a pointer to a number has, and how many there are into that number.
func putList[T any](c call, array, count int, values []T) nvml.Return {
	if c.null(count) {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	size := get[uint32](c, count)
	put(c, count, uint32(len(values)))
	switch {
	case uint64(len(values)) > uint64(size):
		return nvml.ERROR_INSUFFICIENT_SIZE
	case len(values) == 0:
		return nvml.SUCCESS
	case c.null(array):
		return nvml.ERROR_INVALID_ARGUMENT
	}
	copy(unsafe.Slice((*T)(c.pointer(array)), len(values)), values)
	return nvml.SUCCESS
}

// putAll is putList without a size that the caller passed: the array is large enough by contract.
func putAll[T any](c call, array, count int, values []T) nvml.Return {
	if c.null(count) {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if !c.null(array) {
		copy(unsafe.Slice((*T)(c.pointer(array)), len(values)), values)
	}
	put(c, count, uint32(len(values)))
	return nvml.SUCCESS
}

// addresses returns the handles of objects.
func addresses[T any](c call, objects []T) []unsafe.Pointer {
	var out []unsafe.Pointer
	for _, one := range objects {
		out = append(out, c.handle(one))
	}
	return out
}
