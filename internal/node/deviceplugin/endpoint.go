package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// endpoint is one socket with a gRPC server on it, by which the kubelet identifies a plugin. It is registered at most once.
type endpoint struct {
	pluginapi.UnimplementedDevicePluginServer
	server *server
	path   string
	born   time.Time
	socket fileID
	grpc   *grpc.Server
	calls  callCount

	listener net.Listener
	stopping atomic.Bool
	// closing is cancelled by end when the streams have to end.
	closing context.Context
	end     context.CancelFunc
	served  chan struct{}

	mu sync.Mutex
	// streams counts the open streams; streamed is true if there was one.
	streams  int
	streamed bool
}

// callWorkers is how many goroutines wait for calls. A goroutine that is started for a call first has to grow its stack, which takes a
// fifth of the time of an empty call. Each open stream occupies one; calls for which none is left get a new goroutine.
const callWorkers = 8

// flushTime is the time in which the kubelet can read a last answer before its stream ends.
const flushTime = 10 * time.Millisecond

// fileID distinguishes a socket from another one with the same name.
type fileID struct {
	inode  uint64
	second int64
	nano   int64
}

func (f fileID) absent() bool { return f == fileID{} }

// identify returns the identity of a file; zero when there is none.
func identify(path string) fileID {
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		return fileID{}
	}
	// The modification time of a socket is that of its binding; mode and owner may change later.
	return fileID{inode: stat.Ino, second: int64(stat.Mtim.Sec), nano: int64(stat.Mtim.Nsec)}
}

// openEndpoint listens under name in dir and serves.
func openEndpoint(s *server, dir string, name socketName) (*endpoint, error) {
	listener, err := listen(dir, name.String())
	if err != nil {
		return nil, err
	}
	e := &endpoint{
		server: s, path: filepath.Join(dir, name.String()), born: s.clock.Now(),
		listener: listener, served: make(chan struct{}),
	}
	e.closing, e.end = context.WithCancel(context.Background())
	e.socket = identify(e.path)
	e.grpc = grpc.NewServer(grpc.StatsHandler(&e.calls), grpc.StreamInterceptor(e.endStreams), grpc.WaitForHandlers(true),
		grpc.NumStreamWorkers(callWorkers))
	pluginapi.RegisterDevicePluginServer(e.grpc, e)
	healthpb.RegisterHealthServer(e.grpc, s.health)
	go func() {
		defer close(e.served)
		if err := e.grpc.Serve(listener); err != nil && !e.stopping.Load() {
			s.log.Error("Device plugin server ended", "socket", e.path, "error", err)
		}
	}()
	return e, nil
}

// listen makes a socket that appears under its name only when it accepts connections, so that one which refuses a connection belongs
// to an agent that has ended. Only the owner may connect, which is root, as the kubelet is.
func listen(dir, name string) (net.Listener, error) {
	bound, path := filepath.Join(dir, bindPrefix+name), filepath.Join(dir, name)
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		// The mode of an unbound socket becomes that of its file, so that others can connect at no time.
		err := raw.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, failed)
	}}
	listener, err := config.Listen(context.Background(), "unix", bound)
	if err != nil {
		return nil, fmt.Errorf("listen for the kubelet: %w", err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := os.Rename(bound, path); err != nil {
		return nil, errors.Join(fmt.Errorf("listen for the kubelet: %w", err), listener.Close())
	}
	return listener, nil
}

// removeSocket removes a socket; its absence is no error.
func removeSocket(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove socket: %w", err)
	}
	return nil
}

func (e *endpoint) streamOpened() {
	e.mu.Lock()
	e.streams++
	e.streamed = true
	e.mu.Unlock()
	e.server.stats.streams.Add(1)
	e.server.wake()
}

func (e *endpoint) streamClosed() {
	e.mu.Lock()
	e.streams--
	e.mu.Unlock()
	e.server.stats.streams.Add(-1)
	e.server.wake()
}

// state returns how many streams are open, and whether there ever was one.
func (e *endpoint) state() (open int, ever bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.streams, e.streamed
}

// close ends the endpoint: first the running calls, since a kubelet whose stream ends drops the connection with the calls on it; then
// the streams; then the server. It takes at most twice limit and leaves the socket's file.
func (e *endpoint) close(limit time.Duration) {
	// The socket refuses connections before the streams end.
	e.stopping.Store(true)
	e.listener.Close()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	waitFor(e.calls.whenNone(), deadline)
	if open, _ := e.state(); open > 0 {
		// The end of the stream must not overtake an answer that is being sent.
		<-e.server.clock.After(flushTime)
	}
	e.end()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		e.grpc.GracefulStop()
	}()
	deadline.Reset(limit)
	waitFor(stopped, deadline)
	e.grpc.Stop()
	<-stopped
	<-e.served
}

func waitFor(done <-chan struct{}, deadline *time.Timer) {
	select {
	case <-done:
	case <-deadline.C:
	}
}
