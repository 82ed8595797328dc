package inventory_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/inventory"
)

// life runs an inventory until do returns, and returns its log.
func life(t *testing.T, s *source, path, boot string, do func(*inventory.Inventory)) string {
	t.Helper()
	time.Sleep(2 * time.Second) // no process starts at the moment at which another one ends
	var logged bytes.Buffer
	i := inventory.New(inventory.Deps{
		Vendors: []inventory.Source{s}, Clock: clock.RealClock{}, Keep: path, BootID: boot, Log: slog.New(slog.NewTextHandler(&logged, nil)),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- i.Run(ctx) }()
	synctest.Wait()
	do(i)
	synctest.Wait()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	return logged.String()
}

// TestHealthOutlastsARestart uses a driver without recovery actions, so that only a reset, or a reboot, proves a
// repair.
func TestHealthOutlastsARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(2)
		s.set(func(s *source) { s.snapshot.GPUs[1].Health.Recovery = "" })
		path := filepath.Join(t.TempDir(), "state", "health.json")
		life(t, s, path, "boot-1", func(i *inventory.Inventory) {
			s.events <- gpu.Event{GPU: idOf(1), Code: gpu.XID(48), GI: gpu.NoInstance, CI: gpu.NoInstance}
			synctest.Wait()
			expect(t, i, "an event", idOf(1), "NeedsReset XID48")
		})
		life(t, s, path, "boot-1", func(i *inventory.Inventory) {
			expect(t, i, "the first scan of the next process", idOf(1), "NeedsReset XID48")
			time.Sleep(time.Hour)
			expect(t, i, "an hour later", idOf(1), "NeedsReset XID48")
			expect(t, i, "the other GPU", idOf(0), "Healthy")
		})
		// A process that finds no driver and no GPU forgets nothing.
		well := s.snapshot
		s.set(func(s *source) { s.snapshot = gpu.Snapshot{Faults: []gpu.Cause{{Code: "DRIVER_MISSING"}}} })
		life(t, s, path, "boot-1", func(i *inventory.Inventory) { expect(t, i, "no driver", idOf(1), "absent") })
		// The GPU is removed, and is back while no process runs.
		s.set(func(s *source) {
			s.snapshot = well
			s.snapshot.GPUs = append([]gpu.GPU(nil), well.GPUs...)
			s.snapshot.GPUs[1].Health = gpu.Health{State: gpu.Gone, Causes: []gpu.Cause{{Code: "GPU_LOST"}}}
		})
		life(t, s, path, "boot-1", func(i *inventory.Inventory) {
			expect(t, i, "lost", idOf(1), "Gone XID48 GPU_LOST")
		})
		s.set(func(s *source) { s.snapshot = well })
		life(t, s, path, "boot-1", func(i *inventory.Inventory) { expect(t, i, "reset", idOf(1), "Healthy") })

		life(t, s, path, "boot-1", func(i *inventory.Inventory) {
			s.events <- gpu.Event{GPU: idOf(1), Code: gpu.XID(48), GI: gpu.NoInstance, CI: gpu.NoInstance}
		})
		life(t, s, path, "boot-2", func(i *inventory.Inventory) { expect(t, i, "after a reboot", idOf(1), "Healthy") })
	})
}

func TestDamagedHealthIsToldAndLeftBehind(t *testing.T) {
	for name, test := range map[string]struct{ content, want string }{
		"no JSON":         {"{", "is damaged"},
		"a newer version": {`{"format":"berth-health","version":7}`, "has version 7 and this Berth reads up to version 1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "health.json")
				if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
					t.Fatal(err)
				}
				logged := life(t, newSource(1), path, "boot", func(i *inventory.Inventory) {
					expect(t, i, "the first scan", idOf(0), "Healthy")
				})
				if !strings.Contains(logged, test.want) {
					t.Errorf("logged %q; want %q in it", logged, test.want)
				}
			})
		})
	}
}

// TestUnwritableFileIsReported writes to a path at which no file can be written.
func TestUnwritableFileIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		blocked := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(blocked, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		s := newSource(1)
		logged := life(t, s, filepath.Join(blocked, "health.json"), "boot", func(i *inventory.Inventory) {
			for _, xid := range []uint64{48, 62} {
				s.events <- gpu.Event{GPU: idOf(0), Code: gpu.XID(xid), GI: gpu.NoInstance, CI: gpu.NoInstance}
				synctest.Wait()
			}
			expect(t, i, "events", idOf(0), "NeedsReset XID48 XID62")
		})
		if got := strings.Count(logged, "a restart would lose their faults"); got != 1 {
			t.Errorf("reported %d times; want once:\n%s", got, logged)
		}
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
