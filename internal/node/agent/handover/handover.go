package handover

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// FileName is the name of the file with the GPUs that ResourceSlices may have.
const FileName = "dra-published.json"

const (
	// source is the source of the problems, and fileSource of those with the file.
	source     = "handover"
	fileSource = "handover-file"
)

// Kubelet says what it counts; kubelet.PodResources does.
type Kubelet interface {
	Allocatable(context.Context) ([]kubelet.Devices, error)
}

// Inventory is the node's hardware.
type Inventory interface{ Current() *gpu.Snapshot }

// Deps are the dependencies of a Gate.
type Deps struct {
	// Dir is the folder of the file, which outlives a reboot; content of another Node than that with this UID is void, unless it is empty.
	Dir     string
	NodeUID func() string
	// Before is the use of the devices when the agent before this one ended, which may have kept no file.
	Before   []offer.Unit
	Kubelet  Kubelet
	Hardware Inventory
	// Opened is called when the device plugin may list a GPU that was withheld before. It must not block.
	Opened func()
	// Changed is called when a GPU can be published that could not be before, or what the kubelet counts has changed. It must not block.
	Changed func()
	// FileLost reports a file that could not be used, with the consequences.
	FileLost func(source string, result statefile.Result, without string)
	// Report replaces the problems of a source. It must not block.
	Report func(source string, problems ...gpu.Cause)
	// Fault is called at each step of a write of the file; an error stops it there. For tests; nil for nothing.
	Fault func(statefile.Step) error
	Clock clock.WithTicker
}

// state is what is known of a GPU. Its zero value is that of a GPU that no slice has, and that the kubelet may count.
type state struct {
	// published is true while a slice may have the GPU.
	published bool
	// wanted is true while the GPU is to be in a slice.
	wanted bool
	// listed is true while the device plugin lists the GPU, and left is when it was last taken out of the list.
	listed bool
	left   time.Time
	// absent is true when the kubelet was seen not to count the GPU since it was last listed.
	absent bool
}

// Gate is the actor. Create it with Open, start it with Run.
type Gate struct {
	deps Deps
	// pending has a token when a GPU is to be published that the kubelet may count, and when a slice may have a further GPU.
	pending *signal.Signal

	// saving is held while the GPUs that slices may have change, over the write of the file. unsaved is true while the file does not have
	// them; the next read of the slices writes it again.
	saving  sync.Mutex
	unsaved bool

	mu   sync.Mutex
	gpus map[gpu.UUID]*state
	// unknown is true while it is not known which GPUs the slices have: the file was not readable, and the slices were not read.
	unknown bool
	// begun counts the writes of slices, and underWay those that have not ended.
	begun    int
	underWay int
	counted  counted
}

// Open reads which GPUs the slices may have. When the file cannot be used, no GPU is listed before the slices were read.
func Open(deps Deps) *Gate {
	g := &Gate{deps: deps, pending: signal.New(), gpus: map[gpu.UUID]*state{}}
	kept, result := g.file().Load()
	if g.unknown = result.Lost(); g.unknown {
		deps.FileLost(fileSource, result, "no GPU is advertised to the kubelet before the agent has read the ResourceSlices of this node")
	}
	for _, id := range kept {
		g.of(id).published = true
	}
	for _, unit := range deps.Before {
		if unit.Use.API == offer.DRA {
			g.of(unit.Key.GPU).published = true
		}
	}
	if !g.unknown && !slices.Equal(kept, g.published()) {
		g.save()
	}
	return g
}

func (g *Gate) file() statefile.File[[]gpu.UUID] {
	return statefile.File[[]gpu.UUID]{
		Path: filepath.Join(g.deps.Dir, FileName), What: "the GPUs that ResourceSlices may have", Format: "berth-dra-published", Version: 1,
		NodeUID: g.deps.NodeUID(), Fault: g.deps.Fault,
	}
}

// Remove removes the file. It is no error when there is none.
func Remove(dir string) error { return statefile.Remove(filepath.Join(dir, FileName)) }

// Advertise returns the list of the device plugin: the offers of all devices without those on GPUs that slices may have. Only the device
// plugin calls it, each time that it makes its list. A nil Gate, that of an agent without an API server, leaves out none.
func (g *Gate) Advertise(devices []offer.Placed) []offer.Offer {
	if g == nil {
		return offer.List(devices)
	}
	offered := map[gpu.UUID]bool{}
	for i := range devices {
		if devices[i].Use.API == offer.DevicePlugin {
			offered[devices[i].Key.GPU] = true
		}
	}
	listed := g.list(offered)
	return offer.List(slices.DeleteFunc(slices.Clone(devices), func(d offer.Placed) bool { return !listed[d.Key.GPU] }))
}

// Offers returns the list of the device plugin, as Advertise does, for others to show.
func (g *Gate) Offers(devices []offer.Placed) []offer.Offer {
	if g == nil {
		return offer.List(devices)
	}
	g.mu.Lock()
	left := slices.DeleteFunc(slices.Clone(devices), func(d offer.Placed) bool { return g.unknown || g.of(d.Key.GPU).published })
	g.mu.Unlock()
	return offer.List(left)
}

// list takes the GPUs that the device plugin lists from now on, and returns them: the offered ones that slices do not have.
func (g *Gate) list(offered map[gpu.UUID]bool) (listed map[gpu.UUID]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	waits := false
	listed = map[gpu.UUID]bool{}
	for id := range offered {
		g.of(id)
	}
	for id, s := range g.gpus {
		switch lists := offered[id] && !s.published && !g.unknown; {
		case lists:
			s.listed, s.absent, listed[id] = true, false, true
		case s.listed:
			s.listed, s.left = false, g.deps.Clock.Now()
			waits = waits || s.wanted
		}
	}
	if waits {
		g.pending.Set()
	}
	return listed
}

// Publish takes the GPUs that are to be in slices, all of them, and returns those that may be: they are on disk, and the device plugin
// does not list them from then on. Changed is called when another one may be.
func (g *Gate) Publish(wanted []gpu.UUID) (allowed map[gpu.UUID]bool) {
	g.saving.Lock()
	defer g.saving.Unlock()
	allowed = map[gpu.UUID]bool{}
	var taken []gpu.UUID
	waits := false
	g.mu.Lock()
	for _, s := range g.gpus {
		s.wanted = false
	}
	for _, id := range wanted {
		s := g.of(id)
		s.wanted = true
		if !s.published && s.absent && !s.listed {
			s.published = true
			taken = append(taken, id)
		}
		waits = waits || !s.published
		if s.published {
			allowed[id] = true
		}
	}
	g.mu.Unlock()
	if len(taken) > 0 && !g.save() {
		g.mu.Lock()
		for _, id := range taken {
			g.gpus[id].published, g.gpus[id].absent = false, false
			delete(allowed, id)
		}
		g.mu.Unlock()
		waits = true
		g.deps.Opened()
	}
	if waits || len(taken) > 0 {
		g.pending.Set()
	}
	return allowed
}

// Write begins to write a slice with these GPUs; end ends it. The error is that of a slice with a GPU that must be in none.
func (g *Gate) Write(gpus []gpu.UUID) (end func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range gpus {
		if s := g.gpus[id]; s == nil || !s.published {
			return nil, fmt.Errorf("GPU %s belongs to the device plugin now, so no ResourceSlice gets it", id)
		}
	}
	g.begun++
	g.underWay++
	return func() {
		g.mu.Lock()
		g.underWay--
		g.mu.Unlock()
	}, nil
}

// Read begins to read the slices of this node; seen takes the GPUs that they have. Those that no slice has and that are not to be in one
// may be listed again, unless a slice was written since.
func (g *Gate) Read() (seen func(gpus []gpu.UUID)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	begun, quiet := g.begun, g.underWay == 0
	return func(gpus []gpu.UUID) {
		g.saving.Lock()
		defer g.saving.Unlock()
		if g.take(gpus, func() bool { return quiet && g.begun == begun }) || g.unsaved {
			g.save()
		}
	}
}

// take takes the GPUs that slices have, and returns whether this has changed anything; whole says whether there are no others.
func (g *Gate) take(gpus []gpu.UUID, whole func() bool) (changed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	opened := g.unknown
	for _, id := range gpus {
		if s := g.of(id); !s.published {
			s.published, changed = true, true
			g.pending.Set()
			opened = opened || s.listed // The device plugin takes it out of its list.
		}
	}
	if g.unknown = g.unknown && !whole(); whole() {
		for id, s := range g.gpus {
			if s.published && !s.wanted && !slices.Contains(gpus, id) {
				s.published, s.absent = false, false
				changed, opened = true, true
			}
		}
	}
	if opened {
		g.deps.Opened()
	}
	return changed
}

// of returns the state of a GPU; the caller holds mu.
func (g *Gate) of(id gpu.UUID) *state {
	s := g.gpus[id]
	if s == nil {
		s = &state{}
		g.gpus[id] = s
	}
	return s
}

// Published returns the GPUs that slices may have, sorted; a nil Gate has none.
func (g *Gate) Published() []gpu.UUID {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.published()
}

// published returns the GPUs that slices may have, sorted; the caller holds mu, or has the only reference.
func (g *Gate) published() []gpu.UUID {
	var list []gpu.UUID
	for _, id := range slices.Sorted(maps.Keys(g.gpus)) {
		if g.gpus[id].published {
			list = append(list, id)
		}
	}
	return list
}

// save writes the file and returns whether it has the GPUs. The caller holds saving, or has the only reference.
func (g *Gate) save() bool {
	list := g.Published()
	err := g.file().Save(list)
	if g.unsaved = err != nil; g.unsaved {
		err = fmt.Errorf("%w; no further GPU is published for claims", err)
		g.deps.Report(fileSource, gpu.Cause{Code: "STATE_UNWRITABLE", Message: err.Error()})
		return false
	}
	g.deps.Report(fileSource)
	return true
}
