package metricsync

import (
	"slices"
	"sync"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/metrics"
)

// XIDs counts the XIDs of each GPU before they are judged. Most errors are reported twice, by NVML and in the kernel
// log, and some by one of the two only; so the larger count of the two is the number of errors. The zero value is ready
// for concurrent use.
type XIDs struct {
	mu     sync.Mutex
	counts []xidCount
}

type xidCount struct {
	metrics.XIDCount
	events uint64
	lines  uint64
}

// Add counts an event; one without an XID or without a GPU is ignored.
func (x *XIDs) Add(event gpu.Event) {
	if event.Code.Kind != gpu.KindXID || event.GPU == "" {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	at := slices.IndexFunc(x.counts, func(c xidCount) bool { return c.GPU == event.GPU && c.XID == event.Code.Number })
	if at < 0 {
		at = len(x.counts)
		x.counts = append(x.counts, xidCount{XIDCount: metrics.XIDCount{GPU: event.GPU, XID: event.Code.Number}})
	}
	c := &x.counts[at]
	if event.Log {
		c.lines++
	} else {
		c.events++
	}
	if count := max(c.events, c.lines); count > c.Count {
		c.Count = count
		c.remember(event.Time)
	}
	c.Last = event.Time
}

// maxRecent bounds what is kept of a storm.
const maxRecent = 1000

// remember adds the time of a report to the recent ones, and forgets those that are too old.
func (c *xidCount) remember(at time.Time) {
	since := at.Add(-metrics.XIDWindow)
	c.Recent = slices.DeleteFunc(c.Recent, func(t time.Time) bool { return t.Before(since) })
	c.Recent = append(c.Recent[max(0, len(c.Recent)-maxRecent+1):], at)
}

// All returns the counts in the order in which the XIDs first occurred.
func (x *XIDs) All() []metrics.XIDCount {
	x.mu.Lock()
	defer x.mu.Unlock()
	var all []metrics.XIDCount
	for _, c := range x.counts {
		one := c.XIDCount
		one.Recent = slices.Clone(one.Recent)
		all = append(all, one)
	}
	return all
}
