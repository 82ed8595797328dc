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

// work is what reading GPUs takes. A reader that hangs keeps the work that it began with, and the scan goes on with a copy: what
// such a reader writes when it comes back reaches nobody.
type work struct {
	library        nvml.Interface
	proc, sys, dev tree
	log            *slog.Logger
	now            func() time.Time
	session        *session
	// known are the cards of the last scan by UUID, the Gone ones included.
	known map[gpu.UUID]gpu.GPU
	// remembered outlasts a session, since it says what was known.
	remembered map[gpu.UUID]*memories
	links      map[gpu.UUID]*linkReader
	// geometries outlast a session, since they belong to the card and the driver's version.
	geometries map[gpu.UUID]*geometry
	// pulses are what the checks remember of each card.
	pulses map[gpu.UUID]*pulse
	// makeNodes are Deps.MakeNodes, notMade why a node could not be made, by its path.
	makeNodes []string
	notMade   map[string]string
	// migChanged are GPUs of which MIGChanged told.
	migChanged *sync.Map
}

// clone shares what is remembered of each GPU, and nothing else that changes.
func (a *work) clone() *work {
	out := *a
	out.known, out.remembered, out.links = maps.Clone(a.known), maps.Clone(a.remembered), maps.Clone(a.links)
	out.geometries, out.pulses, out.notMade = maps.Clone(a.geometries), maps.Clone(a.pulses), maps.Clone(a.notMade)
	return &out
}

// gpuReader asks one GPU, in a goroutine of its own.
type gpuReader struct {
	adapter *Adapter
	current atomic.Pointer[activity]
	// abandoned is set when the scan no longer waits for the reader.
	abandoned atomic.Bool
	reading   *bound.Pending[struct{}]
}

func (r *gpuReader) at(card gpu.UUID, call string) {
	r.current.Store(&activity{card, call})
	if !r.abandoned.Load() {
		r.adapter.at(card, call)
	}
}

func (r *gpuReader) doing() (gpu.UUID, string) {
	if now := r.current.Load(); now != nil {
		return now.card, now.call
	}
	return "", "a call"
}

// inTime runs read in a goroutine of its own; false when it has not returned in time.
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
	card, call := r.doing()
	a.log.Error("a GPU does not answer in time, the scan goes on without it", "gpu", card, "call", call, "deadline", a.callDeadline)
	return r, false
}

// identifyInTime identifies the GPU at an index, unless that hangs.
func (a *Adapter) identifyInTime(index int, expected gpu.UUID) (found, *failure) {
	r := a.hungIdentity[index]
	if r == nil || r.reading.Returned() {
		delete(a.hungIdentity, index)
		var card found
		var failed *failure
		inTime := false
		if r, inTime = a.inTime(func(w *work, r *gpuReader) { card, failed = w.identify(index, expected, r.at) }); inTime {
			return card, failed
		}
		a.hungIdentity[index] = r
	}
	_, call := r.doing()
	return found{}, &failure{index: index, call: call, ret: nvml.ERROR_TIMEOUT, hung: true}
}

// readInTime reads a GPU, unless that hangs: then it is as it was last seen.
func (a *Adapter) readInTime(who found) *card {
	r := a.hung[who.uuid]
	if r == nil || r.reading.Returned() {
		delete(a.hung, who.uuid)
		before := a.memories(who.uuid).clone()
		var read *card
		inTime := false
		if r, inTime = a.inTime(func(w *work, r *gpuReader) { read = w.readCard(who, r.at) }); inTime {
			return read
		}
		a.hung[who.uuid] = r
		a.remembered[who.uuid] = before
		delete(a.links, who.uuid)
		delete(a.pulses, who.uuid)
	}
	_, call := r.doing()
	c := &card{gpu: gpu.GPU{UUID: who.uuid, PCI: who.pci, DeviceID: who.deviceID, Minor: -1, NUMANode: a.sys.numaNode(who.pci)}}
	if last := a.cards[who.uuid]; last != nil {
		*c = *last
	} else if known, ok := a.known[who.uuid]; ok {
		c.gpu = known
	} else {
		for _, listed := range a.procCards(nil) {
			if listed.UUID == who.uuid {
				c.gpu = listed
			}
		}
		c.gpu.MIG.Unknown = true
	}
	c.gpu.Index, c.gpu.MIG.Unsure = who.index, true
	c.gpu.Health.Partial = true
	c.gpu.Health.Causes = append(withoutDoubts(c.gpu.Health.Causes), timeoutCause(call, a.callDeadline))
	return c
}

func timeoutCause(call string, deadline time.Duration) gpu.Cause {
	return unstamped(codeTimeout, fmt.Sprintf("%s has not returned for more than %v; what is shown is from before", call, deadline))
}

// clone is a copy that shares nothing that changes.
func (m *memories) clone() *memories {
	out := *m
	out.checks = maps.Clone(m.checks)
	return &out
}
