package hostruntime

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

// kubeletLookInterval is the time between two looks at the kubelet's socket. A look at a socket that is the same reads its attributes only.
const kubeletLookInterval = 10 * time.Second

// KubeletDeps are the dependencies of a KubeletFollower.
type KubeletDeps struct {
	// KubeletDir is the kubelet's root directory.
	KubeletDir string
	// ProcRoot is where the machine's /proc is.
	ProcRoot string
	Clock    clock.Clock
	Log      *slog.Logger
}

// KubeletFollower knows the policy of the kubelet that runs, also after its restart. Create it with FollowKubelet, start it with Run.
type KubeletFollower struct {
	deps    KubeletDeps
	socket  string
	policy  atomic.Pointer[string]
	changed signal.Broadcast

	// read is the socket of the kubelet whose policy is known; zero for none.
	read socketIdentity
	// said is the last reason in the log.
	said string
}

// socketIdentity tells the socket of one kubelet from that of the next: each kubelet makes it again when it starts.
type socketIdentity struct {
	device  uint64
	inode   uint64
	changed syscall.Timespec
}

// FollowKubelet returns a KubeletFollower; nothing is read yet.
func FollowKubelet(deps KubeletDeps) *KubeletFollower {
	f := &KubeletFollower{deps: deps, socket: filepath.Join(deps.KubeletDir, "device-plugins", "kubelet.sock")}
	f.policy.Store(new(string))
	return f
}

// TopologyManagerPolicy returns the policy of the topology manager: PolicyNone or another of the four, or empty while it is not known.
func (f *KubeletFollower) TopologyManagerPolicy() string { return *f.policy.Load() }

// Subscribe signals changes of the policy.
func (f *KubeletFollower) Subscribe() *signal.Subscription { return f.changed.Subscribe() }

// Run reads the policy of each kubelet that starts, until ctx ends. It waits for the kubelet; while none runs, the policy of the last one
// is kept. The reason why a policy cannot be read is logged once.
func (f *KubeletFollower) Run(ctx context.Context) error {
	for {
		f.look()
		select {
		case <-ctx.Done():
			return nil
		case <-f.deps.Clock.After(kubeletLookInterval):
		}
	}
}

// look reads the policy unless that of this kubelet is known.
func (f *KubeletFollower) look() {
	now, err := identify(f.socket)
	if err == nil && now == f.read {
		return
	}
	policy := ""
	if err == nil {
		policy, err = f.ask()
	}
	if !errors.Is(err, errNotServed) {
		f.read = socketIdentity{}
		if err == nil {
			f.read = now
		}
		f.set(policy)
	}
	f.say(policy, err)
}

// say logs a policy, and the reason why there is none unless it is the last one in the log.
func (f *KubeletFollower) say(policy string, err error) {
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
func (f *KubeletFollower) set(policy string) {
	if f.TopologyManagerPolicy() == policy {
		return
	}
	f.policy.Store(&policy)
	f.changed.Set()
}

// ask reads the policy of the kubelet that listens now.
func (f *KubeletFollower) ask() (string, error) {
	connection, pid, err := socketPeer(f.socket)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	found, err := inspectKubelet(f.deps.ProcRoot, pid)
	if err != nil {
		return "", err
	}
	return found.topologyManagerPolicy()
}

func identify(socket string) (socketIdentity, error) {
	info, err := os.Stat(socket)
	if err != nil {
		return socketIdentity{}, errors.Join(errNotServed, err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return socketIdentity{}, errors.New("the file system says nothing of the socket")
	}
	return socketIdentity{device: uint64(stat.Dev), inode: stat.Ino, changed: stat.Ctim}, nil
}
