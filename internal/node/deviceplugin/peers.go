package deviceplugin

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"k8s.io/utils/clock"
)

// dialLimit is for a socket whose owner takes no connection, and refuses none.
const dialLimit = time.Second

// followAgain is the wait before a socket is tried again that somebody holds open without
// answering as an agent.
const followAgain = time.Second

// peers are the other instances that serve the same resource, each known by the sockets
// it has in the directory. A connection is kept to every one, since a connection outlives
// the socket's name and ends with the process.
type peers struct {
	dir, resource string
	self          socketName
	clock         clock.WithTicker
	log           *slog.Logger
	// changed is called when something is to be seen; it must not block.
	changed func()

	tasks sync.WaitGroup
	mu    sync.Mutex
	// known has a watcher for every socket that was ever seen and is not known to be dead.
	known map[string]*peer
	// alive are the instances that the last look found.
	alive map[string]bool
}

// peer is one socket of another instance.
type peer struct {
	name     socketName
	speaking bool
	// fellSilent says that it stopped speaking, or was first seen silent, since the last look.
	fellSilent bool
	ended      bool
}

// sighting is what one look at the peers found.
type sighting struct {
	newerAlive, newerSpeaks bool
	// newerDied and olderLeft are changes since the look before.
	newerDied, olderLeft bool
}

func newPeers(dir, resource string, self socketName, clock clock.WithTicker, log *slog.Logger, changed func()) *peers {
	return &peers{
		dir: dir, resource: resource, self: self, clock: clock, log: log, changed: changed,
		known: make(map[string]*peer), alive: make(map[string]bool),
	}
}

// look compares what was known with what is there. names are the directory's entries, read
// by names(), which is called after the dead were counted: an instance that moves
// to another socket has the new one in the directory before the old one ends.
func (p *peers) look(ctx context.Context, names func() []string) sighting {
	var seen sighting
	before := p.takeEnded(&seen)
	for _, text := range names() {
		if name, ok := parseSocketName(text); ok && name.part == p.self.part && name.instance != p.self.instance {
			p.watch(ctx, name)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.alive = make(map[string]bool, len(p.known))
	for _, other := range p.known {
		p.alive[other.name.instance] = true
		if p.newer(other.name.instance) {
			seen.newerAlive = true
			seen.newerSpeaks = seen.newerSpeaks || other.speaking
		}
	}
	for instance := range before {
		if !p.alive[instance] {
			seen.newerDied = seen.newerDied || p.newer(instance)
			seen.olderLeft = seen.olderLeft || !p.newer(instance)
		}
	}
	return seen
}

// takeEnded forgets the sockets that have ended, notes who fell silent, and returns the
// instances that were alive at the last look.
func (p *peers) takeEnded(seen *sighting) map[string]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for path, other := range p.known {
		if other.fellSilent && !p.newer(other.name.instance) {
			seen.olderLeft = true
		}
		other.fellSilent = false
		if other.ended {
			delete(p.known, path)
		}
	}
	return p.alive
}

func (p *peers) newer(instance string) bool {
	return strings.Compare(instance, p.self.instance) > 0
}

func (p *peers) watch(ctx context.Context, name socketName) {
	path := filepath.Join(p.dir, name.String())
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.known[path]; known {
		return
	}
	other := &peer{name: name}
	p.known[path] = other
	p.tasks.Go(func() {
		for p.follow(ctx, path, other); !p.isGone(path); p.follow(ctx, path, other) {
			// It is there and does not answer as an agent does. It may yet.
			select {
			case <-ctx.Done():
				return
			case <-p.clock.After(followAgain):
			}
		}
		p.mu.Lock()
		other.ended = true
		p.mu.Unlock()
		p.changed()
	})
}

// follow keeps what the peer says of itself until its connection ends.
func (p *peers) follow(ctx context.Context, path string, other *peer) {
	defer p.note(other, false)
	conn, err := grpc.NewClient("passthrough:///peer", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), grpc.WithIdleTimeout(0),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}))
	if err != nil {
		return
	}
	defer conn.Close()
	stream, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{Service: p.resource})
	for err == nil {
		var response *healthpb.HealthCheckResponse
		if response, err = stream.Recv(); err == nil {
			p.note(other, response.Status == healthpb.HealthCheckResponse_SERVING)
		}
	}
}

func (p *peers) note(other *peer, speaking bool) {
	p.mu.Lock()
	other.speaking, other.fellSilent = speaking, !speaking
	p.mu.Unlock()
	p.changed()
}

// isGone tells whether nobody listens on a socket any more. One that refuses connections
// is a dead agent's, and is removed.
func (p *peers) isGone(path string) bool {
	conn, err := net.DialTimeout("unix", path, dialLimit)
	switch {
	case err == nil:
		conn.Close()
		return false
	case errors.Is(err, syscall.ECONNREFUSED):
		p.log.Debug("removing a dead agent's socket", "socket", path)
		if err := removeSocket(path); err != nil {
			p.log.Warn("cannot remove a dead agent's socket", "socket", path, "error", err)
		}
		return true
	}
	return errors.Is(err, fs.ErrNotExist)
}

// wait returns when all watchers have ended, after their context has.
func (p *peers) wait() { p.tasks.Wait() }
