package agent

import (
	"context"
	"slices"
	"sync"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/node/inventory"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/metrics"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// xidCounts counts what the cards report, before anything judges it. Most errors come twice, from NVML and in the
// kernel's log, and some in one of the two only. So the source that told of more counts.
type xidCounts struct {
	mu     sync.Mutex
	counts []xidCount
}

type xidCount struct {
	metrics.XIDCount
	events, lines uint64
}

// counted is the adapter with its events counted on their way.
type counted struct {
	*nvidia.Adapter
	xids *xidCounts
}

var _ inventory.Source = counted{}

// Watch implements inventory.Source.
func (c counted) Watch(ctx context.Context, emit func(gpu.Event)) error {
	return c.Adapter.Watch(ctx, func(event gpu.Event) {
		c.xids.add(event)
		emit(event)
	})
}

func (x *xidCounts) add(event gpu.Event) {
	if event.XID == 0 || event.GPU == "" {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	at := slices.IndexFunc(x.counts, func(c xidCount) bool { return c.GPU == event.GPU && c.XID == event.XID })
	if at < 0 {
		at = len(x.counts)
		x.counts = append(x.counts, xidCount{XIDCount: metrics.XIDCount{GPU: event.GPU, XID: event.XID}})
	}
	c := &x.counts[at]
	if event.Log {
		c.lines++
	} else {
		c.events++
	}
	c.Count, c.Last = max(c.events, c.lines), event.Time
}

func (x *xidCounts) all() []metrics.XIDCount {
	x.mu.Lock()
	defer x.mu.Unlock()
	var all []metrics.XIDCount
	for _, c := range x.counts {
		all = append(all, c.XIDCount)
	}
	return all
}

// measure samples the cards until ctx ends. A scrape never waits for it.
func (a *Agent) measure(ctx context.Context) error {
	return a.sampler.Run(ctx, func(sample gpu.Sample) {
		a.sample.Store(&sample)
		a.render()
	})
}

// render makes the metrics page of what is known now.
func (a *Agent) render() {
	sample := a.sample.Load()
	if sample == nil {
		return
	}
	modes := map[gpu.UUID]string{}
	for _, unit := range a.allocatable.Units() {
		modes[unit.Key.Device()] = modeName(unit.Use.Mode)
	}
	in := metrics.Input{
		Node: a.config.NodeName, Snapshot: a.inventory.Current(), Sample: *sample, XIDs: a.xids.all(), Owners: a.owners(sample),
		DCGMHostnameLabel: a.config.DCGMHostnameLabel,
	}
	for _, h := range a.holdings() {
		if h.Holder.OfPod() && h.Holder.Name != "" {
			in.Holdings = append(in.Holdings, metrics.Holding{Holding: h, Mode: modes[h.Key.Device()]})
		}
	}
	a.page.Render(in)
}

// modeName is how a device is shared, in the words of the metrics.
func modeName(mode offer.Mode) string {
	switch mode {
	case offer.TimeSlicing:
		return "timeslicing"
	case offer.MPS:
		return "mps"
	}
	return "exclusive"
}

// owners finds the containers of the processes in a sample, through their cgroups.
func (a *Agent) owners(sample *gpu.Sample) map[int]metrics.Owner {
	owners := map[int]metrics.Owner{}
	names := map[string]metrics.Owner{}
	for _, h := range a.holdings() {
		if h.Holder.PodUID != "" {
			names[h.Holder.PodUID] = metrics.OwnerOf(h.Holder)
		}
	}
	for i := range sample.GPUs {
		for _, process := range sample.GPUs[i].Processes {
			found, err := kubelet.ProcessOf("/proc", process.PID)
			if err != nil {
				continue // It has ended, or is no container's.
			}
			owner, ok := names[found.PodUID]
			if !ok {
				owner = metrics.Owner{PodUID: found.PodUID}
			}
			if name := a.containerName(found.ContainerID); name != "" {
				owner.Container = name
			}
			owners[process.PID] = owner
		}
	}
	return owners
}

// containerName is the name of a container of the last look at the node.
func (a *Agent) containerName(id string) string {
	for _, c := range a.sync.Containers() {
		if c.ID == id {
			return c.Name
		}
	}
	return ""
}
