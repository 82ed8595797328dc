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

// server is everything about one resource: what it says, its endpoints, and the loop that
// keeps it registered. Only the loop changes the fields of its last group.
type server struct {
	resource string
	dir      string
	name     socketName
	ledger   Ledger
	viewer   *viewer
	timing   timing
	clock    clock.WithTicker
	log      *slog.Logger
	// restarted is told of a new kubelet before it is registered with; nil for nobody.
	restarted func()
	// told is told what a container did not get; nil for nobody.
	told func(resource, message string)

	view   atomic.Pointer[view]
	board  *board
	health *health.Server
	peers  *peers
	stats  counters
	// look has a token when the loop has something to look at.
	look *signal.Signal
	// removing says that the end of the loop is the end of the resource, not of the agent.
	removing atomic.Bool
	retiring sync.WaitGroup

	loop loopState
}

// loopState is what the loop remembers between two looks.
type loopState struct {
	current *endpoint
	// kubelet is the registration socket that current was registered with.
	kubelet fileID
	// tried is the registration socket for which the retries count.
	tried fileID
	// anew asks for another registration although nothing looks wrong: a newer instance died.
	anew bool
	// wantedSince is when a registration was first wanted; zero when none is.
	wantedSince time.Time
	retryAt     time.Time
	retries     int
	resendAt    time.Time
	// mutedAt is when a newer instance was last seen to begin or to cease to speak.
	mutedAt time.Time
	// said is the last thing logged about the registration, which is not said twice.
	said string
}

func newServer(deps *Deps, t timing, viewer *viewer, dir, resource string, name socketName, first *view) *server {
	s := &server{
		resource: resource, dir: dir, name: name,
		ledger: deps.Ledger, viewer: viewer, timing: t, clock: deps.Clock,
		log:       deps.Log.With("resource", resource),
		restarted: deps.KubeletRestarted, told: deps.Told,
		health: health.NewServer(), look: signal.New(),
	}
	s.health.SetServingStatus(resource, healthpb.HealthCheckResponse_NOT_SERVING)
	s.peers = newPeers(dir, resource, s.name, s.clock, s.log, s.poke)
	list, healthy := first.list(s.ledger)
	s.board = newBoard(list)
	s.setView(first, healthy)
	return s
}

// poke makes the loop look. It never blocks.
func (s *server) poke() { s.look.Set() }

func (s *server) setView(v *view, healthy int) {
	s.view.Store(v)
	s.stats.devices.Store(int64(len(v.devices)))
	s.stats.healthy.Store(int64(healthy))
}

// update takes a new view into use; the kubelet hears of it only if its list differs.
func (s *server) update(v *view) {
	list, healthy := v.list(s.ledger)
	s.setView(v, healthy)
	if !proto.Equal(list, s.board.read().list) {
		s.board.post(func(b *bulletin) { b.list = list })
	}
}

// run keeps the resource registered until ctx ends.
func (s *server) run(ctx context.Context) {
	defer s.end()
	<-s.look.C() // The first look is for the first signal.
	for ctx.Err() == nil {
		seen := s.followPeers(ctx)
		s.keepRegistered(ctx, seen)
		select {
		case <-ctx.Done():
		case <-s.look.C():
		case <-s.alarm():
		}
	}
}

// alarm is when the loop must look without being told; nil for never.
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

// end leaves the kubelet. The socket's file goes only with the resource.
func (s *server) end() {
	if e := s.loop.current; e != nil {
		s.lingerMuted()
		e.close(s.timing.drain)
		if s.removing.Load() {
			s.remove(e)
		}
	}
	s.retiring.Wait()
	s.peers.wait()
	s.stats.registered.Store(false)
	s.stats.speaking.Store(false)
}

// lingerMuted stays a little if a newer agent has only just taken over: a call that the
// kubelet had decided to make of this one may still be on its way.
func (s *server) lingerMuted() {
	if s.board.read().mute {
		if left := s.timing.retire - s.clock.Since(s.loop.mutedAt); left > 0 {
			<-s.clock.After(left)
		}
	}
}

func (s *server) remove(e *endpoint) {
	if err := removeSocket(e.path); err != nil {
		s.log.Warn("cannot remove our own socket", "error", err)
	}
}

// followPeers falls silent while a newer instance speaks, and says the list again when
// another one may have said something else last.
func (s *server) followPeers(ctx context.Context) sighting {
	seen := s.peers.look(ctx, s.names)
	if mute := s.board.read().mute; mute != seen.newerSpeaks {
		s.board.post(func(b *bulletin) { b.mute = seen.newerSpeaks })
		s.loop.mutedAt = s.clock.Now()
		if seen.newerSpeaks {
			s.log.Info("a newer agent speaks for this resource now; standing by")
		} else {
			s.log.Info("the newer agent is silent; speaking for this resource again")
		}
	}
	now := s.clock.Now()
	switch {
	case seen.olderLeft:
		s.board.post(nil)
		s.sayAgainLater()
	case !s.loop.resendAt.IsZero() && !now.Before(s.loop.resendAt):
		s.board.post(nil)
		s.loop.resendAt = time.Time{}
	}
	if seen.newerDied {
		s.loop.anew = s.loop.current != nil
		s.sayAgainLater()
	}
	s.sayStatus(seen)
	return seen
}

// sayAgainLater is for the end of any other stream of this resource: what it said last may
// reach the kubelet's books after what we said first.
func (s *server) sayAgainLater() { s.loop.resendAt = s.clock.Now().Add(s.timing.resend) }

// sayStatus tells the peers, and metrics, whether this instance speaks.
func (s *server) sayStatus(seen sighting) {
	registered := false
	if e := s.loop.current; e != nil {
		open, _ := e.state()
		registered = open > 0
	}
	speaks := registered && !seen.newerSpeaks
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if speaks {
		status = healthpb.HealthCheckResponse_SERVING
	}
	s.stats.registered.Store(registered)
	if s.stats.speaking.Swap(speaks) != speaks {
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
