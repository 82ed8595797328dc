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

// dialLimit bounds a connection to a socket whose owner neither accepts nor refuses it.
const dialLimit = time.Second

// followAgain is the wait before another connection to a socket that is open and does not answer as an agent does.
const followAgain = time.Second

// peers are the other instances that serve the same resource, each identified by its sockets in the directory. A connection is kept to
// every one, since a connection outlives the socket's name and ends with the process.
type peers struct {
	dir      string
	resource string
	self     socketName
	clock    clock.WithTicker
	log      *slog.Logger
	// changed is called when a peer has changed; it must not block.
	changed func()

	tasks sync.WaitGroup
	mu    sync.Mutex
	// known has an entry for every socket that was seen and whose owner has not ended.
	known map[string]*peer
	// alive are the instances that the last update found.
	alive map[string]bool
}

// peer is one socket of another instance.
type peer struct {
	name   socketName
	active bool
	// becameInactive is true if it became inactive, or was first seen inactive, since the last update.
	becameInactive bool
	ended          bool
}

// peerChanges is what one update of the peers found.
type peerChanges struct {
	newerAlive  bool
	newerActive bool
	// newerDied and olderLeft are changes since the update before.
	newerDied bool
	olderLeft bool
}

func newPeers(dir, resource string, self socketName, clock clock.WithTicker, log *slog.Logger, changed func()) *peers {
	return &peers{
		dir: dir, resource: resource, self: self, clock: clock, log: log, changed: changed,
		known: make(map[string]*peer), alive: make(map[string]bool),
	}
}

// update compares the known peers with the directory. It calls names, which reads the directory's entries, after it has removed the
// peers that ended: an instance that moves to another socket has the new one in the directory before the old one ends.
func (p *peers) update(ctx context.Context, names func() []string) peerChanges {
	var seen peerChanges
	before := p.removeEnded(&seen)
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
			seen.newerActive = seen.newerActive || other.active
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

// removeEnded removes the sockets that have ended, sets olderLeft if an older instance became inactive, and returns the instances that
// were alive at the last update.
func (p *peers) removeEnded(seen *peerChanges) map[string]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for path, other := range p.known {
		if other.becameInactive && !p.newer(other.name.instance) {
			seen.olderLeft = true
		}
		other.becameInactive = false
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
			// It exists and does not answer as an agent does, but may later.
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

// follow records whether the peer is active until its connection ends.
func (p *peers) follow(ctx context.Context, path string, other *peer) {
	defer p.setActive(other, false)
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
			p.setActive(other, response.Status == healthpb.HealthCheckResponse_SERVING)
		}
	}
}

func (p *peers) setActive(other *peer, active bool) {
	p.mu.Lock()
	other.active, other.becameInactive = active, !active
	p.mu.Unlock()
	p.changed()
}

// isGone reports whether no process listens on a socket. One that refuses connections belongs to an agent that has ended, and is
// removed.
func (p *peers) isGone(path string) bool {
	conn, err := net.DialTimeout("unix", path, dialLimit)
	switch {
	case err == nil:
		conn.Close()
		return false
	case errors.Is(err, syscall.ECONNREFUSED):
		p.log.Debug("Removing the socket of an agent that ended", "socket", path)
		if err := removeSocket(path); err != nil {
			p.log.Warn("Could not remove the socket of an agent that ended", "socket", path, "error", err)
		}
		return true
	}
	return errors.Is(err, fs.ErrNotExist)
}

// wait returns when all goroutines have ended, after their context has.
func (p *peers) wait() { p.tasks.Wait() }
