package pages_test

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
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/internal/node/pages"
)

// agent is a server that returns its instance.
type agent struct {
	name  string
	clock *clocktesting.FakeClock
	ready atomic.Bool
	stop  context.CancelFunc
	done  chan error
}

func start(t *testing.T, dir, instance string, ready bool) *agent {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	a := &agent{name: instance, clock: clocktesting.NewFakeClock(time.Now()), stop: stop, done: make(chan error, 1)}
	a.ready.Store(ready)
	listening := make(chan struct{})
	go func() {
		a.done <- pages.Serve(ctx, pages.ServerDeps{
			Dir: dir, Instance: instance, Ready: a.ready.Load, Clock: a.clock, Log: slog.New(slog.DiscardHandler),
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/no" {
					http.Error(w, "not ready: the first scan is not finished", http.StatusServiceUnavailable)
					return
				}
				fmt.Fprint(w, instance)
			}),
		}, func() { close(listening) })
	}()
	select {
	case <-listening:
	case err := <-a.done:
		t.Fatal(err)
	}
	t.Cleanup(func() { a.end(t) })
	return a
}

func (a *agent) end(t *testing.T) {
	t.Helper()
	if a.done == nil {
		return
	}
	a.stop()
	if err := <-a.done; err != nil {
		t.Errorf("agent %s: %v", a.name, err)
	}
	a.done = nil
}

// who returns the instance that serves a socket.
func who(t *testing.T, socket string) string {
	t.Helper()
	text, err := pages.Client{Socket: socket}.Get(t.Context(), "/who")
	if err != nil {
		return "error: " + err.Error()
	}
	return string(text)
}

// becomes makes the agent check again until the name refers to want.
func (a *agent) becomes(t *testing.T, dir, want string) {
	t.Helper()
	socket := filepath.Join(dir, pages.Name)
	for range 500 {
		if who(t, socket) == want {
			return
		}
		a.clock.Step(time.Second)
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s is served by %s, want %s", socket, who(t, socket), want)
}

func TestSocketIsRoots(t *testing.T) {
	dir := t.TempDir()
	start(t, dir, "one", true)
	for _, name := range []string{pages.Name, "agent-one.sock"} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != fs.ModeSocket|0o600 {
			t.Errorf("%s has mode %v, want a socket of 0600", name, info.Mode())
		}
		if got := who(t, filepath.Join(dir, name)); got != "one" {
			t.Errorf("%s is served by %s, want one", name, got)
		}
	}
}

// TestPeerIsChecked checks that a process that opens the socket in spite of its mode is refused, by its UID according
// to the kernel.
func TestPeerIsChecked(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: only root can become another user")
	}
	dir := t.TempDir()
	start(t, dir, "one", true)
	// The directory of a test is not accessible to other users; this lets them get as far as the check.
	for path := dir; path != os.TempDir() && path != "/"; path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(dir, pages.Name)
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		text string
		err  error
	}
	asked := make(chan answer, 1)
	go func() {
		// The thread ends with the goroutine, so that no other goroutine runs on a thread without root privileges.
		runtime.LockOSThread()
		const nobody = 65534
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), nobody, ^uintptr(0)); errno != 0 {
			asked <- answer{err: errno}
			return
		}
		// Connect and send on this thread: net's goroutines may run on others.
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket})
		}
		if err == nil {
			_, err = unix.Write(fd, []byte("GET /who HTTP/1.0\r\n\r\n"))
		}
		var text [4096]byte
		n := 0
		if err == nil {
			n, err = unix.Read(fd, text[:])
		}
		asked <- answer{string(text[:max(n, 0)]), err}
	}()
	got := <-asked
	if got.err != nil || !strings.Contains(got.text, "403 Forbidden") || strings.Contains(got.text, "\r\n\r\none") {
		t.Errorf("another user got %q (%v), want 403", got.text, got.err)
	}
}

// TestUpgrade checks that the new agent gets the name when it is ready and not before, that the end of the old one does
// not affect it, and that each agent keeps its own socket throughout.
func TestUpgrade(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, pages.Name)
	older := start(t, dir, "old", true)
	newer := start(t, dir, "new", false)
	newer.clock.Step(time.Second)
	if got := who(t, socket); got != "old" {
		t.Errorf("before the new agent is ready the name leads to %s, want old", got)
	}
	newer.ready.Store(true)
	newer.becomes(t, dir, "new")
	// The old one is ready too, and does not take over the name again.
	for range 5 {
		older.clock.Step(time.Second)
		time.Sleep(5 * time.Millisecond)
	}
	if got := who(t, socket); got != "new" {
		t.Errorf("after the upgrade the name leads to %s, want new", got)
	}
	for _, instance := range []string{"old", "new"} {
		if got := who(t, pages.Own(dir, instance)); got != instance {
			t.Errorf("the socket of %s is served by %s", instance, got)
		}
	}
	older.end(t)
	if got := who(t, socket); got != "new" {
		t.Errorf("after the old agent has ended the name leads to %s, want new", got)
	}
	if _, err := os.Lstat(pages.Own(dir, "old")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old agent's socket is still there (%v)", err)
	}
	newer.end(t)
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("agents that have ended leave %v (%v)", left, err)
	}
}

// TestFailedUpgrade checks that the old agent takes over the name again when a new agent ends after it took it over.
func TestFailedUpgrade(t *testing.T) {
	dir := t.TempDir()
	older := start(t, dir, "old", true)
	newer := start(t, dir, "new", true)
	if got := who(t, filepath.Join(dir, pages.Name)); got != "new" {
		t.Fatalf("the name leads to %s, want new", got)
	}
	newer.end(t)
	older.becomes(t, dir, "old")
}

// TestSameInstance checks that an agent with the name of one which is still ending is not affected by the end of that
// one.
func TestSameInstance(t *testing.T) {
	dir := t.TempDir()
	first := start(t, dir, "one", true)
	second := start(t, dir, "one", true)
	first.end(t)
	if got := who(t, pages.Own(dir, "one")); got != "one" {
		t.Errorf("after the first agent has ended: %s", got)
	}
	second.becomes(t, dir, "one")
}

// leaveStale creates a socket as left by a killed process.
func leaveStale(t *testing.T, path string) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	listener.Close()
}

// TestStale checks that the files of a killed agent do not block others, also when the same instance starts again.
func TestStale(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"agent-one.sock", "agent-two.sock", pages.Name, ".bind-agent-one.sock", ".bind-agent-one.sock.link"} {
		leaveStale(t, filepath.Join(dir, name))
	}
	start(t, dir, "one", false) // No process accepts connections at the name, so an agent that is not ready takes it over.
	if got := who(t, filepath.Join(dir, pages.Name)); got != "one" {
		t.Errorf("the name leads to %s, want one", got)
	}
	if _, err := os.Lstat(filepath.Join(dir, "agent-two.sock")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the killed agent's socket is still there (%v)", err)
	}
	if err := pages.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("Remove leaves %v (%v)", left, err)
	}
}

func TestErrors(t *testing.T) {
	dir := t.TempDir()
	leaveStale(t, filepath.Join(dir, "stale.sock"))
	start(t, dir, "one", true)
	for name, tc := range map[string]struct{ socket, page, want string }{
		"no agent":     {"none.sock", "/who", "none.sock does not exist: no berth-agent runs on this node"},
		"killed agent": {"stale.sock", "/who", "stale.sock: connection refused: the berth-agent that made it has ended"},
		"its refusal": {pages.Name, "/no",
			"agent.sock, /no: the agent answers 503 Service Unavailable: not ready: the first scan is not finished"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := (pages.Client{Socket: filepath.Join(dir, tc.socket)}).Get(t.Context(),
				tc.page); err == nil || err.Error() != filepath.Join(dir, tc.want) {
				t.Errorf("error %v, want %s", err, filepath.Join(dir, tc.want))
			}
		})
	}
	for instance, want := range map[string]string{
		"a/b":                    "--instance",
		"":                       "--instance",
		strings.Repeat("x", 200): "choose a shorter",
	} {
		err := pages.Serve(t.Context(), pages.ServerDeps{Dir: dir, Instance: instance, Clock: clocktesting.NewFakeClock(time.Now())}, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("instance %q: error %v, want one with %q", instance, err, want)
		}
	}
}
