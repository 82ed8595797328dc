package kubeletconfig

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/node/signal"
)

// lookInterval is the time between two looks at the kubelet's socket. A look at a socket that is the same reads its attributes only.
const lookInterval = 10 * time.Second

// Deps are the dependencies of a Follower.
type Deps struct {
	// KubeletDir is the kubelet's root directory.
	KubeletDir string
	// ProcRoot is where the machine's /proc is.
	ProcRoot string
	Clock    clock.Clock
	Log      *slog.Logger
}

// Follower knows the policy of the kubelet that runs, also after its restart. Create it with New, start it with Run.
type Follower struct {
	deps    Deps
	socket  string
	policy  atomic.Pointer[string]
	changed signal.Broadcast

	// read is the socket of the kubelet whose policy is known; zero for none.
	read identity
	// said is the last reason in the log.
	said string
}

// identity tells the socket of one kubelet from that of the next: each kubelet makes it again when it starts.
type identity struct {
	device  uint64
	inode   uint64
	changed syscall.Timespec
}

// New returns a Follower; nothing is read yet.
func New(deps Deps) *Follower {
	f := &Follower{deps: deps, socket: filepath.Join(deps.KubeletDir, "device-plugins", "kubelet.sock")}
	f.policy.Store(new(string))
	return f
}

// TopologyManagerPolicy returns the policy of the topology manager: PolicyNone or another of the four, or empty while it is not known.
func (f *Follower) TopologyManagerPolicy() string { return *f.policy.Load() }

// Subscribe signals changes of the policy.
func (f *Follower) Subscribe() *signal.Subscription { return f.changed.Subscribe() }

// Run reads the policy of each kubelet that starts, until ctx ends. It waits for the kubelet; while none runs, the policy of the last one
// is kept. The reason why a policy cannot be read is logged once.
func (f *Follower) Run(ctx context.Context) error {
	for {
		f.look()
		select {
		case <-ctx.Done():
			return nil
		case <-f.deps.Clock.After(lookInterval):
		}
	}
}

// look reads the policy unless that of this kubelet is known.
func (f *Follower) look() {
	now, err := identify(f.socket)
	if err == nil && now == f.read {
		return
	}
	policy := ""
	if err == nil {
		policy, err = f.ask()
	}
	if !errors.Is(err, errNotServed) {
		f.read = identity{}
		if err == nil {
			f.read = now
		}
		f.set(policy)
	}
	f.say(policy, err)
}

// say logs a policy, and the reason why there is none unless it is the last one in the log.
func (f *Follower) say(policy string, err error) {
	if err == nil {
		f.said = ""
		f.deps.Log.Info("Read the kubelet's topology manager policy", "policy", policy)
		return
	}
	if f.said != err.Error() {
		f.said = err.Error()
		f.deps.Log.Info("Could not read the kubelet's topology manager policy; GPUNode does not have it", "error", err)
	}
}

// set changes the policy.
func (f *Follower) set(policy string) {
	if f.TopologyManagerPolicy() == policy {
		return
	}
	f.policy.Store(&policy)
	f.changed.Set()
}

// ask reads the policy of the kubelet that listens now.
func (f *Follower) ask() (string, error) {
	connection, pid, err := peer(f.socket)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	found, err := inspect(f.deps.ProcRoot, pid)
	if err != nil {
		return "", err
	}
	return found.topologyManagerPolicy()
}

func identify(socket string) (identity, error) {
	info, err := os.Stat(socket)
	if err != nil {
		return identity{}, errors.Join(errNotServed, err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return identity{}, errors.New("the file system says nothing of the socket")
	}
	return identity{device: uint64(stat.Dev), inode: stat.Ino, changed: stat.Ctim}, nil
}
