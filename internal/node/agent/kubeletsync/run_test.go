package kubeletsync

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/podwatch"
	"github.com/berth-gpu/berth/internal/node/signal"
)

var gpuA = gpu.DeviceKey{GPU: "GPU-11ba558d-3437-2335-2fd8-a78c8502f87f"}

// count returns how many looks are made while do runs and for some time after it.
func (w *world) count(do func(), after time.Duration) int {
	var before, now int
	w.set(func() { before = w.looks })
	do()
	time.Sleep(after)
	w.set(func() { now = w.looks })
	return now - before
}

// TestRunLooksPerEvent counts the looks at the node: one for a change of the pods, however often it is signalled; those of a
// busy node after an allocation; and one every two seconds when nothing happens.
func TestRunLooksPerEvent(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := &world{changed: signal.New(), assignedErr: kubelet.ErrNoCheckpoint}
		s, book := w.newSync(t, dir)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		s.Look(ctx)
		w.set(func() { w.assignedErr = nil })
		go func() { ended <- s.Run(ctx) }()
		time.Sleep(busyAfter + lookInterval)
		steps := []struct {
			event string
			do    func()
			after time.Duration
			want  int
		}{
			{"nothing", func() {}, 10*lookInterval + 10*settle, 10},
			{"a change of the pods", func() {
				for range 3 {
					w.changed.Set()
				}
			}, lookInterval / 2, 1},
			{"an allocation", func() {
				if err := book.Allocate("nvidia.com/gpu", "grant", []gpu.DeviceKey{gpuA}); err != nil {
					t.Error(err)
				}
			}, 2 * settle, 1},
			{"the moments after an allocation", func() {}, 2 * time.Second, int(2 * time.Second / (busyInterval + settle))},
		}
		for _, step := range steps {
			if got := w.count(step.do, step.after); got != step.want {
				t.Errorf("%s: %d looks, want %d", step.event, got, step.want)
			}
			synctest.Wait()
		}
		w.set(func() { w.assignedErr = errors.New("torn") })
		time.Sleep(busyAfter + lookInterval)
		if got, want := w.count(func() {}, 2*time.Second), int(2*time.Second/(busyInterval+settle)); got != want {
			t.Errorf("a checkpoint that cannot be read: %d looks, want %d", got, want)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestRunLooksWhileHeld: a claim that is held makes no more looks than an idle node, maintenance does.
func TestRunLooksWhileHeld(t *testing.T) {
	often := int(10 * time.Second / (busyInterval + settle))
	for kind, want := range map[gpu.HolderKind]int{gpu.HolderClaim: 5, gpu.HolderMaintenance: often} {
		t.Run(string(kind), func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				w := &world{changed: signal.New()}
				s, book := w.newSync(t, dir)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error)
				go func() { ended <- s.Run(ctx) }()
				if err := book.Acquire(gpu.Holder{Kind: kind, ID: "x"}, []gpu.DeviceKey{gpuA}); err != nil {
					t.Error(err)
				}
				time.Sleep(2*busyAfter + lookInterval)
				if got := w.count(func() {}, 10*time.Second+5*settle); got < want-1 || got > want+1 {
					t.Errorf("%d looks in 10 s, want %d", got, want)
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestRunWatchesTheCheckpoint checks that a checkpoint that the kubelet replaces is read immediately, also in a directory
// that is created after the start, and again after its removal.
func TestRunWatchesTheCheckpoint(t *testing.T) {
	w := &world{}
	dir := t.TempDir()
	s, _ := w.newSync(t, dir)
	fake := clocktesting.NewFakeClock(time.Now())
	s.deps.Clock = fake
	path := filepath.Join(dir, "kubelet", kubelet.CheckpointFile)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes := s.watchCheckpoint(ctx)
	<-changes // It is signalled at first.
	write := func(name string) {
		t.Helper()
		if err := os.WriteFile(path+".new", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", filepath.Join(filepath.Dir(path), name)); err != nil {
			t.Fatal(err)
		}
	}
	await := func(what string) {
		t.Helper()
		select {
		case <-changes:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s, and no change is signalled", what)
		}
	}
	retry := func() {
		for !fake.HasWaiters() {
			time.Sleep(time.Millisecond)
		}
		fake.Step(lookInterval)
	}
	for range 2 {
		retry() // The directory does not exist.
		select {
		case <-changes:
			t.Error("a change is signalled without a directory")
		case <-time.After(20 * time.Millisecond):
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		retry()
		await("the directory was created")
		write("other")
		select {
		case <-changes:
			t.Error("another file signals a change of the checkpoint")
		case <-time.After(20 * time.Millisecond):
		}
		for range 2 {
			write(filepath.Base(path))
			await("the checkpoint was replaced")
		}
		if err := os.RemoveAll(filepath.Join(dir, "kubelet")); err != nil {
			t.Fatal(err)
		}
		for !fake.HasWaiters() { // The watch has ended. The removal of the file may be signalled before.
			time.Sleep(time.Millisecond)
		}
		select {
		case <-changes:
		default:
		}
	}
}

// TestLookReports checks that what cannot be read is a problem until it can be read again, and that Unsure has the
// reason. A missing checkpoint is not a problem: a kubelet that never had a device plugin has none. Its missing directory
// is one until the kubelet creates it.
func TestLookReports(t *testing.T) {
	w, dir := &world{}, t.TempDir()
	s, _ := w.newSync(t, dir)
	if s.Unsure() == "" {
		t.Error("before the first look it is known what the kubelet remembers")
	}
	tests := []struct {
		name   string
		do     func()
		unsure bool
		want   []string
	}{
		{"no problem", func() {}, false, nil},
		{"no kubelet", func() { w.assignedErr = kubelet.ErrNoCheckpoint }, false, []string{"KUBELET_DIR_MISSING"}},
		{"no checkpoint", func() {
			if err := os.MkdirAll(filepath.Join(dir, "kubelet", filepath.Dir(kubelet.CheckpointFile)), 0o755); err != nil {
				t.Error(err)
			}
		}, false, nil},
		{"a damaged checkpoint", func() { w.assignedErr = errors.New("torn") }, true, []string{"CHECKPOINT_UNREADABLE"}},
		{"no processes", func() { w.assignedErr, w.livingErr = nil, errors.New("no cgroups") }, false, []string{"PROCESSES_UNREADABLE"}},
		{"no API server", func() { w.livingErr, w.away = nil, true }, false, []string{"PODS_UNKNOWN"}},
		{"the API server responds again", func() { w.away = false }, false, nil},
	}
	for _, tc := range tests {
		w.set(tc.do)
		s.Look(t.Context())
		var codes []string
		for _, causes := range w.problems {
			for _, cause := range causes {
				codes = append(codes, cause.Code)
			}
		}
		slices.Sort(codes)
		if diff := cmp.Diff(tc.want, codes); diff != "" || (s.Unsure() != "") != tc.unsure {
			t.Errorf("%s: unsure %q, problems (-want +got):\n%s", tc.name, s.Unsure(), diff)
		}
	}
	if w.cleans != 1 {
		t.Errorf("grants were cleaned %d times, want once within a minute", w.cleans)
	}
}

// TestLookResolvesUnknownPods checks that pods that the watch has never seen are requested at most once per second, and
// not while the API server does not respond.
func TestLookResolvesUnknownPods(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			assigned: []ledger.Assignment{
				{PodUID: "known", Container: "c", Resource: "nvidia.com/gpu", Keys: []gpu.DeviceKey{gpuA}},
				{PodUID: "unknown", Container: "c", Resource: "nvidia.com/gpu", Keys: []gpu.DeviceKey{{GPU: "GPU-b"}}},
			},
			states: map[string]podwatch.State{"known": podwatch.Living},
		}
		s, _ := w.newSync(t, dir)
		look := func() {
			s.Look(t.Context())
			synctest.Wait()
		}
		look()
		look()
		if diff := cmp.Diff([][]string{{"unknown"}}, w.resolved); diff != "" {
			t.Errorf("resolved (-want +got):\n%s", diff)
		}
		time.Sleep(resolveInterval)
		look()
		if len(w.resolved) != 2 {
			t.Errorf("after a second it was resolved %d times, want 2", len(w.resolved))
		}
		time.Sleep(resolveInterval)
		w.away = true
		look()
		if len(w.resolved) != 2 {
			t.Error("pods are requested while the API server does not respond")
		}
	})
}

// TestNames checks that a container has a name as long as it runs, and a pod also as long as it holds a device.
func TestNames(t *testing.T) {
	w := &world{
		living:   []ledger.Container{{ID: "id", Name: "main", PodUID: "running", Namespace: "ns", Pod: "first"}},
		assigned: []ledger.Assignment{{PodUID: "holding", Container: "c", Resource: "nvidia.com/gpu", Keys: []gpu.DeviceKey{gpuA}}},
		pods:     map[string]podwatch.Pod{"holding": {UID: "holding", Namespace: "ns", Name: "second"}},
		states:   map[string]podwatch.State{"holding": podwatch.Living},
	}
	s, _ := w.newSync(t, t.TempDir())
	s.Look(t.Context())
	for uid, want := range map[string]string{"running": "ns/first", "holding": "ns/second", "other": ""} {
		if got := s.PodName(uid); got != want {
			t.Errorf("pod %s is %q, want %q", uid, got, want)
		}
	}
	for id, want := range map[string]string{"id": "main", "other": ""} {
		if got := s.ContainerName(id); got != want {
			t.Errorf("container %s is %q, want %q", id, got, want)
		}
	}
}

// TestKubeletRestarted checks that a device with a running container is withheld until a checkpoint is read.
func TestKubeletRestarted(t *testing.T) {
	w := &world{living: []ledger.Container{{ID: "id", PodUID: "p", Namespace: "ns", Pod: "pod", Name: "main", Keys: []gpu.DeviceKey{gpuA}, Open: []gpu.DeviceKey{gpuA}}}}
	w.assigned = []ledger.Assignment{{PodUID: "p", Container: "main", Resource: "nvidia.com/gpu", Keys: []gpu.DeviceKey{gpuA}}}
	w.states = map[string]podwatch.State{"p": podwatch.Living}
	s, book := w.newSync(t, t.TempDir())
	s.Look(t.Context())
	if _, blocked := book.BlockedBy("nvidia.com/gpu", gpuA); blocked {
		t.Fatal("the device of a pod that the checkpoint lists is withheld")
	}
	s.KubeletRestarted()
	if _, blocked := book.BlockedBy("nvidia.com/gpu", gpuA); !blocked {
		t.Error("after a restart of the kubelet the device is not withheld")
	}
	s.Look(t.Context())
	if _, blocked := book.BlockedBy("nvidia.com/gpu", gpuA); blocked {
		t.Error("the device is withheld after the checkpoint was read")
	}
}
