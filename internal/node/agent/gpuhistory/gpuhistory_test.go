package gpuhistory

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/signal"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// machine is the hardware of a node, and what an earlier agent has left.
type machine struct {
	signal.Broadcast
	snapshot  atomic.Pointer[gpu.Snapshot]
	onBus     int
	published bool
	dir       string

	mu       sync.Mutex
	apiError error
	problems []string
}

func (m *machine) isPublished(context.Context) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.published, m.apiError
}

func (m *machine) report(_ string, causes ...gpu.Cause) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.problems = nil
	for _, c := range causes {
		m.problems = append(m.problems, c.Code)
	}
}

// reported returns the codes of the problems.
func (m *machine) reported() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.problems
}

func (m *machine) Current() *gpu.Snapshot { return m.snapshot.Load() }

func (m *machine) scan(gpus int) {
	snapshot := &gpu.Snapshot{GPUs: make([]gpu.GPU, gpus)}
	if gpus == 0 {
		snapshot.Faults = []gpu.Cause{{Code: "DRIVER_MISSING"}, {Code: "OTHER"}}
	}
	m.snapshot.Store(snapshot)
	m.Set()
	synctest.Wait()
}

// start runs a History until stop is called.
func (m *machine) start(t *testing.T) (h *History, stop func()) {
	h = Open(Deps{
		Dir: m.dir, NodeUID: func() string { return "uid" }, OnBus: func() int { return m.onBus }, Hardware: m,
		Published: m.isPublished, Retry: nodeapi.Retry{Clock: clock.RealClock{}, NodeName: "n"},
		FileLost: func(string, statefile.Result, string) {}, Report: m.report,
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	synctest.Wait()
	return h, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func codes(h *History) []string {
	var all []string
	for _, c := range h.Faults() {
		all = append(all, c.Code)
	}
	return all
}

// TestFaults: a missing driver is a problem only where a GPU is, or has been.
func TestFaults(t *testing.T) {
	tests := map[string]struct {
		before func(*machine)
		want   []string
	}{
		"never had a GPU":                  {func(*machine) {}, []string{"OTHER"}},
		"a GPU on the bus":                 {func(m *machine) { m.onBus = 1 }, []string{"DRIVER_MISSING", "OTHER"}},
		"an earlier agent published a GPU": {func(m *machine) { m.published = true }, []string{"DRIVER_MISSING", "OTHER"}},
		"a damaged file": {func(m *machine) {
			if err := os.WriteFile(filepath.Join(m.dir, FileName), []byte("{"), 0o600); err != nil {
				panic(err)
			}
		}, []string{"DRIVER_MISSING", "OTHER"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &machine{dir: t.TempDir()}
				m.scan(0)
				tc.before(m)
				h, stop := m.start(t)
				defer stop()
				if got := codes(h); !slices.Equal(got, tc.want) {
					t.Errorf("faults %v, want %v", got, tc.want)
				}
			})
		})
	}
}

// TestRemembers: the GPU that was scanned once, or that an earlier agent has published, counts for the next agent.
func TestRemembers(t *testing.T) {
	for name, had := range map[string]func(*machine){
		"scanned":   func(m *machine) { m.scan(1) },
		"published": func(m *machine) { m.published = true },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &machine{dir: t.TempDir()}
				m.scan(0)
				had(m)
				_, stop := m.start(t)
				stop()
				m.published = false
				m.scan(0)
				h, stop := m.start(t)
				defer stop()
				if got := codes(h); !slices.Contains(got, "DRIVER_MISSING") {
					t.Errorf("the GPU is forgotten: faults %v", got)
				}
			})
		})
	}
}

// TestLostFile: a file that was lost is written again when there is a GPU.
func TestLostFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{dir: t.TempDir()}
		if err := os.WriteFile(filepath.Join(m.dir, FileName), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		m.scan(1)
		_, stop := m.start(t)
		stop()
		m.scan(0)
		h, stop := m.start(t)
		defer stop()
		if got := codes(h); !slices.Contains(got, "DRIVER_MISSING") {
			t.Errorf("the GPU is forgotten: faults %v", got)
		}
	})
}

// TestAsks: the GPUNode is not published before the one of an earlier agent was read, however long that takes; the file is written until
// it is on disk.
func TestAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		m := &machine{dir: filepath.Join(dir, "state"), published: true, apiError: errors.New("no route")}
		if err := os.Symlink(filepath.Join(dir, "unmounted", "state"), m.dir); err != nil { // A folder that cannot be made.
			t.Fatal(err)
		}
		m.scan(0)
		h, stop := m.start(t)
		defer stop()
		time.Sleep(time.Hour)
		synctest.Wait()
		select {
		case <-h.Asked():
			t.Error("it was asked without an answer")
		default:
		}
		m.mu.Lock()
		m.apiError = nil
		m.mu.Unlock()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		select {
		case <-h.Asked():
		default:
			t.Error("it was not asked again")
		}
		if got := codes(h); !slices.Contains(got, "DRIVER_MISSING") || !slices.Contains(m.reported(), "STATE_UNWRITABLE") {
			t.Errorf("faults %v, problems %v", got, m.reported())
		}
		if err := os.Remove(m.dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if _, err := os.Stat(filepath.Join(m.dir, FileName)); err != nil || len(m.reported()) > 0 {
			t.Errorf("the file: %v, problems %v", err, m.reported())
		}
	})
}
