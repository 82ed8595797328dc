package placement

import (
	"fmt"
	"slices"
)

// Policy says how devices (replicas or MIG devices) are distributed over several GPUs.
type Policy string

const (
	// Distributed takes from the GPU from which this request has taken least, then from the least loaded: two devices of
	// one container come from two GPUs where possible.
	Distributed Policy = "distributed"
	// Packed takes from the most loaded GPU until it has no device left.
	Packed Policy = "packed"
)

// Device is a device of which a GPU may have several: a replica or a MIG device.
type Device struct {
	// GPU is the position of the physical GPU, an index of DeviceRequest.Load.
	GPU int
}

// DeviceRequest requests Size of the available devices.
type DeviceRequest struct {
	// Devices are all devices of the resource, ordered by ID. The other fields refer to a device by its index here.
	Devices []Device
	// Available are the devices that may be chosen, in any order; duplicates are ignored. The result includes all of
	// Must, which is a subset of Available.
	Available []int
	Must      []int
	// Load is, per physical GPU, how many devices have other holders (Must not counted).
	Load []int
	Size int
	// Policy is required.
	Policy Policy
	// Buffer, if not nil, provides memory for the call and for the result, which is valid until the buffer is used
	// again. A buffer must not be used by two calls at the same time.
	Buffer *DeviceBuffer
}

// DeviceBuffer is reusable memory for ChooseDevices; the zero value is ready to use. Once it has grown to the node's
// size, a call does not allocate.
type DeviceBuffer struct {
	marks []mark
	next  []int // by device: the next free device of the same GPU
	gpus  []deviceGPU
	heap  []int // GPUs with a free device, the preferred one first
	out   []int
}

type mark uint8

const (
	free mark = iota + 1
	taken
)

type deviceGPU struct {
	load   int // devices with other holders
	picked int // devices chosen in this request
	first  int // the lowest free device, or noDevice
}

const noDevice = -1

// ChooseDevices chooses devices by the request's policy and returns their indices in ascending order. Among equal GPUs it
// prefers the lowest position, and on one GPU the lowest device. With n devices on g GPUs it takes O(n + g + Size log g).
//
// It returns an error when Size is not positive or larger than the number of available devices, when Must is larger than
// Size or not part of Available, when an index or a GPU does not exist, and for an unknown policy.
func ChooseDevices(request DeviceRequest) ([]int, error) {
	buffer := request.Buffer
	if buffer == nil {
		buffer = &DeviceBuffer{}
	}
	missing, err := buffer.prepare(&request)
	if err != nil {
		return nil, fmt.Errorf("choose %d devices: %w", request.Size, err)
	}
	before := moreSpread
	if request.Policy == Packed {
		before = morePacked
	}
	buffer.fillHeap(before)
	for range missing {
		buffer.take(before)
	}
	for i, m := range buffer.marks {
		if m == taken {
			buffer.out = append(buffer.out, i)
		}
	}
	return buffer.out, nil
}

// prepare checks the request, chooses Must, lists the free devices of each GPU, and returns how many remain to be
// chosen.
func (b *DeviceBuffer) prepare(request *DeviceRequest) (int, error) {
	if request.Policy != Distributed && request.Policy != Packed {
		return 0, fmt.Errorf("unknown policy %q, want %q or %q", request.Policy, Distributed, Packed)
	}
	if request.Size <= 0 {
		return 0, fmt.Errorf("the number must be positive")
	}
	b.reset(request)
	for i, device := range request.Devices {
		if device.GPU < 0 || device.GPU >= len(b.gpus) {
			return 0, fmt.Errorf("device %d is on GPU %d, but there are loads for %d GPUs", i, device.GPU, len(b.gpus))
		}
	}
	available, err := b.mark(request.Available, 0, free)
	if err != nil {
		return 0, fmt.Errorf("available %w", err)
	}
	if available < request.Size {
		return 0, fmt.Errorf("only %d are available", available)
	}
	included, err := b.mark(request.Must, free, taken)
	if err != nil {
		return 0, fmt.Errorf("must be included: %w", err)
	}
	if included > request.Size {
		return 0, fmt.Errorf("%d must be included", included)
	}
	b.list(request.Devices)
	return request.Size - included, nil
}

func (b *DeviceBuffer) reset(request *DeviceRequest) {
	n, g := len(request.Devices), len(request.Load)
	b.marks = slices.Grow(b.marks[:0], n)[:n]
	clear(b.marks)
	b.next = slices.Grow(b.next[:0], n)[:n]
	b.gpus = b.gpus[:0]
	for _, load := range request.Load {
		b.gpus = append(b.gpus, deviceGPU{load: load, first: noDevice})
	}
	b.heap = slices.Grow(b.heap[:0], g)
	b.out = slices.Grow(b.out[:0], min(n, request.Size))
}

// mark changes the mark of devices and returns how many it changed; it skips those that already have the new mark.
func (b *DeviceBuffer) mark(indices []int, from, to mark) (int, error) {
	count := 0
	for _, i := range indices {
		switch {
		case i < 0 || i >= len(b.marks):
			return 0, fmt.Errorf("device %d does not exist, there are %d", i, len(b.marks))
		case b.marks[i] == to:
			continue
		case b.marks[i] != from:
			return 0, fmt.Errorf("device %d is not available", i)
		}
		b.marks[i] = to
		count++
	}
	return count, nil
}

// list links the free devices of each GPU in ascending order.
func (b *DeviceBuffer) list(devices []Device) {
	for i, device := range slices.Backward(devices) {
		owner := &b.gpus[device.GPU]
		switch b.marks[i] {
		case free:
			b.next[i], owner.first = owner.first, i
		case taken:
			owner.picked++
		}
	}
}

// preference reports whether to choose from GPU i rather than from GPU j.
type preference func(gpus []deviceGPU, i, j int) bool

func moreSpread(gpus []deviceGPU, i, j int) bool {
	a, b := &gpus[i], &gpus[j]
	if a.picked != b.picked {
		return a.picked < b.picked
	}
	if a.load != b.load {
		return a.load < b.load
	}
	return i < j
}

func morePacked(gpus []deviceGPU, i, j int) bool {
	a, b := &gpus[i], &gpus[j]
	if x, y := a.load+a.picked, b.load+b.picked; x != y {
		return x > y
	}
	return i < j
}

func (b *DeviceBuffer) fillHeap(before preference) {
	for i := range b.gpus {
		if b.gpus[i].first != noDevice {
			b.heap = append(b.heap, i)
		}
	}
	for i := len(b.heap)/2 - 1; i >= 0; i-- {
		b.sink(i, before)
	}
}

// take chooses the lowest free device of the preferred GPU.
func (b *DeviceBuffer) take(before preference) {
	owner := &b.gpus[b.heap[0]]
	b.marks[owner.first] = taken
	owner.first = b.next[owner.first]
	owner.picked++
	if owner.first == noDevice {
		last := len(b.heap) - 1
		b.heap[0] = b.heap[last]
		b.heap = b.heap[:last]
	}
	b.sink(0, before)
}

func (b *DeviceBuffer) sink(i int, before preference) {
	for {
		child := 2*i + 1
		if child >= len(b.heap) {
			return
		}
		if right := child + 1; right < len(b.heap) && before(b.gpus, b.heap[right], b.heap[child]) {
			child = right
		}
		if !before(b.gpus, b.heap[child], b.heap[i]) {
			return
		}
		b.heap[i], b.heap[child] = b.heap[child], b.heap[i]
		i = child
	}
}
