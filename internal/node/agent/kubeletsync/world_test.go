package kubeletsync

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/podwatch"
	"github.com/berth-gpu/berth/internal/node/signal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is the node, its pods and the kubelet, as the fakes below return them.
type world struct {
	mu     sync.Mutex
	pods   map[string]podwatch.Pod
	states map[string]podwatch.State
	// away: the API server does not answer.
	away     bool
	changed  *signal.Signal
	resolved [][]string
	// living and assigned are the results of the node's methods, or their errors.
	living      []ledger.Container
	livingErr   error
	assigned    []ledger.Assignment
	assignedErr error
	// claims are those of the kubelet's record.
	claims    []ledger.ClaimPods
	claimsErr error
	looks     int
	cgroups   []string
	// gets counts the requests to the kubelet, which fail with getErr.
	gets   int
	getErr error
	// cleans counts the cleanings of the folders of grants.
	cleans int
	// problems are the present ones, by source.
	problems map[string][]gpu.Cause
}

// set changes the world.
func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *world) Pod(uid string) (podwatch.Pod, podwatch.State) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pods[uid], w.states[uid]
}

func (w *world) Current() (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.away {
		return false, errors.New("no route")
	}
	return true, nil
}

func (w *world) Resolve(_ context.Context, uids []string) error {
	w.set(func() { w.resolved = append(w.resolved, slices.Clone(uids)) })
	return errors.New("not now")
}

func (w *world) Changed() <-chan struct{} {
	if w.changed == nil {
		return nil
	}
	return w.changed.C()
}

// Live, InPod and PodUIDs are the containers for nodeview; Get is the kubelet for it.
func (w *world) Live() ([]kubelet.Container, error) { return nil, nil }
func (w *world) PodUIDs() ([]string, error)         { return w.cgroups, nil }

func (w *world) InPod(uid string) ([]kubelet.Container, bool, error) {
	return nil, slices.Contains(w.cgroups, uid), nil
}

func (w *world) Get(context.Context, string, string) (kubelet.PodDevices, error) {
	w.gets++
	return kubelet.PodDevices{}, w.getErr
}

func (w *world) Clean([]ledger.Holding, []ledger.Assignment, time.Time) {
	w.set(func() { w.cleans++ })
}

// report keeps the problems of a source.
func (w *world) report(source string, causes ...gpu.Cause) {
	w.set(func() {
		if w.problems == nil {
			w.problems = map[string][]gpu.Cause{}
		}
		if delete(w.problems, source); len(causes) > 0 {
			w.problems[source] = causes
		}
	})
}

// node is the world as kubeletsync reads it; each look begins with Living.
type node struct{ *world }

func (n node) Living() ([]ledger.Container, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.looks++
	return n.living, n.livingErr
}

func (n node) Assigned() ([]ledger.Assignment, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.assigned, n.assignedErr
}

func (n node) Pod(uid string) ledger.PodFacts {
	pod, state := n.world.Pod(uid)
	facts := ledger.PodFacts{Namespace: pod.Namespace, Name: pod.Name}
	switch state {
	case podwatch.Living:
		facts.State = ledger.PodLiving
	case podwatch.Ended:
		facts.State = ledger.PodEnded
	}
	return facts
}

// recorded is the kubelet's record of prepared claims.
func (w *world) recorded() ([]ledger.ClaimPods, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.claims, w.claimsErr
}

func (n node) NoteListed([]string) {}

// newSync returns a Sync on a fake node, with a ledger of its own. The kubelet's directory is dir/kubelet, which is not
// created.
func (w *world) newSync(t *testing.T, dir string) (*Sync, *ledger.Ledger) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	n := node{w}
	book, err := ledger.Open(ledger.Deps{Path: filepath.Join(dir, "ledger"), BootID: "boot", Log: log, Pod: n.Pod, Assigned: n.Assigned})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { book.Close() })
	return New(Deps{
		KubeletDir: filepath.Join(dir, "kubelet"), Node: n, Claims: w.recorded, Pods: w, Names: func() []string { return []string{"nvidia.com/gpu"} },
		Ledger: book, Grants: w, Report: w.report, Clock: clock.RealClock{}, Log: log,
	}), book
}
