package deviceplugin

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/node/signal"
)

// server serves one resource: its device list, its endpoints, and the loop that keeps it registered. Only the loop changes the fields
// of its last group.
type server struct {
	resource string
	dir      string
	name     socketName
	ledger   Ledger
	grants   Grants
	viewer   *viewer
	timing   timing
	clock    clock.WithTicker
	log      *slog.Logger
	// kubeletRestarted is called before each registration with a kubelet that has restarted; nil for none.
	kubeletRestarted func()
	// warn is called with what a container did not get; nil for none.
	warn func(resource, message string)

	view      atomic.Pointer[view]
	published *publishedList
	health    *health.Server
	peers     *peers
	stats     counters
	// woken has a token when the loop has to run again.
	woken *signal.Signal
	// removing is true when the loop ends because the resource is no longer offered, not because the agent ends.
	removing atomic.Bool
	retiring sync.WaitGroup

	loop loopState
}

// loopState is what the loop keeps between two runs.
type loopState struct {
	current *endpoint
	// kubelet is the registration socket that current was registered with.
	kubelet fileID
	// tried is the registration socket for which the retries count.
	tried fileID
	// registerAgain asks for another registration although no file has changed: a newer instance ended.
	registerAgain bool
	// wantedSince is when a registration was first wanted; zero when none is.
	wantedSince time.Time
	retryAt     time.Time
	retries     int
	resendAt    time.Time
	// standbyChanged is when a newer instance was last seen to become active or inactive.
	standbyChanged time.Time
	// logged is the last message about the registration, which is not logged twice in a row.
	logged string
}

func newServer(deps *Deps, t timing, viewer *viewer, dir, resource string, name socketName, first *view) *server {
	s := &server{
		resource: resource, dir: dir, name: name,
		ledger: deps.Ledger, grants: deps.Grants, viewer: viewer, timing: t, clock: deps.Clock,
		log:              deps.Log.With("resource", resource),
		kubeletRestarted: deps.KubeletRestarted, warn: deps.Warn,
		health: health.NewServer(), woken: signal.New(),
	}
	s.health.SetServingStatus(resource, healthpb.HealthCheckResponse_NOT_SERVING)
	s.peers = newPeers(dir, resource, s.name, s.clock, s.log, s.wake)
	list, healthy := first.list(s.ledger)
	s.published = newPublishedList(list)
	s.setView(first, healthy)
	return s
}

// wake makes the loop run again. It never blocks.
func (s *server) wake() { s.woken.Set() }

func (s *server) setView(v *view, healthy int) {
	s.view.Store(v)
	s.stats.devices.Store(int64(len(v.devices)))
	s.stats.healthy.Store(int64(healthy))
}

// update replaces the view; the streams send its list only if it differs.
func (s *server) update(v *view) {
	list, healthy := v.list(s.ledger)
	s.setView(v, healthy)
	if !proto.Equal(list, s.published.load().list) {
		s.published.update(func(v *listVersion) { v.list = list })
	}
}

// run keeps the resource registered until ctx ends.
func (s *server) run(ctx context.Context) {
	defer s.end()
	<-s.woken.C() // The first run needs no signal.
	for ctx.Err() == nil {
		seen := s.followPeers(ctx)
		s.keepRegistered(ctx, seen)
		select {
		case <-ctx.Done():
		case <-s.woken.C():
		case <-s.alarm():
		}
	}
}

// alarm delivers when the loop has to run without being woken; nil for never.
func (s *server) alarm() <-chan time.Time {
	var first time.Time
	for _, at := range []time.Time{s.loop.retryAt, s.loop.resendAt} {
		if !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	if first.IsZero() {
		return nil
	}
	return s.clock.After(max(0, first.Sub(s.clock.Now())))
}

// end closes the endpoint. The socket's file is removed only when the resource is no longer offered.
func (s *server) end() {
	if e := s.loop.current; e != nil {
		s.lingerInStandby()
		e.close(s.timing.drain)
		if s.removing.Load() {
			s.remove(e)
		}
	}
	s.retiring.Wait()
	s.peers.wait()
	s.stats.registered.Store(false)
	s.stats.active.Store(false)
}

// lingerInStandby waits if a newer agent has just become active: the kubelet may still send a call to this one.
func (s *server) lingerInStandby() {
	if s.published.load().standby {
		if left := s.timing.retire - s.clock.Since(s.loop.standbyChanged); left > 0 {
			<-s.clock.After(left)
		}
	}
}

func (s *server) remove(e *endpoint) {
	if err := removeSocket(e.path); err != nil {
		s.log.Warn("Could not remove a socket of this agent", "error", err)
	}
}

// followPeers stops sending the list while a newer instance is active, and sends it again when another instance may have sent a
// different one last.
func (s *server) followPeers(ctx context.Context) peerChanges {
	seen := s.peers.update(ctx, s.names)
	if mute := s.published.load().standby; mute != seen.newerActive {
		s.published.update(func(v *listVersion) { v.standby = seen.newerActive })
		s.loop.standbyChanged = s.clock.Now()
		if seen.newerActive {
			s.log.Info("A newer agent became active for this resource; this one stands by")
		} else {
			s.log.Info("The newer agent is no longer active; this one serves the resource again")
		}
	}
	now := s.clock.Now()
	switch {
	case seen.olderLeft:
		s.published.update(nil)
		s.resendLater()
	case !s.loop.resendAt.IsZero() && !now.Before(s.loop.resendAt):
		s.published.update(nil)
		s.loop.resendAt = time.Time{}
	}
	if seen.newerDied {
		s.loop.registerAgain = s.loop.current != nil
		s.resendLater()
	}
	s.publishStatus(seen)
	return seen
}

// resendLater is for the end of any other stream of this resource: the kubelet may process its last list after our first.
func (s *server) resendLater() { s.loop.resendAt = s.clock.Now().Add(s.timing.resend) }

// publishStatus shows the peers, and the metrics, whether this instance is active.
func (s *server) publishStatus(seen peerChanges) {
	registered := false
	if e := s.loop.current; e != nil {
		open, _ := e.state()
		registered = open > 0
	}
	active := registered && !seen.newerActive
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if active {
		status = healthpb.HealthCheckResponse_SERVING
	}
	s.stats.registered.Store(registered)
	if s.stats.active.Swap(active) != active {
		s.health.SetServingStatus(s.resource, status)
	}
}

func (s *server) names() []string {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}
