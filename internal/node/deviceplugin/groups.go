package deviceplugin

import (
	"slices"
	"sync"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// groupChooser chooses among devices of which one GPU may have several: replicas, MIG devices, and whole GPUs beside them. A group
// is the devices of one GPU, or the replicas of one device. It never changes.
type groupChooser struct {
	policy placement.Policy
	// gpuOf and deviceOf are numbers by device: of its GPU, and of the whole GPU or MIG device that it is or is a replica of.
	// Both count in the order of the devices.
	gpuOf    []placement.Device
	deviceOf []placement.Device
	// perGPU and perDevice count the offered devices of each.
	perGPU    []int
	perDevice []int
	// nested are the GPUs that have several MIG devices of which some are shared.
	nested []int
	// gone marks the devices that are no longer offered, mps the replicas through MPS.
	gone   []bool
	mps    []bool
	anyMPS bool
	// buffers are of type *placement.DeviceBuffer.
	buffers sync.Pool
}

func newGroupChooser(devices []device, policy placement.Policy) *groupChooser {
	s := &groupChooser{policy: placement.Distributed, gone: make([]bool, len(devices)), mps: make([]bool, len(devices))}
	if policy == placement.Packed {
		s.policy = policy
	}
	gpus, whole := map[gpu.UUID]int{}, map[gpu.UUID]int{}
	for i := range devices {
		d := &devices[i]
		onGPU := numberOf(gpus, d.Key.GPU, &s.perGPU)
		device := numberOf(whole, d.Key.Device(), &s.perDevice)
		s.gpuOf, s.deviceOf = append(s.gpuOf, placement.Device{GPU: onGPU}), append(s.deviceOf, placement.Device{GPU: device})
		if s.gone[i] = !d.vanished.IsZero(); !s.gone[i] {
			s.perGPU[onGPU]++
			s.perDevice[device]++
		}
		s.mps[i] = d.Mode == offer.MPS
		s.anyMPS = s.anyMPS || s.mps[i]
	}
	for i := range devices {
		onGPU, device := s.gpuOf[i].GPU, s.deviceOf[i].GPU
		if s.perDevice[device] > 1 && s.perGPU[onGPU] > s.perDevice[device] && !slices.Contains(s.nested, onGPU) {
			s.nested = append(s.nested, onGPU)
		}
	}
	s.buffers.New = func() any { return &placement.DeviceBuffer{} }
	return s
}

// numberOf returns the number of a name, and appends a count for one that is new.
func numberOf(numbers map[gpu.UUID]int, name gpu.UUID, counts *[]int) int {
	n, known := numbers[name]
	if !known {
		n = len(*counts)
		numbers[name] = n
		*counts = append(*counts, 0)
	}
	return n
}

// choose completes must with devices of pool to size; both are ascending and have nothing in common. A container can be the client of
// one MPS daemon only, and each GPU has its own, so replicas through MPS are chosen from one GPU where that is possible.
func (s *groupChooser) choose(must, pool []int, size int) ([]int, bool) {
	if s.anyMPS && size > 1 {
		if chosen, ok := s.chooseOneDaemon(must, pool, size); ok {
			return chosen, true
		}
	}
	return s.byPolicy(must, pool, size)
}

// fitsOneGPU reports whether size devices can be chosen so that no MPS replica is combined with a device of another GPU.
func (s *groupChooser) fitsOneGPU(must, pool []int, size int) bool {
	if !s.anyMPS || size <= 1 {
		return true
	}
	_, ok := s.chooseOneDaemon(must, pool, size)
	return ok
}

// chooseOneDaemon chooses devices without MPS if they suffice, and otherwise replicas through MPS of one GPU.
func (s *groupChooser) chooseOneDaemon(must, pool []int, size int) ([]int, bool) {
	isMPS := func(i int) bool { return s.mps[i] }
	if others := slices.DeleteFunc(slices.Clone(pool), isMPS); !slices.ContainsFunc(must, isMPS) && len(must)+len(others) >= size {
		return s.byPolicy(must, others, size)
	}
	load, _ := s.load(must, pool)
	enough := make([]int, len(s.perGPU))
	for _, i := range pool {
		if s.mps[i] {
			enough[s.gpuOf[i].GPU]++
		}
	}
	best := -1
	for onGPU, n := range enough {
		elsewhere := func(i int) bool { return s.gpuOf[i].GPU != onGPU || !s.mps[i] }
		if slices.ContainsFunc(must, elsewhere) || len(must)+n < size {
			continue
		}
		if best < 0 || s.policy == placement.Distributed && load[onGPU] < load[best] || s.policy == placement.Packed && load[onGPU] > load[best] {
			best = onGPU
		}
	}
	if best < 0 {
		return nil, false
	}
	mine := slices.DeleteFunc(slices.Clone(pool), func(i int) bool { return s.gpuOf[i].GPU != best || !s.mps[i] })
	return merge(must, mine[:size-len(must)]), true
}

// load counts the devices of each GPU, and of each whole device, that are in neither must nor pool: other containers have them.
func (s *groupChooser) load(must, pool []int) (gpus, devices []int) {
	gpus, devices = slices.Clone(s.perGPU), slices.Clone(s.perDevice)
	for _, list := range [][]int{must, pool} {
		for _, i := range list {
			if !s.gone[i] {
				gpus[s.gpuOf[i].GPU]--
				devices[s.deviceOf[i].GPU]--
			}
		}
	}
	return gpus, devices
}

// byPolicy chooses by policy among the GPUs, and by the same policy among the MIG devices of a GPU that are shared.
func (s *groupChooser) byPolicy(must, pool []int, size int) ([]int, bool) {
	buffer := s.buffers.Get().(*placement.DeviceBuffer)
	defer s.buffers.Put(buffer)
	gpus, devices := s.load(must, pool)
	request := placement.DeviceRequest{
		Devices: s.gpuOf, Available: slices.Concat(must, pool), Must: must,
		Load: gpus, Size: size, Policy: s.policy, Buffer: buffer,
	}
	chosen, err := placement.ChooseDevices(request)
	if err != nil {
		return nil, false
	}
	chosen = slices.Clone(chosen)
	request.Devices, request.Load = s.deviceOf, devices
	for _, onGPU := range s.nested {
		elsewhere := func(i int) bool { return s.gpuOf[i].GPU != onGPU }
		others := slices.DeleteFunc(slices.Clone(chosen), func(i int) bool { return !elsewhere(i) })
		if request.Size = len(chosen) - len(others); request.Size == 0 {
			continue
		}
		request.Available = slices.DeleteFunc(slices.Concat(must, pool), elsewhere)
		request.Must = slices.DeleteFunc(slices.Clone(must), elsewhere)
		mine, err := placement.ChooseDevices(request)
		if err != nil {
			return nil, false
		}
		chosen = merge(others, mine)
	}
	return chosen, true
}
