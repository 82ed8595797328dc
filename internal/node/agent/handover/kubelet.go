package handover

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/offer"
)

const (
	// settles is the time after which the kubelet has a list that the device plugin has made: the list is sent without delay.
	settles = 100 * time.Millisecond
	// firstRetry and lastRetry bound the time between two looks at the kubelet while a GPU waits to be published.
	firstRetry = 20 * time.Millisecond
	lastRetry  = time.Second
	// reportAfter is how long a GPU waits before that is a problem.
	reportAfter = 10 * time.Second
	// watchEvery is the time between two looks at what the kubelet counts while slices have GPUs.
	watchEvery = 5 * time.Second
)

// counted is what the kubelet counts as allocatable, for any device plugin.
type counted struct {
	gpus      map[gpu.UUID]bool
	resources map[string]bool
}

func (c counted) equal(o counted) bool {
	return maps.Equal(c.gpus, o.gpus) && maps.Equal(c.resources, o.resources)
}

// Counted returns the GPUs and the resources of which the kubelet counts devices, for any device plugin, as it was last asked. While a
// slice may have a GPU, that was 5 s ago or less, as long as the kubelet responds. The maps must not be changed.
func (g *Gate) Counted() (gpus map[gpu.UUID]bool, resources map[string]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.counted.gpus, g.counted.resources
}

// Run asks the kubelet what it counts until ctx ends: while a GPU waits to be published, and while a slice may have one.
func (g *Gate) Run(ctx context.Context) error {
	wait := firstRetry
	var since time.Time
	for {
		var again <-chan time.Time
		waiting, published := g.waiting()
		switch {
		case len(waiting) > 0:
			again = g.deps.Clock.After(wait)
		case published:
			again = g.deps.Clock.After(watchEvery)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-g.pending.C():
			wait = firstRetry
		case <-again:
			wait = min(2*wait, lastRetry)
		}
		now := g.deps.Clock.Now()
		err := g.look(ctx)
		if waiting, _ = g.waiting(); len(waiting) == 0 {
			wait, since = firstRetry, time.Time{}
			g.deps.Report(source)
			continue
		}
		if since.IsZero() {
			since = now
		}
		if now.Sub(since) >= reportAfter {
			g.report(waiting, err)
		}
	}
}

// waiting returns the GPUs that wait to be published, sorted, and whether a slice may have any.
func (g *Gate) waiting() (list []gpu.UUID, published bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(g.gpus)) {
		s := g.gpus[id]
		published = published || s.published
		if s.wanted && !s.published && !s.absent {
			list = append(list, id)
		}
	}
	return list, published
}

// look asks the kubelet once, and permits the GPUs that it does not count.
func (g *Gate) look(ctx context.Context) error {
	// A GPU that is listed while the kubelet is asked may be counted after the answer.
	asked := map[gpu.UUID]time.Time{}
	g.mu.Lock()
	for id, s := range g.gpus {
		if !s.listed && g.deps.Clock.Since(s.left) >= settles {
			asked[id] = s.left
		}
	}
	g.mu.Unlock()
	devices, err := g.deps.Kubelet.Allocatable(ctx)
	if err != nil {
		return err
	}
	now := counted{gpus: map[gpu.UUID]bool{}, resources: map[string]bool{}}
	for _, some := range devices {
		for _, id := range some.IDs {
			now.resources[some.Resource] = true
			if of := g.gpuOf(id); of != "" {
				now.gpus[of] = true
			}
		}
	}
	g.mu.Lock()
	changed := !g.counted.equal(now)
	g.counted = now
	for id, left := range asked {
		s := g.gpus[id]
		if !s.absent && !s.listed && s.left.Equal(left) && !now.gpus[id] {
			s.absent = true
			changed = changed || s.wanted
		}
	}
	g.mu.Unlock()
	if changed {
		g.deps.Changed()
	}
	return nil
}

// gpuOf returns the GPU of a device ID; empty for a device that is not of this node's GPUs.
func (g *Gate) gpuOf(id string) gpu.UUID {
	device, _, err := offer.ParseDeviceID(id)
	if err != nil {
		return ""
	}
	if of, _ := g.deps.Hardware.Current().Device(device); of != nil {
		return of.UUID
	}
	return ""
}

// report says why GPUs are not published; err is that of the last look at the kubelet.
func (g *Gate) report(waiting []gpu.UUID, err error) {
	why := "the kubelet counts them for a device plugin, which may be another one than Berth's (kubectl get node shows the resources); remove the other one from this node"
	if err != nil {
		why = fmt.Sprintf("the kubelet does not say which devices it counts: %v", err)
	}
	var names []string
	for _, id := range waiting {
		names = append(names, string(id))
	}
	g.deps.Report(source, gpu.Cause{Code: "DRA_GPU_COUNTED",
		Message: fmt.Sprintf("GPUs %s are allocated through DRA by the configuration and not published: %s", strings.Join(names, ", "), why)})
}
