package hostruntime

import (
	"bufio"
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

// socketVariable makes this test program a kubelet that listens.
const socketVariable = "BERTH_TEST_KUBELET_SOCKET"

func TestMain(m *testing.M) {
	if socket := os.Getenv(socketVariable); socket != "" {
		listener, err := net.Listen("unix", socket)
		if err != nil {
			os.Exit(1)
		}
		os.Stdout.WriteString("listening\n")
		_, _ = bufio.NewReader(os.Stdin).ReadByte() // until the test ends it
		_ = listener.Close()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// start starts this program as a kubelet with arguments, and returns a function that ends it and removes its socket.
func start(t *testing.T, socket string, argv ...string) (end func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Env = argv, append(os.Environ(), socketVariable+"="+socket)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end = func() {
		if !ended {
			ended = true
			in.Close()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(end)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the kubelet printed %q: %v", line, err)
	}
	return end
}

// TestFollower follows processes that listen, restart, and are no kubelet; the kernel says which they are.
func TestFollower(t *testing.T) {
	dir, err := os.MkdirTemp("", "kc") // short: an address of a socket has at most 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket, file := filepath.Join(dir, "device-plugins", "kubelet.sock"), filepath.Join(dir, "config.yaml")
	if err := os.Mkdir(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(config("topologyManagerPolicy: restricted")), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	f := FollowKubelet(KubeletDeps{KubeletDir: dir, ProcRoot: "/proc", Clock: clock.RealClock{}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	changes := f.Subscribe()
	defer changes.Close()
	<-changes.C() // A subscription is signalled when it is made.
	check := func(when, want string, changed bool, lines int, said string) {
		t.Helper()
		log.Reset()
		f.look()
		f.look()
		if got := f.TopologyManagerPolicy(); got != want {
			t.Errorf("%s: policy %q, want %q; log: %s", when, got, want, &log)
		}
		if got := strings.Count(log.String(), "\n"); got != lines || !strings.Contains(log.String(), said) {
			t.Errorf("%s: the log has %d lines, want %d with %q:\n%s", when, got, lines, said, &log)
		}
		select {
		case <-changes.C():
			if !changed {
				t.Errorf("%s: a change was signalled", when)
			}
		default:
			if changed {
				t.Errorf("%s: no change was signalled", when)
			}
		}
	}
	check("without a kubelet", "", false, 1, "no kubelet listens")
	end := start(t, socket, "/usr/bin/kubelet", "--config="+file)
	check("with a kubelet", "restricted", true, 1, "policy=restricted")
	end()
	check("while it is away", "restricted", false, 1, "no kubelet listens")
	end = start(t, socket, "kubelet", "--topology-manager-policy", "best-effort")
	check("after its restart", "best-effort", true, 1, "policy=best-effort")
	end()
	end = start(t, socket, "k3s", "agent")
	check("in another program", "", true, 1, "part of the program")
	end()
	check("after that", "", false, 1, "no kubelet listens")
	end = start(t, socket, "kubelet")
	check("a kubelet again", "none", true, 1, "policy=none")
	end()
	// A socket that is left behind: connections are refused.
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	listener.Close()
	check("a socket that is not served", "none", false, 1, "connection refused")
}

// lines is a log that one goroutine writes and another one reads.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestRun looks at once, then in intervals, until its context ends.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		dir := t.TempDir()
		var log lines
		f := FollowKubelet(KubeletDeps{KubeletDir: dir, ProcRoot: "/proc", Clock: clock.RealClock{}, Log: slog.New(slog.NewTextHandler(&log, nil))})
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		synctest.Wait()
		if !strings.Contains(log.String(), "no kubelet listens") {
			t.Errorf("log: %s", &log)
		}
		// A file in place of the socket is another reason.
		if err := os.MkdirAll(filepath.Dir(f.socket), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f.socket, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			time.Sleep(kubeletLookInterval)
			synctest.Wait()
		}
		if count := strings.Count(log.String(), "\n"); count != 2 || !strings.Contains(log.String(), "connection refused") {
			t.Errorf("the log has %d lines, want 2:\n%s", count, &log)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
