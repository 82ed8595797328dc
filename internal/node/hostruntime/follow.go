package hostruntime

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/node/kubelet"
)

// lookInterval is the time between two looks at the processes that were found. All processes are looked at only when one of them has ended,
// or was not found yet.
const lookInterval = 30 * time.Second

// FollowerDeps are the dependencies of a Follower.
type FollowerDeps struct {
	Deps
	Clock clock.Clock
	Log   *slog.Logger
}

// Follower knows the host while its programs are restarted and upgraded. Create it with Follow, start it with Run.
type Follower struct {
	deps FollowerDeps
	host atomic.Pointer[Host]
	// started are the times at which the processes of host started, by PID.
	started map[int]uint64
}

// Follow looks at the host and returns a Follower.
func Follow(deps FollowerDeps) *Follower {
	f := &Follower{deps: deps}
	f.look()
	return f
}

// Host returns what the last look has found; it reads nothing.
func (f *Follower) Host() *Host { return f.host.Load() }

// Bundles are those of Host.
func (f *Follower) Bundles() []kubelet.Bundle { return f.Host().Bundles() }

// Run looks at the host again and again until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.deps.Clock.After(lookInterval):
		}
		if !f.same() {
			f.look()
		}
	}
}

// same reports whether the processes that were found still run, and none is missing.
func (f *Follower) same() bool {
	host := f.Host()
	for _, pid := range []int{host.Runtime.PID, host.Kubelet.PID} {
		if ticks, err := kubelet.StartTime(f.deps.Proc, pid); pid == 0 || err != nil || ticks != f.started[pid] {
			return false
		}
	}
	return true
}

// look finds everything again, and logs what has changed.
func (f *Follower) look() {
	host, before := Find(f.deps.Deps), f.Host()
	f.started = map[int]uint64{}
	for _, pid := range []int{host.Runtime.PID, host.Kubelet.PID} {
		if ticks, err := kubelet.StartTime(f.deps.Proc, pid); err == nil {
			f.started[pid] = ticks
		}
	}
	f.host.Store(host)
	if before == nil || before.Runtime.Socket != host.Runtime.Socket || before.Runtime.State != host.Runtime.State || before.Kubelet.Root != host.Kubelet.Root {
		f.deps.Log.Info("Found the container runtime and the kubelet", "runtime", host.Runtime.Kind, "socket", host.Runtime.Socket.Path, "state", host.Runtime.State.Path,
			"config", host.Runtime.Config.Path, "kubelet", host.Kubelet.Root.Path, "notes", host.Notes)
	}
}
