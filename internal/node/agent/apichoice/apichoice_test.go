package apichoice

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// world is a node in memory with GPU-0, for which a rule of its own allocates through the device plugin, and GPU-1, which is auto.
type world struct {
	dir       string
	state     configwatch.State
	changed   signal.Broadcast
	held      []ledger.Holding
	follows   bool
	noDriver  bool
	published []gpu.UUID
	class     func() (bool, error)
	fault     func(statefile.Step) error

	chosen int
	events []nodeapi.Event
	lost   []string

	mu       sync.Mutex // of state and problems
	problems []gpu.Cause
}

func newWorld(t *testing.T) *world {
	return &world{dir: t.TempDir(), state: configwatch.State{Config: autoConfig()}, class: func() (bool, error) { return true, nil }}
}

func autoConfig() *v1alpha1.AgentConfig {
	return &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{
		{Select: v1alpha1.GPUSelector{Index: []int{0}}, ResourceName: "example.com/gpu"},
		{Allocation: &v1alpha1.Allocation{API: v1alpha1.AllocationAuto}},
	}}
}

func (w *world) Holdings() []ledger.Holding { return w.held }
func (w *world) Writes() bool               { return !w.follows }
func (w *world) NodeUID() string            { return "node" }

// hardware is the inventory of a world.
type hardware struct{ *world }

func (h hardware) Current() *gpu.Snapshot {
	if h.noDriver {
		return &gpu.Snapshot{}
	}
	return &gpu.Snapshot{
		Vendors: []gpu.VendorState{{Driver: gpu.Driver{Version: "580.95.05"}}},
		GPUs:    []gpu.GPU{{UUID: "GPU-0"}, {UUID: "GPU-1", Index: 1}},
	}
}

// Current and Subscribe are those of the configuration.
func (w *world) Current() configwatch.State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

func (w *world) configure(config *v1alpha1.AgentConfig) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state.Config = config
}

func (w *world) reported() []gpu.Cause {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.problems
}

func (w *world) Subscribe() *signal.Subscription { return w.changed.Subscribe() }

func (w *world) chooser() *Chooser {
	deps := Deps{
		Dir: w.dir, Config: w, Ledger: w, Hardware: hardware{w}, Published: func() []gpu.UUID { return w.published }, ClassName: "gpu.berth.dev",
		Chosen: func() { w.chosen++ }, Event: func(e nodeapi.Event) { w.events = append(w.events, e) },
		Report: func(_ string, problems ...gpu.Cause) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.problems = problems
		},
		FileLost: func(_ string, result statefile.Result, _ string) { w.lost = append(w.lost, result.Code()) },
		Fault: func(step statefile.Step) error {
			if w.fault != nil {
				return w.fault(step)
			}
			return nil
		},
		Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
	}
	if w.class != nil {
		deps.HasClass = func(context.Context) (bool, error) { return w.class() }
	}
	return New(deps)
}

func holds(id gpu.UUID, kind gpu.HolderKind) ledger.Holding {
	return ledger.Holding{Holding: gpu.Holding{Key: gpu.DeviceKey{GPU: id}, Holder: gpu.Holder{Kind: kind, Namespace: "ns", Name: "train", ID: "c1", PodUID: "p1"}}}
}

// TestChoice makes the choice in each situation.
func TestChoice(t *testing.T) {
	tests := map[string]struct {
		set    func(w *world)
		want   offer.API
		reason string
		err    string
	}{
		"an empty node of a cluster with the class": {want: offer.DRA, reason: "no pod holds a GPU, and the cluster has DeviceClass gpu.berth.dev"},
		"no class":                         {set: func(w *world) { w.class = func() (bool, error) { return false, nil } }, reason: "has no DeviceClass gpu.berth.dev"},
		"no API server":                    {set: func(w *world) { w.class = nil }, reason: "no API server"},
		"the API server does not respond":  {set: func(w *world) { w.class = func() (bool, error) { return false, errors.New("refused") } }, err: "read DeviceClass gpu.berth.dev: refused"},
		"a pod holds a GPU":                {set: func(w *world) { w.held = []ledger.Holding{holds("GPU-1", gpu.HolderPod)} }, reason: "ns/train"},
		"an unknown container holds a GPU": {set: func(w *world) { w.held = []ledger.Holding{holds("GPU-1", gpu.HolderOrphan)} }, reason: "hold GPUs"},
		"a pod holds a GPU of another rule": {set: func(w *world) { w.held = []ledger.Holding{holds("GPU-0", gpu.HolderPod)} },
			want: offer.DRA, reason: "no pod holds"},
		"a reset of a GPU":    {set: func(w *world) { w.held = []ledger.Holding{holds("GPU-1", gpu.HolderMaintenance)} }, want: offer.DRA, reason: "no pod holds"},
		"a claim holds a GPU": {set: func(w *world) { w.held = []ledger.Holding{holds("GPU-1", gpu.HolderClaim)}; w.class = nil }, want: offer.DRA, reason: "ns/train"},
		"a claim and a pod": {set: func(w *world) {
			w.held = []ledger.Holding{holds("GPU-1", gpu.HolderClaim), holds("GPU-1", gpu.HolderPod)}
		}, reason: "hold GPUs"},
		"the slices have a GPU":               {set: func(w *world) { w.published, w.class = []gpu.UUID{"GPU-1"}, nil }, want: offer.DRA, reason: "ResourceSlices have"},
		"the slices have one of another rule": {set: func(w *world) { w.published, w.class = []gpu.UUID{"GPU-0"}, nil }, reason: "no API server"},
		"the driver does not respond":         {set: func(w *world) { w.noDriver = true }, err: "the driver does not respond"},
		"another agent is in charge":          {set: func(w *world) { w.follows = true }, err: "another agent"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if test.set != nil {
				test.set(w)
			}
			c := w.chooser()
			err := c.step(t.Context())
			got, known := c.API()
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) || known || w.chosen > 0 {
					t.Fatalf("chose %q (%t), %v; want no choice and %q", got, known, err, test.err)
				}
				return
			}
			if err != nil || !known || got != test.want || w.chosen != 1 || len(w.events) != 1 {
				t.Fatalf("chose %q (%t), %v, signalled %d times with %d events; want %q", got, known, err, w.chosen, len(w.events), test.want)
			}
			if reason := c.chosen.Load().Reason; !strings.Contains(reason, test.reason) {
				t.Errorf("the reason is %q, want %q", reason, test.reason)
			}
			// Nothing that happens later changes it: not the next agent either.
			w.held, w.published, w.class = nil, nil, func() (bool, error) { return got != offer.DRA, nil }
			for _, later := range []*Chooser{c, w.chooser()} {
				if err := later.step(t.Context()); err != nil {
					t.Error(err)
				}
				if now, known := later.API(); !known || now != got {
					t.Errorf("the choice became %q (%t), and was %q", now, known, got)
				}
			}
			if Kept(w.dir) != got {
				t.Errorf("the file has %q, want %q", Kept(w.dir), got)
			}
		})
	}
}

// TestForget: without a rule with auto there is no choice, and the next one is made by what is there then.
func TestForget(t *testing.T) {
	w := newWorld(t)
	c := w.chooser()
	if err := c.step(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.state.Config = &v1alpha1.AgentConfig{}
	w.state.Waiting = true
	if err := c.step(t.Context()); err != nil || Kept(w.dir) != offer.DRA {
		t.Errorf("while the configuration is not known the choice ended: %v", err)
	}
	w.state.Waiting, w.follows = false, true
	if err := c.step(t.Context()); !errors.Is(err, errFollows) || Kept(w.dir) != offer.DRA {
		t.Errorf("an agent that does not write the ledger has ended the choice, or does not try again: %v", err)
	}
	w.follows = false
	if err := c.step(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, known := c.API(); known {
		t.Error("there is a choice without a rule with auto")
	}
	if _, err := os.Stat(filepath.Join(w.dir, FileName)); !os.IsNotExist(err) {
		t.Errorf("the file is there: %v", err)
	}
	w.state.Config, w.class = autoConfig(), func() (bool, error) { return false, nil }
	if err := c.step(t.Context()); err != nil {
		t.Fatal(err)
	}
	if api, known := c.API(); !known || api != offer.DevicePlugin {
		t.Errorf("the next choice is %q (%t), want the device plugin", api, known)
	}
}

// TestKilledAtEachStep: a choice is in force only when it is on disk, and after a kill at any step the next agent has that choice or makes
// one by what is there then.
func TestKilledAtEachStep(t *testing.T) {
	var steps []statefile.Step
	w := newWorld(t)
	w.fault = func(step statefile.Step) error { steps = append(steps, step); return nil }
	if err := w.chooser().step(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(steps) < 3 {
		t.Fatalf("the write has the steps %v", steps)
	}
	for _, at := range steps {
		w := newWorld(t)
		w.fault = func(step statefile.Step) error {
			if step == at {
				return errors.New("killed")
			}
			return nil
		}
		c := w.chooser()
		err := c.step(t.Context())
		_, inForce := c.API()
		w.fault, w.class = nil, nil
		next := w.chooser()
		kept, onDisk := next.API()
		if inForce && !onDisk {
			t.Errorf("killed at %q (%v): the choice was in force and is not on disk", at, err)
		}
		if onDisk && kept != offer.DRA {
			t.Errorf("killed at %q: the next agent has %q", at, kept)
		}
		if err := next.step(t.Context()); err != nil {
			t.Errorf("killed at %q: %v", at, err)
		}
		if api, known := next.API(); !known || onDisk != (api == offer.DRA) {
			t.Errorf("killed at %q: the next agent chose %q (%t); the file had a choice: %t", at, api, known, onDisk)
		}
	}
}

// TestDamagedFile: the choice follows from where the GPUs are.
func TestDamagedFile(t *testing.T) {
	w := newWorld(t)
	w.published, w.class = []gpu.UUID{"GPU-1"}, nil
	if err := os.WriteFile(filepath.Join(w.dir, FileName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := w.chooser()
	if _, known := c.API(); known || !slices.Equal(w.lost, []string{"STATE_DAMAGED"}) {
		t.Fatalf("a damaged file is a choice (%t), or not reported: %v", known, w.lost)
	}
	if err := c.step(t.Context()); err != nil {
		t.Fatal(err)
	}
	if api, _ := c.API(); api != offer.DRA {
		t.Errorf("the choice is %q, want that of the slices", api)
	}
}

// TestRun reports why there is no choice, tries again, and chooses when the API server responds; without a rule with auto it does nothing.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var calls atomic.Int32
		w.class = func() (bool, error) {
			if calls.Add(1) < 4 {
				return false, errors.New("refused")
			}
			return true, nil
		}
		c := w.chooser()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		if found := w.reported(); len(found) != 1 || found[0].Code != "API_NOT_CHOSEN" || !strings.Contains(found[0].Message, "refused") {
			t.Errorf("the problems are %v", found)
		}
		time.Sleep(10 * time.Second) // 1, 2 and 4 s.
		synctest.Wait()
		if api, known := c.API(); !known || api != offer.DRA || calls.Load() != 4 || len(w.reported()) > 0 {
			t.Errorf("after %d calls the choice is %q (%t), the problems are %v", calls.Load(), api, known, w.reported())
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := calls.Load(); n != 4 {
			t.Errorf("%d calls, want none after the choice", n-4)
		}
		w.configure(&v1alpha1.AgentConfig{})
		w.changed.Set()
		synctest.Wait()
		if _, known := c.API(); known {
			t.Error("the choice was not ended")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
