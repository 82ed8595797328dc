package kubeletsync

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/podwatch"
)

const (
	// lookInterval is the time between two looks at the node without a reason: a
	// container that ends writes no file that could be watched.
	lookInterval = 2 * time.Second
	// busyInterval is the same while an orphan holds a device, while the checkpoint is not known (see
	// ledger.MaxLookAge), and for busyAfter since a device was allocated: its container is about to start.
	busyInterval = 250 * time.Millisecond
	busyAfter    = 5 * time.Second
	// settle is how long a look waits for the end of a burst of events.
	settle = 20 * time.Millisecond
	// cleanInterval is the time between two checks for grants that are no longer used.
	cleanInterval = time.Minute
	// resolveInterval is the time between two consistent lists for pods that the watch has never seen.
	resolveInterval = time.Second
	resolveWithin   = 2 * time.Second
)

// Node reads the node.
type Node interface {
	Living() ([]ledger.Container, error)
	Assigned() ([]ledger.Assignment, error)
	Pod(uid string) ledger.PodFacts
	// NoteListed records which pods the checkpoint and the ledger list.
	NoteListed(uids []string)
}

// Pods is the watch of this node's pods.
type Pods interface {
	Pod(uid string) (podwatch.Pod, podwatch.State)
	Resolve(ctx context.Context, uids []string) error
	Current() (bool, error)
	// Changed signals a change of the node's pods.
	Changed() <-chan struct{}
}

// Cleaner cleans the folders of grants; [Grants] is one.
type Cleaner interface {
	Clean(holdings []ledger.Holding, assignments []ledger.Assignment, now time.Time)
}

// Deps are the dependencies of a Sync.
type Deps struct {
	KubeletDir string
	Node       Node
	// Claims reads the kubelet's record of prepared claims; the names of the pods are not in it.
	Claims func() ([]ledger.ClaimPods, error)
	Pods   Pods
	// Names are the resources under which devices are, or were, allocated.
	Names  func() []string
	Ledger *ledger.Ledger
	Grants Cleaner
	// Report replaces the problems of a source. It must not block.
	Report func(source string, causes ...gpu.Cause)
	Clock  clock.Clock
	Log    *slog.Logger
}

// Sync keeps the ledger in line with the kubelet. Look is for one goroutine.
type Sync struct {
	deps Deps
	// unsure is the reason why the last look did not show the kubelet's assignments; empty when it did.
	unsure atomic.Pointer[string]
	// living are the containers of the last look that could read them.
	living atomic.Pointer[[]ledger.Container]
	// resolving is true while a Resolve is in progress; resolved is when the last one began.
	resolving atomic.Bool
	// uncertain is true when the last look had no checkpoint.
	uncertain bool
	// cleaned is when the folder of grants was last cleaned.
	cleaned  time.Time
	resolved time.Time
}

// New returns a Sync; nothing is read yet.
func New(deps Deps) *Sync {
	s := &Sync{deps: deps}
	before := "the ledger was not compared with the kubelet yet"
	s.unsure.Store(&before)
	s.living.Store(&[]ledger.Container{})
	return s
}

// Unsure returns the reason why the kubelet's assignments are unknown; empty when they are known.
func (s *Sync) Unsure() string { return *s.unsure.Load() }

// containers are those that were running at the last look. The list must not be changed.
func (s *Sync) containers() []ledger.Container { return *s.living.Load() }

// ContainerName returns the name of a container that was running at the last look; empty for another one.
func (s *Sync) ContainerName(id string) string {
	for _, c := range s.containers() {
		if c.ID == id {
			return c.Name
		}
	}
	return ""
}

// PodName returns NAMESPACE/NAME of the pod with a UID, as the containers or the ledger name it; empty when neither does.
func (s *Sync) PodName(uid string) string {
	for _, c := range s.containers() {
		if c.PodUID == uid && c.Pod != "" {
			return c.Namespace + "/" + c.Pod
		}
	}
	for _, h := range s.deps.Ledger.Holdings() {
		if h.Holder.PodUID == uid && h.Holder.Name != "" {
			return h.Holder.Namespace + "/" + h.Holder.Name
		}
	}
	return ""
}

// KubeletRestarted withholds the devices that running containers use until the assignments of the new kubelet are
// known. The change of the ledger leads to the next look.
func (s *Sync) KubeletRestarted() {
	s.deps.Log.Info("Kubelet restarted; devices in use are withheld until its checkpoint is read")
	s.deps.Ledger.Distrust()
}

// Run looks whenever something has changed, until ctx ends. The caller makes the first look.
func (s *Sync) Run(ctx context.Context) error {
	clock := s.deps.Clock
	checkpoint := s.watchCheckpoint(ctx)
	holdings := s.deps.Ledger.Subscribe()
	defer holdings.Close()
	allocated := clock.Now()
	for {
		interval := lookInterval
		if s.uncertain || s.blocked() || clock.Since(allocated) < busyAfter {
			interval = busyInterval
		}
		select {
		case <-ctx.Done():
			return nil
		case <-checkpoint:
		case <-s.deps.Pods.Changed():
		case <-holdings.C():
			allocated = clock.Now()
		case <-clock.After(interval):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-clock.After(settle):
		}
		for _, changed := range []<-chan struct{}{checkpoint, s.deps.Pods.Changed()} {
			select {
			case <-changed: // This look includes the change.
			default:
			}
		}
		s.Look(ctx)
	}
}

// blocked reports whether a device is blocked by an orphan, which ends without an event, or by maintenance. A claim's end is
// a call.
func (s *Sync) blocked() bool {
	for _, h := range s.deps.Ledger.Blocked() {
		if h.Holder.Kind != gpu.HolderClaim {
			return true
		}
	}
	return false
}

// Look reads the node and brings the ledger in line with it. The order matters: containers before the checkpoint and the claims (see
// ledger.NodeView).
func (s *Sync) Look(ctx context.Context) {
	n := s.deps.Node
	view := s.deps.Ledger.NewView()
	view.Containers, view.ContainersErr = n.Living()
	if view.ContainersErr == nil {
		seen := view.Containers
		s.living.Store(&seen)
	}
	s.report("processes", "PROCESSES_UNREADABLE", view.ContainersErr)
	view.Assignments, view.CheckpointErr = n.Assigned()
	view.Claims = s.claims()
	s.uncertain = view.CheckpointErr != nil
	s.noteCheckpoint(view.CheckpointErr)
	uids := s.uids(view)
	n.NoteListed(uids)
	s.resolve(ctx, uids)
	for _, uid := range uids {
		view.Pods = append(view.Pods, s.pod(uid))
	}
	changes := s.deps.Ledger.Reconcile(view)
	if now := s.deps.Clock.Now(); view.CheckpointErr == nil && now.Sub(s.cleaned) >= cleanInterval {
		s.cleaned = now
		s.deps.Grants.Clean(s.deps.Ledger.Holdings(), view.Assignments, now)
	}
	s.noteChanges(changes)
}

// claims returns the pods of the claims that the kubelet lists, with the names that the watch has; nil when its record cannot be read.
func (s *Sync) claims() []ledger.ClaimPods {
	claims, err := s.deps.Claims()
	s.report("claim pods", "DRA_PODS_UNKNOWN", err)
	for i := range claims {
		for k := range claims[i].Pods {
			known, _ := s.deps.Pods.Pod(claims[i].Pods[k].UID)
			claims[i].Pods[k].Namespace, claims[i].Pods[k].Name = known.Namespace, known.Name
		}
	}
	return claims
}

// uids are the pods of the checkpoint and of the ledger, sorted.
func (s *Sync) uids(view ledger.NodeView) []string {
	var uids []string
	for _, a := range view.Assignments {
		uids = append(uids, a.PodUID)
	}
	for _, h := range s.deps.Ledger.Holdings() {
		if h.Holder.PodUID != "" {
			uids = append(uids, h.Holder.PodUID)
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}

// resolve requests pods that the watch has never seen, at most once per resolveInterval. Nothing waits for it: its
// result is a change of the pods.
func (s *Sync) resolve(ctx context.Context, uids []string) {
	answers, failure := s.deps.Pods.Current()
	s.report("pods", "PODS_UNKNOWN", failure)
	unknown := slices.DeleteFunc(slices.Clone(uids), func(uid string) bool {
		_, state := s.deps.Pods.Pod(uid)
		return state != podwatch.Unknown
	})
	if !answers || len(unknown) == 0 || s.deps.Clock.Since(s.resolved) < resolveInterval || !s.resolving.CompareAndSwap(false, true) {
		return
	}
	s.resolved = s.deps.Clock.Now()
	go func() {
		defer s.resolving.Store(false)
		ctx, cancel := context.WithTimeout(ctx, resolveWithin)
		defer cancel()
		if err := s.deps.Pods.Resolve(ctx, unknown); err != nil {
			s.deps.Log.Debug("Could not look for pods that the watch has not seen", "error", err)
		}
	}()
}

// pod returns the facts about a pod for the ledger.
func (s *Sync) pod(uid string) ledger.NodePod {
	facts := s.deps.Node.Pod(uid)
	pod := ledger.NodePod{UID: uid, Namespace: facts.Namespace, Name: facts.Name, Ended: facts.State == ledger.PodEnded}
	known, _ := s.deps.Pods.Pod(uid)
	for _, resource := range s.deps.Names() {
		pod.Devices += known.Counted[resource]
	}
	return pod
}

// noteCheckpoint reports a damaged file, or the absence of its directory, as a problem. A missing file is not a problem:
// a kubelet that never had a device plugin has none.
func (s *Sync) noteCheckpoint(err error) {
	unsure := ""
	if err != nil && !errors.Is(err, kubelet.ErrNoCheckpoint) {
		unsure = "the kubelet's checkpoint cannot be read: " + err.Error()
	}
	s.unsure.Store(&unsure)
	var absent error
	if errors.Is(err, kubelet.ErrNoCheckpoint) {
		err, absent = nil, s.directoryAbsent()
	}
	s.report("checkpoint", "CHECKPOINT_UNREADABLE", err)
	s.report("kubelet directory", "KUBELET_DIR_MISSING", absent)
}

// directoryAbsent returns an error if the directory of the checkpoint, which the kubelet creates when it starts, does not
// exist.
func (s *Sync) directoryAbsent() error {
	dir := filepath.Dir(filepath.Join(s.deps.KubeletDir, kubelet.CheckpointFile))
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s does not exist; the agent waits for the kubelet to create it", dir)
	}
	return nil
}

func (s *Sync) report(source, code string, err error) {
	if err == nil {
		s.deps.Report(source)
		return
	}
	s.deps.Report(source, gpu.Cause{Code: code, Message: err.Error()})
}
