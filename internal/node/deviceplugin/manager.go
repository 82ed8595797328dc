package deviceplugin

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// Manager runs one server for each resource that the node offers.
type Manager struct {
	deps   Deps
	timing timing
	dir    string
	viewer *viewer
	// prepare makes the chooser for a node.
	prepare func(gpu.Topology, []int) (chooser, error)

	mu      sync.Mutex
	servers map[string]*running

	// chooser was made for these links and NUMA nodes.
	chooser      chooser
	chooserLinks gpu.Topology
	chooserNUMA  []int
	// refused are resources that cannot be served, with the reason last logged.
	refused map[string]string
	// attempts are the sockets that resources no longer served have used up.
	attempts map[string]int
	// stopping are the servers of such resources until they have ended; stopped has a token when one has.
	stopping map[string]*running
	stopped  *signal.Signal
	// instance is set by Run.
	instance string
	// pings are answered by the loop of Run.
	pings chan struct{}
}

// running is a server with its goroutine.
type running struct {
	*server
	stop context.CancelFunc
	done chan struct{}
}

// New checks the dependencies and completes them with defaults. It reads and writes nothing.
func New(deps Deps) (*Manager, error) {
	if err := deps.complete(); err != nil {
		return nil, err
	}
	m := &Manager{
		deps: deps, timing: defaultTiming(), dir: pluginDir(deps.KubeletDir),
		servers: make(map[string]*running), refused: make(map[string]string), attempts: make(map[string]int),
		stopping: make(map[string]*running), stopped: signal.New(), pings: make(chan struct{}),
		prepare: func(links gpu.Topology, numa []int) (chooser, error) { return placement.NewNode(links, numa) },
	}
	m.viewer = &viewer{vendors: deps.Vendors, strategy: deps.Strategy, cdiName: deps.CDIName, mark: deps.Mark, linger: m.timing.linger, plain: deps.Plain}
	return m, nil
}

// Run serves until ctx ends, and returns when every server has ended, without an error. It waits for a kubelet that does not run, or
// restarts. The kubelet creates the directory of the sockets; this does not, since other programs take a machine with it for a node.
func (m *Manager) Run(ctx context.Context) error {
	m.instance = m.chooseInstance()
	removeAbandoned(m.dir, m.deps.Clock.Now(), m.timing.staleSocket, m.deps.Log)

	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer m.stopAll()
	watch := &dirWatch{dir: m.dir, timing: m.timing, clock: m.deps.Clock, log: m.deps.Log, changed: m.wakeAll}
	tasks.Go(func() { watch.run(ctx) })
	hardware, closeHardware := signals(m.deps.Hardware)
	defer closeHardware()
	holdings, closeHoldings := signals(m.deps.Holdings)
	defer closeHoldings()
	for {
		m.removeStopped()
		expiry := m.apply(ctx, m.deps.State())
		for current := true; current; {
			select {
			case <-ctx.Done():
				return nil
			case <-holdings:
				m.relist()
			case <-m.pings: // To answer is all that it asks for.
			case <-hardware:
				current = false
			case <-m.deps.Changed:
				current = false
			case <-m.stopped.C():
				current = false
			case <-m.after(expiry):
				current = false
			}
		}
	}
}

// relist makes the lists again when only the holdings have changed: the views do not depend on them.
func (m *Manager) relist() {
	for _, r := range m.list() {
		r.update(r.view.Load())
	}
}

// Ping returns when the loop of Run has received it, or ctx has ended.
func (m *Manager) Ping(ctx context.Context) {
	select {
	case <-ctx.Done():
	case m.pings <- struct{}{}:
	}
}

// signals subscribes; without a source no signal comes.
func signals(subscribe func() *signal.Subscription) (changed <-chan struct{}, end func()) {
	if subscribe == nil {
		return nil, func() {}
	}
	subscription := subscribe()
	return subscription.C(), subscription.Close
}

func (m *Manager) after(at time.Time) <-chan time.Time {
	if at.IsZero() {
		return nil
	}
	return m.deps.Clock.After(max(0, at.Sub(m.deps.Clock.Now())))
}

func (m *Manager) chooseInstance() string {
	if m.deps.Instance != "" {
		return m.deps.Instance
	}
	var names []string
	entries, err := os.ReadDir(m.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.deps.Log.Warn("Could not read the kubelet's device plugin directory", "error", err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return nextInstance(m.deps.Clock.Now(), names)
}

// apply brings the servers in line with the state, and changes only those that differ. It returns when the first vanished device is to be
// removed; zero when there is none.
func (m *Manager) apply(ctx context.Context, state State) time.Time {
	if state.Snapshot == nil {
		state.Snapshot = &gpu.Snapshot{}
	}
	chooser, now := m.chooserFor(state.Snapshot), m.deps.Clock.Now()
	offered := make(map[string]bool, len(state.Offers))
	for _, o := range state.Offers {
		if offered[o.Resource] {
			m.deps.Log.Error("Ignored the second offer of a resource", "resource", o.Resource)
			continue
		}
		offered[o.Resource] = true
		m.serve(ctx, o, state, chooser, now)
	}
	var expiry time.Time
	for _, r := range m.list() {
		if !offered[r.resource] {
			m.withdraw(r, now)
		}
		if at := r.view.Load().nextExpiry(m.timing.linger); !at.IsZero() && (expiry.IsZero() || at.Before(expiry)) {
			expiry = at
		}
	}
	return expiry
}

// serve starts or updates the server of an offer.
func (m *Manager) serve(ctx context.Context, o offer.Offer, state State, chooser chooser, now time.Time) {
	m.mu.Lock()
	r := m.servers[o.Resource]
	m.mu.Unlock()
	if r != nil {
		r.update(m.viewer.build(o, state, chooser, r.view.Load(), now))
		return
	}
	if m.stopping[o.Resource] != nil {
		return // No path is registered twice, and its last one is not known before the old server has ended.
	}
	first := m.viewer.build(o, state, chooser, nil, now)
	name, err := m.nameFor(o.Resource)
	if err != nil {
		if m.refused[o.Resource] != err.Error() {
			m.deps.Log.Error("Could not serve a resource", "resource", o.Resource, "error", err)
			m.refused[o.Resource] = err.Error()
		}
		return
	}
	s := newServer(&m.deps, m.timing, m.viewer, m.dir, o.Resource, name, first)
	own, stop := context.WithCancel(ctx)
	r = &running{server: s, stop: stop, done: make(chan struct{})}
	m.mu.Lock()
	m.servers[o.Resource] = r
	m.mu.Unlock()
	go func() {
		defer close(r.done)
		s.run(own)
	}()
}

// nameFor returns the name of a resource's socket before the first attempt. For a resource that was served before, the count of attempts
// goes on, since no path is registered twice.
func (m *Manager) nameFor(resource string) (socketName, error) {
	part, err := resourcePart(m.dir, resource)
	return socketName{part: part, instance: m.instance, attempt: m.attempts[resource]}, err
}

// withdraw removes a resource that is no longer offered: first its devices are unhealthy, then there are none, then the server ends. It
// does not wait for that, which may take seconds and removes a file.
func (m *Manager) withdraw(r *running, now time.Time) {
	v := m.viewer.build(offer.Offer{Resource: r.resource}, State{}, nil, r.view.Load(), now)
	r.update(v)
	if len(v.devices) > 0 {
		return
	}
	m.mu.Lock()
	delete(m.servers, r.resource)
	m.mu.Unlock()
	r.removing.Store(true)
	r.stop()
	m.stopping[r.resource] = r
	go func() {
		<-r.done
		m.stopped.Set()
	}()
}

// removeStopped removes the servers that have ended; their resources may be served again.
func (m *Manager) removeStopped() {
	for resource, r := range m.stopping {
		select {
		case <-r.done:
			delete(m.stopping, resource)
			m.attempts[resource] = r.name.attempt
			m.deps.Log.Info("Stopped serving a resource that is no longer offered", "resource", resource)
		default:
		}
	}
}

// chooserFor prepares placement when the links between the GPUs, or their NUMA nodes, have changed. Without it, devices are taken in the
// order of the offer.
func (m *Manager) chooserFor(snapshot *gpu.Snapshot) chooser {
	numa := make([]int, len(snapshot.GPUs))
	for i := range snapshot.GPUs {
		numa[i] = snapshot.GPUs[i].NUMANode
	}
	same := slices.Equal(numa, m.chooserNUMA) && slices.EqualFunc(snapshot.Topology, m.chooserLinks,
		func(a, b []gpu.Link) bool { return slices.Equal(a, b) })
	if same && m.chooserNUMA != nil {
		return m.chooser
	}
	m.chooser, m.chooserLinks, m.chooserNUMA = nil, snapshot.Topology, numa
	if len(numa) == 0 {
		return nil
	}
	chooser, err := m.prepare(snapshot.Topology, numa)
	if err != nil {
		m.deps.Log.Error("Could not compare sets of GPUs; devices are taken in the order of their index", "error", err)
		return nil
	}
	m.chooser = &memo{chooser: chooser}
	return m.chooser
}

// list returns the servers in the order of their resources.
func (m *Manager) list() []*running {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]*running, 0, len(m.servers))
	for _, r := range m.servers {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b *running) int { return strings.Compare(a.resource, b.resource) })
	return list
}

func (m *Manager) wakeAll() {
	for _, r := range m.list() {
		r.wake()
	}
}

// stopAll ends all servers at the same time, and waits for them.
func (m *Manager) stopAll() {
	list := m.list()
	for _, r := range list {
		r.stop()
	}
	for _, r := range list {
		<-r.done
	}
	for _, r := range m.stopping {
		<-r.done
	}
}

// Stats returns the counts of every resource, ordered by name.
func (m *Manager) Stats() []Stats {
	list := m.list()
	stats := make([]Stats, 0, len(list))
	for _, r := range list {
		stats = append(stats, r.stats.read(r.resource))
	}
	return stats
}
