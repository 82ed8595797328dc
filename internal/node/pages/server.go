package pages

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/httpserver"
)

const (
	// Name is the name in the state directory that leads to the agent of a node.
	Name = "agent.sock"
	// DefaultSocket is the usual path of Name.
	DefaultSocket = "/run/berth/" + Name

	ownPrefix  = "agent-"
	ownSuffix  = ".sock"
	bindPrefix = ".bind-"

	// lookInterval is the time between two checks of which process serves Name.
	lookInterval = time.Second
	// dialTimeout is how long a socket may take to accept a connection.
	dialTimeout = time.Second
	// maxPath is the longest path of a socket on Linux.
	maxPath = 107
)

// ServerDeps are the dependencies of Serve.
type ServerDeps struct {
	// Dir is the directory of the sockets.
	Dir string
	// Instance distinguishes this agent from another one of the same node.
	Instance string
	Handler  http.Handler
	// Ready reports whether the agent is ready to take over from another one.
	Ready func() bool
	Clock clock.WithTicker
	Log   *slog.Logger
}

// Own returns the path of the socket of one agent.
func Own(dir, instance string) string { return filepath.Join(dir, ownPrefix+instance+ownSuffix) }

// Serve serves the agent's sockets until ctx ends. listening is called when they exist.
func Serve(ctx context.Context, deps ServerDeps, listening func()) error {
	s := &server{ServerDeps: deps, own: Own(deps.Dir, deps.Instance), name: filepath.Join(deps.Dir, Name)}
	listener, err := s.listen(ctx)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", s.own, err)
	}
	defer s.leave()
	server := httpserver.New(httpserver.Options{Handler: onlyRoot(deps.Handler, os.Geteuid()), ConnContext: withPeer, Log: deps.Log})
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	defer server.Close()
	s.removeStale()
	s.look(ctx)
	listening()
	ticker := deps.Clock.NewTicker(lookInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return fmt.Errorf("serve %s: %w", s.own, err)
		case <-ticker.C():
			s.look(ctx)
		}
	}
}

type server struct {
	ServerDeps
	own  string
	name string
	// socket identifies the socket at own.
	socket os.FileInfo
	// taken is true after this agent took over the name because it was ready.
	taken bool
	// logged is the last error of look, which is logged once.
	logged string
}

// listen creates the agent's own socket. It is bound under another name and renamed, so that the socket of an earlier
// process is replaced and the path always exists.
func (s *server) listen(ctx context.Context) (net.Listener, error) {
	if s.Instance == "" || s.Instance != filepath.Base(s.Instance) {
		return nil, fmt.Errorf("%q cannot be part of a file's name; choose another one with --instance", s.Instance)
	}
	bound := s.bindName(s.own)
	if len(bound) > maxPath {
		return nil, fmt.Errorf("the path %s has %d characters, Linux allows %d; choose a shorter --state-dir or --instance",
			bound, len(bound), maxPath)
	}
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return nil, err
	}
	if err := remove(bound); err != nil {
		return nil, err
	}
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		// The mode of an unbound socket becomes that of its file.
		err := raw.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, failed)
	}}
	listener, err := config.Listen(ctx, "unix", bound)
	if err != nil {
		return nil, err
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	s.socket, err = os.Lstat(bound)
	if err == nil {
		err = os.Rename(bound, s.own)
	}
	if err != nil {
		return nil, errors.Join(err, listener.Close(), remove(bound))
	}
	return listener, nil
}

func (s *server) bindName(path string) string {
	return filepath.Join(s.Dir, bindPrefix+filepath.Base(path))
}

// look takes over the name when this agent has just become ready, or when no process accepts connections there.
func (s *server) look(ctx context.Context) {
	err := func() error {
		if s.leads(s.name) {
			s.taken = s.taken || s.Ready()
			return nil
		}
		if ready := s.Ready() && !s.taken; !ready && answers(ctx, s.name) {
			return nil
		}
		s.taken = s.Ready()
		return s.take()
	}()
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != s.logged && text != "" {
		s.Log.Warn("Failed to take over the name of the agent's socket", "socket", s.name, "error", err)
	}
	s.logged = text
}

// take makes the name refer to this agent's socket.
func (s *server) take() error {
	link := s.bindName(s.own) + ".link"
	if err := remove(link); err != nil {
		return err
	}
	if err := os.Link(s.own, link); err != nil {
		return err
	}
	if err := os.Rename(link, s.name); err != nil {
		return errors.Join(err, remove(link))
	}
	return nil
}

// leave removes the names of this agent.
func (s *server) leave() {
	for _, path := range []string{s.name, s.own} {
		if s.leads(path) {
			_ = remove(path) // The next agent detects that a remaining name is stale.
		}
	}
}

// leads reports whether a name refers to this agent's socket.
func (s *server) leads(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && os.SameFile(info, s.socket)
}

// removeStale removes sockets of agents that were killed.
func (s *server) removeStale() {
	for _, path := range own(s.Dir) {
		if path != s.own && isStale(path) {
			_ = remove(path) // A remaining socket does no harm.
		}
	}
}

// Remove removes all sockets in dir, for an uninstallation.
func Remove(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, bindPrefix+ownPrefix+"*"))
	for _, path := range append(append(left, own(dir)...), filepath.Join(dir, Name)) {
		err = errors.Join(err, remove(path))
	}
	return err
}

// own returns the sockets of single agents in dir.
func own(dir string) []string {
	paths, err := filepath.Glob(filepath.Join(dir, ownPrefix+"*"+ownSuffix))
	if err != nil {
		return nil // dir has characters with a meaning in Glob.
	}
	return paths
}

// answers reports whether a process accepts connections on a socket.
func answers(ctx context.Context, path string) bool {
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "unix", path)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// isStale reports whether a refused connection proves that the process of a socket has ended.
func isStale(path string) bool {
	conn, err := net.DialTimeout("unix", path, dialTimeout)
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// remove removes a file; its absence is no error.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// peerKey is the key of the peer's uid in a connection's context.
type peerKey struct{}

// withPeer stores the UID of the connecting process, according to the kernel.
func withPeer(ctx context.Context, conn net.Conn) context.Context {
	bounded, is := conn.(interface{ NetConn() net.Conn })
	if !is {
		return ctx
	}
	socket, ok := bounded.NetConn().(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return ctx
	}
	var peer *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || failed != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, int(peer.Uid))
}

// onlyRoot serves root, and the user that the agent runs as, which is root on a node.
func onlyRoot(next http.Handler, self int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		uid, known := r.Context().Value(peerKey{}).(int)
		if !known || uid != 0 && uid != self {
			http.Error(w, "the agent's socket is for root: run this as root", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
