package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// The reasons for a registration.
const (
	reasonFirst   = "it is the first"
	reasonRestart = "the kubelet restarted"
	reasonSocket  = "the socket was removed"
	reasonStream  = "the kubelet ended the stream"
	reasonNewer   = "the newer agent ended"
)

// situation is what the decision to register depends on.
type situation struct {
	// kubelet is the registration socket now, with the one last registered with.
	kubelet    fileID
	registered fileID
	// endpoint is the current socket, there the file under its name now; both are absent before the first registration.
	endpoint fileID
	there    fileID
	// open counts the kubelet's streams; ever is true if there was one.
	open          int
	ever          bool
	registerAgain bool
}

// reason returns why a registration is needed; empty when it is not, or not possible.
func (s situation) reason() string {
	switch {
	case s.kubelet.absent():
		return ""
	case s.endpoint.absent():
		return reasonFirst
	case s.registered != s.kubelet:
		return reasonRestart
	case s.there != s.endpoint:
		return reasonSocket
	case s.ever && s.open == 0:
		return reasonStream
	case s.registerAgain:
		return reasonNewer
	}
	return ""
}

func (s *server) kubeletPath() string { return filepath.Join(s.dir, kubeletSocket) }

// observe reads the present state of the files and streams.
func (s *server) observe() situation {
	now := situation{kubelet: identify(s.kubeletPath()), registered: s.loop.kubelet, registerAgain: s.loop.registerAgain}
	if e := s.loop.current; e != nil {
		now.endpoint, now.there = e.socket, identify(e.path)
		now.open, now.ever = e.state()
	}
	return now
}

// keepRegistered registers when that is needed and no newer instance goes first. After a failure, and while a newer instance goes
// first, it sets the alarm.
func (s *server) keepRegistered(ctx context.Context, seen peerChanges) {
	found, loop := s.observe(), &s.loop
	reason := found.reason()
	if found.kubelet.absent() {
		s.logOnce(slog.LevelInfo, "Waiting for the kubelet to start", nil)
	}
	if reason == "" {
		loop.wantedSince, loop.retryAt = time.Time{}, time.Time{}
		return
	}
	now := s.clock.Now()
	s.plan(found.kubelet, reason, now)
	if seen.newerAlive {
		// It registers itself. If it does not in time, this instance does.
		if turn := loop.wantedSince.Add(s.timing.deferNewer); seen.newerActive {
			loop.retryAt = time.Time{}
			return
		} else if loop.retryAt.Before(turn) {
			loop.retryAt = turn
		}
	}
	if now.Before(loop.retryAt) {
		return
	}
	if reason == reasonRestart && s.kubeletRestarted != nil {
		s.kubeletRestarted()
	}
	if err := s.attempt(ctx, found.kubelet); err != nil && ctx.Err() == nil {
		s.stats.failures.Add(1)
		text := err.Error()
		s.stats.lastError.Store(&text)
		loop.retryAt = s.clock.Now().Add(s.delay())
		loop.retries++
		s.logOnce(slog.LevelWarn, "Could not register with the kubelet; retrying", err)
	} else if err == nil {
		s.stats.registrations.Add(1)
		s.stats.lastError.Store(nil)
		loop.wantedSince, loop.retryAt, loop.registerAgain = time.Time{}, time.Time{}, false
		loop.logged = ""
		s.log.Info("Registered with the kubelet", "socket", loop.current.path, "reason", reason)
	}
}

// plan sets when to try: at once, unless the kubelet keeps ending our streams.
func (s *server) plan(kubelet fileID, reason string, now time.Time) {
	loop := &s.loop
	if loop.tried != kubelet {
		loop.tried, loop.retries, loop.retryAt = kubelet, 0, time.Time{}
	}
	if !loop.wantedSince.IsZero() {
		return
	}
	loop.wantedSince = now
	if reason != reasonStream {
		return
	}
	if now.Sub(loop.current.born) >= s.timing.stable {
		loop.retries = 0
	}
	// Always after a delay: a kubelet before 1.37 that ends a stream is still closing what it finds under the resource's name.
	loop.retryAt = now.Add(s.delay())
	loop.retries++
}

func (s *server) delay() time.Duration {
	return min(s.timing.retryFirst<<min(s.loop.retries, 20), s.timing.retryMax)
}

// logOnce logs a message unless it was the last one.
func (s *server) logOnce(level slog.Level, text string, err error) {
	message := text
	if err != nil {
		message += err.Error()
	}
	if s.loop.logged == message {
		return
	}
	s.loop.logged = message
	if err != nil {
		//lint:ignore sloglint the callers pass constants
		s.log.Log(context.Background(), level, text, "error", err)
		return
	}
	//lint:ignore sloglint the callers pass constants
	s.log.Log(context.Background(), level, text)
}

// attempt opens a new endpoint, registers it, and closes the one before it.
func (s *server) attempt(ctx context.Context, kubelet fileID) error {
	if err := probe(ctx, s.kubeletPath()); err != nil {
		return err
	}
	s.name.attempt++
	e, err := openEndpoint(s, s.dir, s.name)
	if err != nil {
		return err
	}
	if err := s.register(ctx, e); err != nil {
		e.close(s.timing.drain)
		if ctx.Err() == nil || s.removing.Load() { // A shutdown removes nothing, also while the kubelet responds.
			s.remove(e)
		}
		return err
	}
	previous := s.loop.current
	s.loop.current, s.loop.kubelet = e, kubelet
	if previous != nil {
		s.retire(ctx, previous)
	}
	// The stream may have been opened before the endpoint became the current one.
	s.wake()
	return nil
}

// probe fails if the kubelet does not listen for registrations. It uses up no path.
func probe(ctx context.Context, path string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		return conn.Close()
	}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("register with the kubelet: no process listens on %s: the kubelet is down or starting", path)
	}
	return fmt.Errorf("register with the kubelet: %w", err)
}

// register asks the kubelet to use the endpoint. The kubelet calls back before it answers.
func (s *server) register(ctx context.Context, e *endpoint) error {
	ctx, cancel := context.WithTimeout(ctx, s.timing.register)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///kubelet", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", s.kubeletPath())
		}))
	if err != nil {
		return fmt.Errorf("register with the kubelet: %w", err)
	}
	defer conn.Close()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: filepath.Base(e.path),
		ResourceName: s.resource, Options: options(),
	})
	if err != nil {
		return fmt.Errorf("register %s with the kubelet: %w", s.resource, err)
	}
	return nil
}

// retire closes a replaced endpoint: at once when no kubelet uses it, otherwise after the calls that the kubelet has sent to it have
// had time to arrive.
func (s *server) retire(ctx context.Context, e *endpoint) {
	finish := func() {
		e.close(s.timing.drain)
		s.remove(e)
	}
	if open, _ := e.state(); open == 0 {
		finish()
		return
	}
	s.resendLater()
	s.retiring.Go(func() {
		select {
		case <-ctx.Done():
		case <-s.clock.After(s.timing.retire):
		}
		finish()
		// Either stream may have sent its list last; the one that stays sends it again.
		s.published.update(nil)
	})
}
