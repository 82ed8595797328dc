package allocatable

import (
	stdcmp "cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// world is a node with two GPUs as the fakes of Deps return it.
type world struct {
	t   *testing.T
	dir string

	mu       sync.Mutex
	snapshot *gpu.Snapshot
	settings offer.Settings
	version  int
	unknown  bool
	changing map[gpu.UUID]string
	held     map[gpu.DeviceKey]string
	// resource is that of the held devices; empty for nvidia.com/shared.
	resource string
	problems map[string][]gpu.Cause
	fault    func(Step) error
	injector injector
	// settlements counts computations, saves the settlements that reached the disk.
	settlements int
	saves       int

	hardware signal.Broadcast
	config   signal.Broadcast
	ledger   signal.Broadcast
}

func newWorld(t *testing.T) *world {
	snapshot := &gpu.Snapshot{Vendors: []gpu.VendorState{{Name: gpu.NVIDIA, Driver: gpu.Driver{Version: "580.65.06"}}}}
	for i, id := range []gpu.UUID{"GPU-a", "GPU-b"} {
		snapshot.GPUs = append(snapshot.GPUs, gpu.GPU{UUID: id, Index: i, Product: "Tesla T4", MemoryBytes: 16 << 30,
			ComputeCapability: gpu.Version{Major: 7, Minor: 5}})
	}
	return &world{t: t, dir: t.TempDir(), snapshot: snapshot, held: map[gpu.DeviceKey]string{}, problems: map[string][]gpu.Cause{}}
}

// share returns settings that share GPU 1 in a mode.
func share(mode offer.Mode, replicas int) offer.Settings {
	return offer.Settings{GPUs: []offer.GPURule{{
		Select: offer.GPUSelect{Index: []int{1}}, Sharing: offer.Sharing{Mode: mode, Replicas: replicas, ResourceName: "nvidia.com/shared"},
	}}}
}

// edited announces another configuration; it is called with the lock held.
func (w *world) edited() {
	w.version++
	w.config.Set()
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *world) open() *Devices {
	w.t.Helper()
	devices, result := Open(Deps{
		StateDir: w.dir, BootID: "boot", Inventory: fakeInventory{w}, Settings: settings{w}, Ledger: fakeLedger{w}, Injector: &w.injector,
		Changing: func(*gpu.Snapshot) (changing map[gpu.UUID]string, repartitioned map[gpu.UUID]bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.changing, nil
		},
		Report: func(source string, problems ...gpu.Cause) { w.set(func() { w.problems[source] = problems }) },
		Fault: func(step Step) error {
			w.mu.Lock()
			fault := w.fault
			switch step {
			case StepSettle:
				w.settlements++
			case StepKept:
				w.saves++
			}
			w.mu.Unlock()
			if fault != nil {
				return fault(step)
			}
			return nil
		},
	})
	if result.Lost() {
		w.set(func() { w.problems["units-file"] = []gpu.Cause{{Code: result.Code()}} })
	}
	return devices
}

type fakeInventory struct{ w *world }

func (i fakeInventory) Current() *gpu.Snapshot {
	i.w.mu.Lock()
	defer i.w.mu.Unlock()
	return i.w.snapshot
}
func (i fakeInventory) Subscribe() *signal.Subscription { return i.w.hardware.Subscribe() }

type settings struct{ w *world }

func (s settings) Current() (offer.Settings, int, bool) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return s.w.settings, s.w.version, !s.w.unknown
}
func (s settings) Subscribe() *signal.Subscription { return s.w.config.Subscribe() }

type fakeLedger struct{ w *world }

func (l fakeLedger) Holdings() []ledger.Holding {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	var holdings []ledger.Holding
	for key, name := range l.w.held {
		holder := gpu.Holder{Kind: gpu.HolderPod, Namespace: "ns", Name: strings.TrimPrefix(name, "ns/"), Resource: stdcmp.Or(l.w.resource, "nvidia.com/shared")}
		if name == "maintenance" {
			holder = gpu.Holder{Kind: gpu.HolderMaintenance, ID: "reset"}
		}
		holdings = append(holdings, ledger.Holding{Holding: gpu.Holding{Key: key, Holder: holder}})
	}
	return holdings
}
func (l fakeLedger) Subscribe() *signal.Subscription { return l.w.ledger.Subscribe() }

// uses prints the units in force, one per line.
func uses(d *Devices) string {
	var lines []string
	for _, unit := range d.Units() {
		line := string(unit.Key.GPU) + " " + unit.Use.String()
		if unit.Draining != "" {
			line += " draining: " + unit.Draining
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

const wholeNode = "GPU-a nvidia.com/gpu (unshared)\nGPU-b nvidia.com/gpu (unshared)"

// TestRunSettlesOncePerChange checks that each event leads to the settlements that it needs and to no other, however
// often the actor is woken.
func TestRunSettlesOncePerChange(t *testing.T) {
	replica := gpu.DeviceKey{GPU: "GPU-b", Share: 1}
	tests := map[string]struct {
		initial     offer.Settings
		prepare     func(*world)
		event       func(*world)
		settlements int
		saves       int
		signals     int
		want        string
	}{
		"an allocation": {
			event: func(w *world) { w.held[gpu.DeviceKey{GPU: "GPU-a"}] = "ns/a"; w.ledger.Set() },
			want:  wholeNode,
		},
		"the release of a device that nothing waits for": {
			prepare: func(w *world) { w.held[gpu.DeviceKey{GPU: "GPU-a"}] = "ns/a" },
			event:   func(w *world) { clear(w.held); w.ledger.Set() },
			want:    wholeNode,
		},
		"a rule": {
			event:       func(w *world) { w.settings = share(offer.TimeSlicing, 2); w.edited() },
			settlements: 1, saves: 1, signals: 1,
			want: "GPU-a nvidia.com/gpu (unshared)\nGPU-b nvidia.com/shared (time-sliced x2)",
		},
		"a setting that does not concern the use": {
			event:   func(w *world) { w.edited() },
			signals: 1, want: wholeNode,
		},
		"every subscription at once, and nothing new": {
			event:   func(w *world) { w.edited(); w.hardware.Set(); w.ledger.Set() },
			signals: 1, want: wholeNode,
		},
		"a GPU less": {
			event: func(w *world) {
				next := *w.snapshot
				next.GPUs = next.GPUs[:1]
				w.snapshot = &next
				w.hardware.Set()
			},
			settlements: 1, saves: 1, signals: 1, want: "GPU-a nvidia.com/gpu (unshared)",
		},
		"a driver that does not answer": {
			event: func(w *world) { w.snapshot = &gpu.Snapshot{}; w.hardware.Set() },
			want:  wholeNode,
		},
		"settings that are not known": {
			event: func(w *world) { w.unknown = true; w.edited() }, signals: 1,
			want: wholeNode,
		},
		"a rule for a held device": {
			prepare:     func(w *world) { w.held[gpu.DeviceKey{GPU: "GPU-b"}] = "ns/a" },
			event:       func(w *world) { w.settings = share(offer.TimeSlicing, 2); w.edited() },
			settlements: 1, saves: 1, signals: 1,
			want: "GPU-a nvidia.com/gpu (unshared)\nGPU-b nvidia.com/gpu (unshared) draining: waits for ns/a to end, then becomes nvidia.com/shared (time-sliced x2)",
		},
		"a rule for a device under maintenance": {
			prepare:     func(w *world) { w.held[gpu.DeviceKey{GPU: "GPU-b"}] = "maintenance" },
			event:       func(w *world) { w.settings = share(offer.TimeSlicing, 2); w.config.Set() },
			settlements: 1, saves: 1, signals: 1,
			want: "GPU-a nvidia.com/gpu (unshared)\nGPU-b nvidia.com/shared (time-sliced x2)",
		},
		"the release of a device that waits for it": {
			prepare: func(w *world) {
				w.held[gpu.DeviceKey{GPU: "GPU-b"}] = "ns/a"
				w.settings = share(offer.TimeSlicing, 2)
				w.edited()
			},
			event:       func(w *world) { clear(w.held); w.ledger.Set() },
			settlements: 1, saves: 1, signals: 1,
			want: "GPU-a nvidia.com/gpu (unshared)\nGPU-b nvidia.com/shared (time-sliced x2)",
		},
		"an allocation beside a device that waits": {
			prepare: func(w *world) {
				w.held[gpu.DeviceKey{GPU: "GPU-b"}] = "ns/a"
				w.settings = share(offer.TimeSlicing, 2)
				w.edited()
			},
			event: func(w *world) { w.held[gpu.DeviceKey{GPU: "GPU-a"}] = "ns/b"; w.ledger.Set() },
			want:  "GPU-a nvidia.com/gpu (unshared)\nGPU-b nvidia.com/gpu (unshared) draining: waits for ns/a to end, then becomes nvidia.com/shared (time-sliced x2)",
		},
		"a second mode for held replicas": {
			initial:     share(offer.TimeSlicing, 2),
			prepare:     func(w *world) { w.held[replica] = "ns/a"; w.ledger.Set() },
			event:       func(w *world) { w.settings = share(offer.MPS, 2); w.edited() },
			settlements: 1, saves: 1, signals: 1,
			want: "GPU-a nvidia.com/gpu (unshared)\nGPU-b nvidia.com/shared (time-sliced x2) draining: waits for ns/a to end, then becomes nvidia.com/shared (MPS x2)",
		},
		"a MIG change that is due": {
			event: func(w *world) {
				w.changing = map[gpu.UUID]string{"GPU-a": "its MIG mode is about to change"}
				w.hardware.Set()
			},
			settlements: 1, saves: 1, signals: 1,
			want: "GPU-a nvidia.com/gpu (unshared) draining: its MIG mode is about to change\nGPU-b nvidia.com/gpu (unshared)",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.settings = tc.initial
				d := w.open()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := make(chan error, 1)
				go func() { done <- d.Run(ctx) }()
				synctest.Wait()
				if len(d.Units()) > 0 {
					t.Fatalf("before Begin, %v is in force", d.Units())
				}
				d.Begin()
				synctest.Wait()
				if tc.prepare != nil {
					w.set(func() { tc.prepare(w) })
					synctest.Wait()
				}
				signals := 0
				go func() {
					changes := d.SubscribeUse()
					defer changes.Close()
					<-changes.C()
					for {
						select {
						case <-ctx.Done():
							return
						case <-changes.C():
							signals++
						}
					}
				}()
				synctest.Wait()
				w.set(func() { w.settlements, w.saves = 0, 0; tc.event(w) })
				synctest.Wait()
				if w.settlements != tc.settlements || w.saves != tc.saves {
					t.Errorf("%d settlements and %d writes, want %d and %d", w.settlements, w.saves, tc.settlements, tc.saves)
				}
				if signals != tc.signals {
					t.Errorf("%d signals, want %d", signals, tc.signals)
				}
				if diff := cmp.Diff(tc.want, uses(d)); diff != "" {
					t.Errorf("in force (-want +got):\n%s", diff)
				}
				// What is in force is on disk.
				if kept, result := file(w.dir, "boot").Read(); result.Lost() || !slices.Equal(kept, d.Units()) {
					t.Errorf("on disk: %v, %v; want %v", kept, result, d.Units())
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestRestart checks that a new agent uses the file of the previous one.
func TestRestart(t *testing.T) {
	replica := gpu.DeviceKey{GPU: "GPU-b", Share: 2}
	tests := map[string]struct {
		boot string
		// spoil changes the file; nil does not.
		spoil func([]byte) []byte
		held  bool
		want  string
		// problem is the reported problem of the file.
		problem string
	}{
		"the file has the mode of a replica that is held": {
			held: true, want: "GPU-a nvidia.com/gpu (unshared)\nGPU-b nvidia.com/shared (time-sliced x2) draining: waits for ns/a to end, then becomes nvidia.com/shared (MPS x2)",
		},
		"nothing is held": {want: "GPU-a nvidia.com/gpu (unshared)\nGPU-b nvidia.com/shared (MPS x2)"},
		"a damaged file, and a replica that is held": {
			spoil: func(b []byte) []byte { return b[:len(b)-9] }, held: true, problem: "STATE_DAMAGED",
			want: "GPU-a nvidia.com/gpu (unshared)\nGPU-b nvidia.com/shared (shared, mode unknown) draining: waits for ns/a to end, then becomes nvidia.com/shared (MPS x2)",
		},
		"a damaged file, and nothing is held": {
			spoil: func([]byte) []byte { return []byte("{") }, want: "GPU-a nvidia.com/gpu (unshared)\nGPU-b nvidia.com/shared (MPS x2)",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.settings = share(offer.TimeSlicing, 2)
			w.open().Begin()
			path := filepath.Join(w.dir, FileName)
			if tc.spoil != nil {
				blob, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, tc.spoil(blob), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if tc.held {
				w.held[replica] = "ns/a"
			}
			w.settings = share(offer.MPS, 2)
			d := w.open()
			d.Begin()
			if diff := cmp.Diff(tc.want, uses(d)); diff != "" {
				t.Errorf("in force (-want +got):\n%s", diff)
			}
			var problem string
			for _, cause := range w.problems["units-file"] {
				problem = cause.Code
			}
			if problem != tc.problem {
				t.Errorf("problem %q, want %q", problem, tc.problem)
			}
		})
	}
}

// TestFileOfTheVersionBefore checks that an upgrade reads the file as the previous version wrote it.
func TestFileOfTheVersionBefore(t *testing.T) {
	w := newWorld(t)
	blob, err := os.ReadFile("testdata/units.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, FileName), blob, 0o600); err != nil {
		t.Fatal(err)
	}
	want := "GPU-a nvidia.com/gpu (unshared)\nGPU-b nvidia.com/gpu.shared (MPS x4, one user) draining: waits for ns/a to end, then becomes nvidia.com/gpu (unshared)"
	if diff := cmp.Diff(want, uses(w.open())); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
}

// TestFailedWrite checks that the new use takes effect although the disk refuses it, that the problem is reported, and
// that the next wake-up tries again.
func TestFailedWrite(t *testing.T) {
	w := newWorld(t)
	d := w.open()
	d.Begin()
	if err := os.RemoveAll(w.dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.settings = share(offer.TimeSlicing, 2)
	d.Settle()
	if got := uses(d); !strings.Contains(got,
		"time-sliced x2") || len(w.problems["units"]) != 1 || w.problems["units"][0].Code != "STATE_UNWRITABLE" {
		t.Errorf("in force: %s; problems %v", got, w.problems)
	}
	if err := os.Remove(w.dir); err != nil {
		t.Fatal(err)
	}
	d.Settle()
	if kept, result := file(w.dir, "boot").Read(); result.Lost() || !slices.Equal(kept, d.Units()) || len(w.problems["units"]) != 0 {
		t.Errorf("on disk: %v, %v; problems %v", kept, result, w.problems)
	}
}

// TestFailedWriteIsRepeated checks that a write that failed is repeated although nothing changes, until it succeeds.
func TestFailedWriteIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		if err := os.RemoveAll(w.dir); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(w.dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		d := w.open()
		d.Begin()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		after := func(pause time.Duration) (saves int, problems []gpu.Cause) {
			time.Sleep(pause)
			synctest.Wait()
			w.set(func() { saves, problems = w.saves, w.problems["units"] })
			return saves, problems
		}
		if n, problems := after(time.Hour); n < 60 || n > 75 || len(problems) != 1 {
			t.Errorf("%d attempts in an hour, problems %v", n, problems)
		}
		if err := os.Remove(w.dir); err != nil {
			t.Fatal(err)
		}
		n, problems := after(time.Minute)
		if kept, result := file(w.dir, "boot").Read(); result.Lost() || !slices.Equal(kept, d.Units()) || len(problems) != 0 {
			t.Errorf("on disk: %v, %v; problems %v", kept, result, problems)
		}
		if more, _ := after(time.Hour); more != n {
			t.Errorf("it was written %d times more", more-n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestStoppedSettlement checks that an incomplete settlement has no effect, and is repeated at the next wake-up.
func TestStoppedSettlement(t *testing.T) {
	for _, step := range []Step{StepSettle, StepKept} {
		t.Run(string(step), func(t *testing.T) {
			w := newWorld(t)
			d := w.open()
			d.Begin()
			w.settings = share(offer.TimeSlicing, 2)
			w.fault = func(s Step) error {
				if s == step {
					return errors.New("stopped")
				}
				return nil
			}
			d.Settle()
			if got := uses(d); got != wholeNode {
				t.Errorf("in force: %s", got)
			}
			w.fault = nil
			d.Settle()
			if got := uses(d); !strings.Contains(got, "time-sliced x2") {
				t.Errorf("in force: %s", got)
			}
		})
	}
}

// TestReleaseDuringSettlement releases a held device at each step of the settlement that finds that it has to wait. The settlement that
// follows the release gives the device its use.
func TestReleaseDuringSettlement(t *testing.T) {
	for _, step := range []Step{StepSettle, StepKept} {
		t.Run(string(step), func(t *testing.T) {
			w := newWorld(t)
			d := w.open()
			w.held[gpu.DeviceKey{GPU: "GPU-b"}] = "ns/a"
			d.Begin()
			w.settings = share(offer.TimeSlicing, 2)
			w.fault = func(s Step) error {
				if s == step {
					w.set(func() { clear(w.held) })
				}
				return nil
			}
			d.Settle()
			d.Settle() // The ledger has signalled the release.
			if got, want := uses(d), "GPU-a nvidia.com/gpu (unshared)\nGPU-b nvidia.com/shared (time-sliced x2)"; got != want {
				t.Errorf("in force:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}
