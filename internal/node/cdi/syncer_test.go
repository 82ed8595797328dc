package cdi_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/cdi"
	"github.com/berth-gpu/berth/internal/node/inventory"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// source is hardware with scripted scans.
type source struct{ found chan gpu.Snapshot }

func (s *source) Traits() gpu.Traits { return gpu.Traits{Name: gpu.NVIDIA} }

func (s *source) Scan(ctx context.Context) (gpu.Snapshot, error) {
	select {
	case snapshot := <-s.found:
		return snapshot, nil
	case <-ctx.Done():
		return gpu.Snapshot{}, ctx.Err()
	}
}

func (s *source) Watch(ctx context.Context, _ func(gpu.Event)) error { <-ctx.Done(); return nil }

// writer is a spec writer that counts its calls, and blocks on request.
type writer struct {
	dir      string
	syncs    atomic.Int64
	hang     chan struct{}
	problems []gpu.Cause
}

func (w *writer) Sync(_ context.Context, snapshot *gpu.Snapshot, _ cdi.Extras) (bool, error) {
	w.syncs.Add(1)
	if w.hang != nil {
		<-w.hang
	}
	text := `{"cdiVersion": "0.5.0", "kind": "k8s.berth.dev/gpu", "devices": [{"name": "` + string(snapshot.GPUs[0].UUID) + `", "containerEdits": {}}]}`
	err := os.WriteFile(filepath.Join(w.dir, cdi.FileName), []byte(text), 0o600)
	return true, err
}

func (w *writer) Problems() []gpu.Cause { return w.problems }

// world is a Syncer with its dependencies.
type world struct {
	*cdi.Syncer
	hardware *inventory.Inventory
	source   *source
	writer   *writer
	changed  atomic.Int64
	touched  *signal.Signal
	hook     atomic.Pointer[error]
	settled  signal.Broadcast
	problems map[string][]gpu.Cause
	end      context.CancelFunc
	done     chan error
}

func newWorld(t *testing.T) *world {
	w := &world{
		source: &source{found: make(chan gpu.Snapshot)}, writer: &writer{dir: t.TempDir()},
		problems: map[string][]gpu.Cause{}, done: make(chan error, 1), touched: signal.New(),
	}
	<-w.touched.C()
	dev := t.TempDir()
	if err := errors.Join(
		os.MkdirAll(filepath.Join(dev, "dev/nvidia-caps-imex-channels"), 0o755),
		os.WriteFile(filepath.Join(dev, "dev/nvidia-caps-imex-channels/channel3"), nil, 0o600),
	); err != nil {
		t.Fatal(err)
	}
	w.hardware = inventory.New(inventory.Deps{Vendors: []inventory.Source{w.source}, Clock: clock.RealClock{}, Poll: time.Hour, Deadline: time.Hour})
	w.Syncer = cdi.NewSyncer(cdi.SyncerDeps{
		Writer: w.writer, Dir: w.writer.dir, DevRoot: dev, Hardware: w.hardware,
		Extras:  func() cdi.Extras { return cdi.Extras{IMEXChannels: []int{0, 3}} },
		Settled: w.settled.Subscribe,
		Hook: func() error {
			if err := w.hook.Load(); err != nil {
				return *err
			}
			return nil
		},
		Watch:   func(context.Context) <-chan struct{} { return w.touched.C() },
		Report:  func(source string, problems ...gpu.Cause) { w.problems[source] = problems },
		Changed: func() { w.changed.Add(1) },
		Clock:   clock.RealClock{},
	})
	ctx, cancel := context.WithCancel(t.Context())
	w.end = cancel
	go w.hardware.Run(ctx)
	go func() { w.done <- w.Run(ctx) }()
	synctest.Wait()
	return w
}

// change makes a scan find another GPU.
func (w *world) change(id gpu.UUID) {
	go w.hardware.Refresh(context.Background())
	synctest.Wait()
	w.scan(id)
}

// scan makes the running scan find one GPU.
func (w *world) scan(id gpu.UUID) {
	defer synctest.Wait()
	defer w.settled.Set()
	w.source.found <- gpu.Snapshot{Vendors: []gpu.VendorState{{Name: gpu.NVIDIA, Driver: gpu.Driver{Version: "1"}}}, GPUs: []gpu.GPU{{UUID: id, Vendor: gpu.NVIDIA}}}
	synctest.Wait()
}

func (w *world) wake() {
	w.Recheck()
	synctest.Wait()
}

// TestOneComparisonPerEvent counts: each event leads to one comparison, and only a different result is reported.
func TestOneComparisonPerEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.wake()
		if w.writer.syncs.Load() != 0 || w.Current() != nil {
			t.Errorf("before the first scan: %d comparisons, %v; want none", w.writer.syncs.Load(), w.Current())
		}
		w.scan("GPU-a")
		want := &cdi.Injection{Names: map[string]bool{"GPU-a": true}, IMEXChannels: []int{3}}
		if diff := cmp.Diff(want, w.Current()); diff != "" {
			t.Errorf("what can be injected (-want +got):\n%s", diff)
		}
		// The inventory signals twice at first: that it has changed, and that it is ready.
		w.writer.syncs.Store(0)
		w.changed.Store(0)
		steps := []struct {
			name    string
			do      func()
			syncs   int64
			changed int64
		}{
			{"a wake without effect", w.wake, 1, 0},
			{"a change of the use", func() { w.settled.Set(); synctest.Wait() }, 2, 0},
			{"another GPU", func() { w.change("GPU-b") }, 3, 1},
			{"the tick of a minute", func() { time.Sleep(cdi.ResyncInterval); synctest.Wait() }, 4, 1},
		}
		for _, step := range steps {
			step.do()
			if syncs, changed := w.writer.syncs.Load(), w.changed.Load(); syncs != step.syncs || changed != step.changed {
				t.Errorf("after %s: %d comparisons and %d changes, want %d and %d", step.name, syncs, changed, step.syncs, step.changed)
			}
		}
		w.end()
		if err := <-w.done; err != nil {
			t.Error(err)
		}
	})
}

// TestAFileThatHangs checks that a file call that hangs leaves the last state in force, is reported, starts no second
// comparison, does not block the end of the actor, and that the problem ends when the call returns.
func TestAFileThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.scan("GPU-a")
		w.writer.hang = make(chan struct{})
		w.writer.syncs.Store(1)
		for range 3 {
			w.wake()
		}
		if w.writer.syncs.Load() != 2 {
			t.Errorf("%d comparisons, want that of the scan and the one that hangs", w.writer.syncs.Load())
		}
		time.Sleep(cdi.SyncDeadline)
		synctest.Wait()
		if got := w.problems["cdi"]; len(got) != 1 || got[0].Code != "CDI_SPEC_KEPT" {
			t.Errorf("problems are %v, want CDI_SPEC_KEPT", got)
		}
		if !w.Current().Names["GPU-a"] {
			t.Error("what was known before is forgotten")
		}
		hang := w.writer.hang
		w.writer.hang = nil
		close(hang)
		synctest.Wait()
		if got := w.problems["cdi"]; len(got) != 0 || w.writer.syncs.Load() != 3 {
			t.Errorf("after the end of the hang: problems %v and %d comparisons, want none and one more for what came meanwhile", got, w.writer.syncs.Load())
		}
		w.writer.hang = make(chan struct{})
		w.wake()
		began := time.Now()
		w.end()
		if err := <-w.done; err != nil || time.Since(began) != 0 {
			t.Errorf("Run returned %v after %s, want nil immediately", err, time.Since(began))
		}
		close(w.writer.hang)
		synctest.Wait()
	})
}

// TestSpecThatCannotBeReadBack checks that the known names are kept and the problem is reported.
func TestSpecThatCannotBeReadBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.scan("GPU-a")
		if err := os.Remove(filepath.Join(w.writer.dir, cdi.FileName)); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(w.writer.dir, cdi.FileName), 0o755); err != nil {
			t.Fatal(err)
		}
		w.wake()
		if got := w.problems["cdi-spec"]; len(got) != 1 || got[0].Code != "CDI_SPEC_UNREADABLE" || !w.Current().Names["GPU-a"] {
			t.Errorf("problems %v, names %v; want CDI_SPEC_UNREADABLE and the names of before", got, w.Current().Names)
		}
		w.end()
		<-w.done
	})
}

// TestTouched: what another program has removed is there again at once; a hook program that cannot be installed again is a problem.
func TestTouched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.scan("GPU-a")
		w.settled.Set()
		synctest.Wait()
		if err := os.Remove(filepath.Join(w.writer.dir, cdi.FileName)); err != nil {
			t.Fatal(err)
		}
		broken := errors.New("install CDI hook: read-only file system")
		w.hook.Store(&broken)
		before := w.writer.syncs.Load()
		w.touched.Set()
		synctest.Wait()
		if _, err := os.Stat(filepath.Join(w.writer.dir, cdi.FileName)); err != nil || w.writer.syncs.Load() != before+1 {
			t.Errorf("after %d comparisons: %v", w.writer.syncs.Load()-before, err)
		}
		if diff := cmp.Diff([]gpu.Cause{{Code: "CDI_HOOK_MISSING", Message: broken.Error()}}, w.problems["cdi"]); diff != "" {
			t.Errorf("problems (-want +got):\n%s", diff)
		}
		w.end()
		if err := <-w.done; err != nil {
			t.Error(err)
		}
	})
}
