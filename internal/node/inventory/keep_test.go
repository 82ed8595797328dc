package inventory_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/inventory"
)

// problems are those of an inventory, by source, and how often each source was reported with problems.
type problems struct {
	mu    sync.Mutex
	now   map[string][]gpu.Cause
	times map[string]int
}

func (p *problems) report(source string, causes ...gpu.Cause) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now[source] = causes
	if len(causes) > 0 {
		p.times[source]++
	}
}

// of returns the problems of a source as text.
func (p *problems) of(source string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var text []string
	for _, cause := range p.now[source] {
		text = append(text, cause.Code+" "+cause.Message)
	}
	return strings.Join(text, "\n")
}

// life runs an inventory until do returns, and returns its problems.
func life(t *testing.T, s *source, path, boot string, do func(*inventory.Inventory, *problems)) {
	t.Helper()
	time.Sleep(2 * time.Second) // no process starts at the moment at which another one ends
	found := &problems{now: map[string][]gpu.Cause{}, times: map[string]int{}}
	i := inventory.New(inventory.Deps{
		Vendors: []inventory.Source{s}, Clock: clock.RealClock{}, Keep: path, BootID: boot, Report: found.report,
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- i.Run(ctx) }()
	synctest.Wait()
	do(i, found)
	synctest.Wait()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// TestHealthOutlastsARestart uses a driver without recovery actions, so that only a reset, or a reboot, proves a
// repair.
func TestHealthOutlastsARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(2)
		s.set(func(s *source) { s.snapshot.GPUs[1].Health.Recovery = "" })
		path := filepath.Join(t.TempDir(), "state", "health.json")
		life(t, s, path, "boot-1", func(i *inventory.Inventory, _ *problems) {
			s.events <- gpu.Event{GPU: idOf(1), Code: gpu.XID(48), GI: gpu.NoInstance, CI: gpu.NoInstance}
			synctest.Wait()
			expect(t, i, "an event", idOf(1), "NeedsReset XID48")
		})
		life(t, s, path, "boot-1", func(i *inventory.Inventory, _ *problems) {
			expect(t, i, "the first scan of the next process", idOf(1), "NeedsReset XID48")
			time.Sleep(time.Hour)
			expect(t, i, "an hour later", idOf(1), "NeedsReset XID48")
			expect(t, i, "the other GPU", idOf(0), "Healthy")
		})
		// A process that finds no driver and no GPU forgets nothing.
		well := s.snapshot
		s.set(func(s *source) { s.snapshot = gpu.Snapshot{Faults: []gpu.Cause{{Code: "DRIVER_MISSING"}}} })
		life(t, s, path, "boot-1", func(i *inventory.Inventory, _ *problems) { expect(t, i, "no driver", idOf(1), "absent") })
		// The GPU is removed, and is back while no process runs.
		s.set(func(s *source) {
			s.snapshot = well
			s.snapshot.GPUs = append([]gpu.GPU(nil), well.GPUs...)
			s.snapshot.GPUs[1].Health = gpu.Health{State: gpu.Gone, Causes: []gpu.Cause{{Code: "GPU_LOST"}}}
		})
		life(t, s, path, "boot-1", func(i *inventory.Inventory, _ *problems) {
			expect(t, i, "lost", idOf(1), "Gone XID48 GPU_LOST")
		})
		s.set(func(s *source) { s.snapshot = well })
		life(t, s, path, "boot-1", func(i *inventory.Inventory, _ *problems) { expect(t, i, "reset", idOf(1), "Healthy") })

		life(t, s, path, "boot-1", func(i *inventory.Inventory, _ *problems) {
			s.events <- gpu.Event{GPU: idOf(1), Code: gpu.XID(48), GI: gpu.NoInstance, CI: gpu.NoInstance}
		})
		life(t, s, path, "boot-2", func(i *inventory.Inventory, _ *problems) { expect(t, i, "after a reboot", idOf(1), "Healthy") })
	})
}

// TestLostHealthIsFoundAgain: without a record of this boot, the first scan that is published has the faults that the kernel log has, less
// those that were repaired since.
func TestLostHealthIsFoundAgain(t *testing.T) {
	fault := func(i int) gpu.Event {
		return gpu.Event{GPU: idOf(i), Code: gpu.XID(48), GI: gpu.NoInstance, CI: gpu.NoInstance}
	}
	for name, test := range map[string]struct {
		// spoil makes the record unusable; it is removed otherwise.
		spoil func(path string) error
		want  string
	}{
		"no JSON": {func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) }, "STATE_DAMAGED"},
		"a newer version": {func(path string) error {
			return os.WriteFile(path, []byte(`{"format":"berth-health","version":7}`), 0o600)
		}, "STATE_NEWER"},
		"a folder": {func(path string) error { return os.Mkdir(path, 0o700) }, "STATE_DAMAGED"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "health.json")
				s := newSource(3)
				s.set(func(s *source) {
					s.snapshot.GPUs[1].Health.Recovery, s.snapshot.GPUs[2].Health.Recovery = "", ""
					s.past = []gpu.Event{fault(1), fault(2), {GPU: idOf(2), Reset: true, GI: gpu.NoInstance, CI: gpu.NoInstance}}
				})
				if err := test.spoil(path); err != nil {
					t.Fatal(err)
				}
				s.takes = time.Second
				life(t, s, path, "boot", func(i *inventory.Inventory, found *problems) {
					<-i.Ready()
					expect(t, i, "the first scan", idOf(0), "Healthy")
					expect(t, i, "the first scan", idOf(1), "NeedsReset XID48")
					expect(t, i, "the first scan", idOf(2), "NeedsReset XID48") // A scan after the reset proves the repair.
					time.Sleep(time.Hour)
					expect(t, i, "later", idOf(1), "NeedsReset XID48")
					expect(t, i, "later", idOf(2), "Healthy")
					if got := found.of(inventory.LostSource); !strings.HasPrefix(got, test.want) || !strings.Contains(got, "taken from the kernel log") {
						t.Errorf("problem %q, want %s", got, test.want)
					}
					if got := found.of(inventory.UnsavedSource); got != "" {
						t.Errorf("problem %q", got)
					}
				})
				life(t, s, path, "boot", func(i *inventory.Inventory, found *problems) {
					expect(t, i, "the next process", idOf(1), "absent") // Its scan takes a second.
					<-i.Ready()
					expect(t, i, "the next process", idOf(1), "NeedsReset XID48")
					expect(t, i, "the next process, which has a record", idOf(2), "Healthy")
					if got := found.of(inventory.LostSource); got != "" {
						t.Errorf("problem %q", got)
					}
				})
				if s.pasts != 2 {
					t.Errorf("two processes have read the log %d times", s.pasts)
				}
			})
		})
	}
}

// TestUnwritableHealth writes to a path at which no file can be written: it is a problem, once; the next process finds the faults in the
// kernel log; and the file is written as soon as that is possible, after a minute at most.
func TestUnwritableHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		blocked := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(blocked, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		s := newSource(1)
		s.set(func(s *source) { s.snapshot.GPUs[0].Health.Recovery = "" })
		path := filepath.Join(blocked, "health.json")
		life(t, s, path, "boot", func(i *inventory.Inventory, found *problems) {
			for _, xid := range []uint64{48, 62} {
				event := gpu.Event{GPU: idOf(0), Code: gpu.XID(xid), GI: gpu.NoInstance, CI: gpu.NoInstance}
				s.events <- event
				s.set(func(s *source) { s.past = append(s.past, event) })
				synctest.Wait()
			}
			expect(t, i, "events", idOf(0), "NeedsReset XID48 XID62")
			if got := found.of(inventory.UnsavedSource); !strings.HasPrefix(got, "STATE_UNWRITABLE write what was known of the GPUs' health: ") {
				t.Errorf("problem %q", got)
			}
		})
		life(t, s, path, "boot", func(i *inventory.Inventory, found *problems) {
			time.Sleep(inventory.DefaultPoll)
			synctest.Wait()
			expect(t, i, "the next process", idOf(0), "NeedsReset XID48 XID62")
			time.Sleep(time.Hour)
			if err := os.Remove(blocked); err != nil {
				t.Fatal(err)
			}
			found.mu.Lock()
			before := found.times[inventory.UnsavedSource]
			found.mu.Unlock()
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := found.of(inventory.UnsavedSource); got != "" || before > 70 {
				t.Errorf("after %d attempts in an hour: problem %q", before, got)
			}
		})
		s.set(func(s *source) { s.past = nil })
		life(t, s, path, "boot", func(i *inventory.Inventory, _ *problems) {
			expect(t, i, "the last process", idOf(0), "NeedsReset XID48 XID62")
		})
	})
}

// TestKilledBeforeHealthIsStored: a fault whose record was not written any more, or only in part, and one that came while no process ran,
// are found in the kernel log by the next process. What was in the log before the first start in a boot is not judged.
func TestKilledBeforeHealthIsStored(t *testing.T) {
	for name, killed := range map[string]func(path string, blob []byte) error{
		"before the write": func(string, []byte) error { return nil },
		"within the write": func(path string, blob []byte) error { return os.WriteFile(path, blob[:len(blob)/2], 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "health.json")
				fault := func(n int) gpu.Event {
					return gpu.Event{GPU: idOf(n), Code: gpu.XID(48), GI: gpu.NoInstance, CI: gpu.NoInstance, Record: uint64(n + 1)}
				}
				s := newSource(3)
				s.set(func(s *source) {
					for n := range 3 {
						s.snapshot.GPUs[n].Health.Recovery = ""
					}
					s.past = []gpu.Event{fault(0)}
				})
				i := inventory.New(inventory.Deps{Vendors: []inventory.Source{s}, Clock: clock.RealClock{}, Keep: path, BootID: "boot"})
				var dies atomic.Bool
				i.ReplaceWrite(func(path string, blob []byte) error {
					if dies.Load() {
						return killed(path, blob)
					}
					return os.WriteFile(path, blob, 0o600)
				})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- i.Run(ctx) }()
				synctest.Wait()
				expect(t, i, "the first process", idOf(0), "Healthy")
				dies.Store(true)
				s.events <- fault(1)
				synctest.Wait()
				expect(t, i, "the first process", idOf(1), "NeedsReset XID48")
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				s.set(func(s *source) { s.past = append(s.past, fault(1), fault(2)) })
				life(t, s, path, "boot", func(i *inventory.Inventory, _ *problems) {
					expect(t, i, "the next process", idOf(1), "NeedsReset XID48")
					expect(t, i, "a fault in between", idOf(2), "NeedsReset XID48")
					expect(t, i, "a fault before the first start", idOf(0), map[string]string{
						"before the write": "Healthy", "within the write": "NeedsReset XID48", // There is no record then.
					}[name])
				})
			})
		})
	}
}

// TestHealthIsWrittenAtTheEnd: an unsaved change is written once more when the process ends in order.
func TestHealthIsWrittenAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		blocked := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(blocked, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		s, path := newSource(1), filepath.Join(blocked, "health.json")
		s.set(func(s *source) { s.snapshot.GPUs[0].Health.Recovery = "" })
		life(t, s, path, "boot", func(i *inventory.Inventory, _ *problems) {
			s.events <- gpu.Event{GPU: idOf(0), Code: gpu.XID(48), GI: gpu.NoInstance, CI: gpu.NoInstance}
			synctest.Wait()
			if err := os.Remove(blocked); err != nil {
				t.Fatal(err)
			}
		})
		life(t, s, path, "boot", func(i *inventory.Inventory, _ *problems) {
			expect(t, i, "the next process", idOf(0), "NeedsReset XID48")
		})
	})
}

// TestEventsDoNotWaitForTheFile uses a file system that hangs: events still reach the subscribers, and the end of Run
// waits only for a short time. What is written afterwards is the newest content.
func TestEventsDoNotWaitForTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(3)
		i := inventory.New(inventory.Deps{Vendors: []inventory.Source{s}, Clock: clock.RealClock{}, Keep: "somewhere", BootID: "boot"})
		hangs, written := make(chan struct{}), 0
		var last []byte
		i.ReplaceWrite(func(_ string, blob []byte) error {
			<-hangs
			written, last = written+1, blob
			return nil
		})
		subscription := i.Subscribe()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- i.Run(ctx) }()
		synctest.Wait()
		<-subscription.C()
		for n := range 3 {
			began := time.Now()
			s.events <- gpu.Event{GPU: idOf(n), Code: gpu.XID(79), GI: gpu.NoInstance, CI: gpu.NoInstance}
			<-subscription.C()
			expect(t, i, "an event while the file hangs", idOf(n), "NeedsReboot XID79")
			if took := time.Since(began); took != 0 {
				t.Errorf("event %d reached the subscriber after %s, want immediately", n, took)
			}
		}
		cancel()
		began := time.Now()
		if err := <-done; err != nil || time.Since(began) > 2*time.Second {
			t.Errorf("Run returned %v after %s; want nil within two seconds", err, time.Since(began))
		}
		close(hangs)
		synctest.Wait()
		if written != 2 || bytes.Count(last, []byte("79")) < 3 {
			t.Errorf("%d writes, the last of %s; want the one that hung, and the newest", written, last)
		}
	})
}
