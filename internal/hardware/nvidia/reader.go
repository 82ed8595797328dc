package nvidia

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/bound"
)

// defaultCallDeadline is how long a scan waits for one GPU.
const defaultCallDeadline = 5 * time.Second

const codeTimeout = "NVML_TIMEOUT"

// work is the state for reading GPUs. A reader that hangs keeps the work that it began with, and the scan continues with a
// copy, so that late writes of the reader have no effect.
type work struct {
	library nvml.Interface
	proc    tree
	sys     tree
	dev     tree
	log     *slog.Logger
	now     func() time.Time
	session *session
	// known are the GPUs of the last scan by UUID, the Gone ones included.
	known map[gpu.UUID]gpu.GPU
	// caches outlast a session: their values are shown until new ones are read.
	caches map[gpu.UUID]*cache
	links  map[gpu.UUID]*linkReader
	// geometries outlast a session, since they belong to the GPU and the driver's version.
	geometries map[gpu.UUID]*geometry
	// histories are what the checks keep of each GPU.
	histories map[gpu.UUID]*history
	// makeNodes are Deps.MakeNodes, notMade the errors of nodes that could not be created, by path.
	makeNodes []string
	notMade   map[string]string
	// migChanged are the GPUs for which MIGChanged was called.
	migChanged *sync.Map
}

// clone returns a copy that shares the state of each GPU, and no other mutable state.
func (a *work) clone() *work {
	out := *a
	out.known, out.caches, out.links = maps.Clone(a.known), maps.Clone(a.caches), maps.Clone(a.links)
	out.geometries, out.histories, out.notMade = maps.Clone(a.geometries), maps.Clone(a.histories), maps.Clone(a.notMade)
	return &out
}

// gpuReader reads one GPU in a goroutine of its own.
type gpuReader struct {
	adapter *Adapter
	current atomic.Pointer[activity]
	// abandoned is set when the scan no longer waits for the reader.
	abandoned atomic.Bool
	reading   *bound.Pending[struct{}]
}

func (r *gpuReader) at(id gpu.UUID, call string) {
	r.current.Store(&activity{id, call})
	if !r.abandoned.Load() {
		r.adapter.at(id, call)
	}
}

func (r *gpuReader) doing() (gpu.UUID, string) {
	if now := r.current.Load(); now != nil {
		return now.gpu, now.call
	}
	return "", "a call"
}

// inTime runs read in a goroutine of its own, and reports whether it has returned within the deadline.
func (a *Adapter) inTime(read func(w *work, r *gpuReader)) (*gpuReader, bool) {
	r := &gpuReader{adapter: a}
	leave, _ := a.enter(a.session.number, r.doing)
	w := a.work
	r.reading = bound.Start(func() (struct{}, error) { read(w, r); return struct{}{}, nil })
	go func() { // Closing the library may hang too.
		<-r.reading.Done()
		leave()
	}()
	ctx, cancel := context.WithTimeout(context.Background(), a.callDeadline)
	defer cancel()
	if r.reading.Wait(ctx) {
		return r, true
	}
	r.abandoned.Store(true)
	a.work = w.clone()
	id, call := r.doing()
	a.log.Error("GPU did not answer in time; continued the scan without it", "gpu", id, "call", call, "deadline", a.callDeadline)
	return r, false
}

// identifyInTime identifies the GPU at an index; it returns a failure when that hangs.
func (a *Adapter) identifyInTime(index int, expected gpu.UUID) (identity, *failure) {
	r := a.hungIdentity[index]
	if r == nil || r.reading.Returned() {
		delete(a.hungIdentity, index)
		var g identity
		var failed *failure
		inTime := false
		if r, inTime = a.inTime(func(w *work, r *gpuReader) { g, failed = w.identify(index, expected, r.at) }); inTime {
			return g, failed
		}
		a.hungIdentity[index] = r
	}
	_, call := r.doing()
	return identity{}, &failure{index: index, call: call, ret: nvml.ERROR_TIMEOUT, hung: true}
}

// readInTime reads a GPU. When that hangs, it returns the GPU as it was last read.
func (a *Adapter) readInTime(target identity) *scannedGPU {
	r := a.hung[target.uuid]
	if r == nil || r.reading.Returned() {
		delete(a.hung, target.uuid)
		before := a.cache(target.uuid).clone()
		var read *scannedGPU
		inTime := false
		if r, inTime = a.inTime(func(w *work, r *gpuReader) { read = w.readGPU(target, r.at) }); inTime {
			return read
		}
		a.hung[target.uuid] = r
		a.caches[target.uuid] = before
		delete(a.links, target.uuid)
		delete(a.histories, target.uuid)
	}
	_, call := r.doing()
	c := &scannedGPU{gpu: gpu.GPU{
		UUID: target.uuid, PCI: target.pci, DeviceID: target.deviceID, Minor: -1,
		NUMANode: a.sys.numaNode(target.pci), PCIeRoot: a.sys.pcieRoot(target.pci),
	}}
	if last := a.gpus[target.uuid]; last != nil {
		*c = *last
	} else if known, ok := a.known[target.uuid]; ok {
		c.gpu = known
	} else {
		for _, listed := range a.listedGPUs(nil) {
			if listed.UUID == target.uuid {
				c.gpu = listed
			}
		}
		c.gpu.MIG.Unknown = true
	}
	c.gpu.Index, c.gpu.MIG.Unsure = target.index, true
	c.gpu.Health.Partial = true
	c.gpu.Health.Causes = append(withoutReadFailures(c.gpu.Health.Causes), timeoutCause(call, a.callDeadline))
	return c
}

func timeoutCause(call string, deadline time.Duration) gpu.Cause {
	return newCause(codeTimeout, fmt.Sprintf("%s has not returned for more than %v; what is shown is from before", call, deadline))
}

// clone returns a copy that shares no mutable state.
func (m *cache) clone() *cache {
	out := *m
	out.checks = maps.Clone(m.checks)
	return &out
}
