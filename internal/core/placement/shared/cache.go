package shared

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
)

// Defaults of Options.
const (
	// DefaultBytes is enough for some 200 distinct topologies of 16 GPUs, or 2,000 of 8.
	DefaultBytes = 256 << 20
	// DefaultAnswers is several times the number of questions about one topology of 8 GPUs.
	DefaultAnswers = 4096
)

// Options bound a Cache. Zero values stand for the defaults.
type Options struct {
	// Bytes is how much memory the prepared topologies with their answers may occupy, by estimate. The topology that was prepared last
	// stays even when it is larger by itself.
	Bytes int
	// Answers is how many answers each topology remembers, rounded up to a power of two; fewer where there are fewer questions.
	Answers int
}

// Stats say what a Cache contains and how often it computed something. The counters only grow.
type Stats struct {
	// Topologies are the distinct ones in use, and those that are still prepared. Prepared are the latter.
	Topologies int
	Prepared   int
	// Bytes is the estimate that Options.Bytes bounds.
	Bytes int
	// Preparations counts the nodes that were made, Choices the questions that were computed.
	Preparations uint64
	Choices      uint64
}

// chooser is a *placement.Node.
type chooser interface {
	Choose(available, must placement.Set, size int) (placement.Set, error)
	Score(set placement.Set) placement.Score
	Packing(set placement.Set) placement.Packing
	Bytes() int
}

// Cache shares prepared topologies and their answers among nodes.
type Cache struct {
	prepare func(placement.Form) (chooser, error)
	bytes   int // the limit
	answers int
	known   *table

	preparations atomic.Uint64
	choices      atomic.Uint64

	mu sync.Mutex
	// kept are the prepared topologies; used is their estimate. hand is where the search for one to evict continues, round and round: each
	// is passed over once after it was asked something. A new one comes just before the hand, so that its turn is last.
	kept []*Topology
	hand int
	used int
}

// NewCache returns an empty cache.
func NewCache(options Options) *Cache {
	if options.Bytes <= 0 {
		options.Bytes = DefaultBytes
	}
	if options.Answers <= 0 {
		options.Answers = DefaultAnswers
	}
	return &Cache{
		prepare: func(form placement.Form) (chooser, error) { return form.NewNode() },
		bytes:   options.Bytes, answers: options.Answers,
		known: &table{topologies: map[placement.Form]weak.Pointer[Topology]{}},
	}
}

// Topology returns the topology of a node. Nodes of equal form get the same one for as long as any of them keeps it. The first of a form
// takes as long as placement.NewNode: milliseconds at 16 GPUs.
//
// Its arguments and errors are those of placement.NewNode. Where topology comes from gpu.ParseTopologies without the rows of PCIe paths, an
// answer can be another one than that of the node itself: with the same bottleneck and as many NVLinks, but not always the nearest on PCIe.
func (c *Cache) Topology(topology gpu.Topology, numa []int) (*Topology, error) {
	form, err := placement.FormOf(topology, numa)
	if err != nil {
		return nil, err
	}
	t, created := c.known.get(form, func() *Topology { return &Topology{cache: c, form: form} })
	if !created {
		return t, nil
	}
	_, err = t.prepared()
	return t, err
}

// Stats returns the present state.
func (c *Cache) Stats() Stats {
	stats := Stats{Topologies: c.known.len(), Preparations: c.preparations.Load(), Choices: c.choices.Load()}
	c.mu.Lock()
	defer c.mu.Unlock()
	stats.Prepared, stats.Bytes = len(c.kept), c.used
	return stats
}

// keep publishes a prepared topology and evicts others until the limit is met. t is not among the kept ones.
func (c *Cache) keep(t *Topology, p *prepared) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.used += p.bytes; c.used > c.bytes && len(c.kept) > 0; {
		c.evict()
	}
	c.kept = slices.Insert(c.kept, c.hand, t)
	c.hand++
	t.state.Store(p)
}

// evict drops a topology that was asked nothing since the hand passed it last, or any one when all are asked all the time; c.mu is held,
// and c.kept is not empty.
func (c *Cache) evict() {
	for passed := 0; ; passed++ {
		if c.hand == len(c.kept) {
			c.hand = 0
		}
		t := c.kept[c.hand]
		p := t.state.Load()
		if p.asked.Swap(false) && passed < 2*len(c.kept) {
			c.hand++
			continue
		}
		t.state.Store(nil)
		c.used -= p.bytes
		c.kept = slices.Delete(c.kept, c.hand, c.hand+1)
		return
	}
}

// table finds the topologies that are in use by their form. It does not keep them: a topology of which neither a node nor the cache has
// a reference is collected, and then removed.
type table struct {
	mu         sync.Mutex
	topologies map[placement.Form]weak.Pointer[Topology]
}

func (k *table) get(form placement.Form, create func() *Topology) (t *Topology, created bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t := k.topologies[form].Value(); t != nil {
		return t, false
	}
	t = create()
	k.topologies[form] = weak.Make(t)
	runtime.AddCleanup(t, k.remove, form)
	return t, true
}

// remove removes the form of a collected topology, unless there is another one of this form by now.
func (k *table) remove(form placement.Form) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.topologies[form].Value() == nil {
		delete(k.topologies, form)
	}
}

func (k *table) len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.topologies)
}
