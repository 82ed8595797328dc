package hostruntime_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/internal/node/hostruntime"
	"github.com/berth-gpu/berth/internal/node/hostruntime/hosttest"
)

// TestFollower checks that a runtime which starts later, or again with another command line, is found within one interval.
func TestFollower(t *testing.T) {
	host, err := hosttest.Parse([]byte("process 1 host /sbin/init\nprocess 8 host kubelet\nprocess 9 host containerd\n" +
		"socket /run/containerd/containerd.sock containerd v2\nsocket /run/other/containerd.sock containerd v2\n"))
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	later := filepath.Join(host.Root, "proc", "9")
	hidden := later + ".hidden"
	must(t, os.Rename(later, hidden))
	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	follower := hostruntime.Follow(hostruntime.FollowerDeps{
		Deps: hostruntime.Deps{HostRoot: host.Root, Proc: host.Proc}, Clock: clock, Log: slog.New(slog.DiscardHandler),
	})
	if got := follower.Host().Runtime; got.PID != 0 || got.Kind != hostruntime.Containerd {
		t.Fatalf("before the process: %+v, want containerd by its socket", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- follower.Run(ctx) }()
	await := func(what string, wanted func(*hostruntime.Host) bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !wanted(follower.Host()); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %+v", what, follower.Host())
			}
			if clock.HasWaiters() {
				clock.Step(30 * time.Second)
			}
		}
	}
	must(t, os.Rename(hidden, later))
	await("the process has started", func(h *hostruntime.Host) bool { return h.Runtime.PID == 9 })
	known := follower.Host()
	for range 3 { // Nothing is looked for again while the processes are the same.
		for !clock.HasWaiters() {
			time.Sleep(time.Millisecond)
		}
		clock.Step(30 * time.Second)
	}
	if follower.Host() != known {
		t.Error("the host was looked at again although nothing has changed")
	}
	write(t, host.Root, "proc/9/cmdline", "containerd\x00--address\x00/run/other/containerd.sock\x00--state\x00/run/other\x00")
	write(t, host.Root, "proc/9/stat", "9 (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 200 0 0\n")
	await("the process has started again", func(h *hostruntime.Host) bool { return h.Runtime.State.Path == "/run/other" })
	if got, want := follower.Bundles()[0].Dir, filepath.Join(host.Root, "run/other/io.containerd.runtime.v2.task/k8s.io"); got != want {
		t.Errorf("bundles are in %s, want %s", got, want)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
