package inventory_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/health"
	"github.com/berth-gpu/berth/internal/node/inventory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// running starts an inventory in the bubble and stops it at the end of the test.
func running(t *testing.T, s *source) *inventory.Inventory {
	t.Helper()
	i := inventory.New(inventory.Deps{Vendors: []inventory.Source{s}, Clock: clock.RealClock{}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- i.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	synctest.Wait()
	return i
}

// codes lists a GPU's causes, or the node's faults for the empty UUID.
func codes(s *gpu.Snapshot, id gpu.UUID) string {
	causes := s.Faults
	state := ""
	if id != "" {
		card := s.GPU(id)
		if card == nil {
			return "absent"
		}
		causes, state = card.Health.Causes, string(card.Health.State)+" "
	}
	var list []string
	for _, cause := range causes {
		list = append(list, cause.Code)
	}
	return state + strings.Join(list, " ")
}

func expect(t *testing.T, i *inventory.Inventory, when string, id gpu.UUID, want string) {
	t.Helper()
	if got := codes(i.Current(), id); strings.TrimSpace(got) != want {
		t.Errorf("%s: got %q; want %q", when, strings.TrimSpace(got), want)
	}
}

func TestScansPollRescanAndPublishOnlyChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(2)
		i := inventory.New(inventory.Deps{Vendors: []inventory.Source{s}, Clock: clock.RealClock{}})
		if got := i.Current(); got == nil || len(got.GPUs) != 0 {
			t.Errorf("before Run: %+v; want an empty snapshot", got)
		}
		early := i.Subscribe()
		defer early.Close()
		<-early.C() // a new subscription is signalled
		select {
		case <-early.C():
			t.Error("a second signal before anything was seen")
		case <-i.Ready():
			t.Error("ready before anything was seen")
		default:
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go i.Run(ctx)
		<-early.C()
		<-i.Ready()
		first := i.Current()
		if len(first.GPUs) != 2 || first.GPUs[0].Health.State != gpu.Healthy {
			t.Errorf("got %+v; want two healthy GPUs", first.GPUs)
		}
		late := i.Subscribe()
		<-late.C()
		late.Close()
		late.Close()

		time.Sleep(20*inventory.DefaultPoll + time.Second)
		synctest.Wait()
		s.set(func(s *source) {
			if s.scans != 21 {
				t.Errorf("%d scans in twenty polls; want 21", s.scans)
			}
		})
		if i.Current() != first {
			t.Error("a scan that found nothing new was published")
		}
		s.set(func(s *source) { s.snapshot.GPUs[1].MIG.Capable = true })
		rescan(i)
		rescan(i)
		synctest.Wait()
		select {
		case <-early.C():
		default:
			t.Error("no signal of a change")
		}
		if !i.Current().GPUs[1].MIG.Capable {
			t.Error("the change is not in Current after Rescan")
		}
		select {
		case <-late.C():
			t.Error("a closed subscription was signalled")
		default:
		}
		cancel()
		synctest.Wait()
	})
}

func TestEventIsPublishedAtOnceAndVerifiedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(2)
		i := running(t, s)
		// A slow scan is in progress: the event does not wait for it.
		s.set(func(s *source) { s.takes = 500 * time.Millisecond })
		rescan(i)
		synctest.Wait()
		at := time.Now()
		s.events <- gpu.Event{GPU: idOf(1), Code: gpu.XID(79), GI: gpu.NoInstance, CI: gpu.NoInstance}
		synctest.Wait()
		if waited := time.Since(at); waited > time.Millisecond {
			t.Errorf("published after %v; want immediately", waited)
		}
		expect(t, i, "event", idOf(1), "NeedsReboot XID79")
		expect(t, i, "event", idOf(0), "Healthy")
		if since := i.Current().GPUs[1].Health.Causes[0].Since; !since.Equal(at) {
			t.Errorf("since %v; want %v", since, at)
		}
		// That scan began before the event: it proves nothing. Nor does the one that follows immediately, since the
		// driver may still be in an intermediate state.
		s.set(func(s *source) { s.takes = 0 })
		time.Sleep(900 * time.Millisecond)
		expect(t, i, "a scan from before the event", idOf(1), "NeedsReboot XID79")
		time.Sleep(inventory.DefaultPoll)
		synctest.Wait()
		expect(t, i, "a scan well after the event", idOf(1), "NeedsReset XID79")
		time.Sleep(health.HoldOff)
		synctest.Wait()
		expect(t, i, "clean scans for the hold-off", idOf(1), "Healthy")
	})
}

func TestEventsAreFollowedByOneScanSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(1)
		running(t, s)
		var before int
		s.set(func(s *source) { before = s.scans })
		for range 20 {
			s.events <- gpu.Event{GPU: idOf(0), GI: gpu.NoInstance, CI: gpu.NoInstance}
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(300 * time.Millisecond)
		s.set(func(s *source) {
			if got := s.scans - before; got < 2 || got > 3 {
				t.Errorf("%d scans after a burst of 20 events in 200 ms; want 2 or 3: a storm delays none", got)
			}
		})
	})
}

func TestEventOfEveryCardAndOfAnUnknownOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(2)
		s.set(func(s *source) {
			for i := range s.snapshot.GPUs {
				s.snapshot.GPUs[i].Health.Recovery = ""
			}
		})
		i := running(t, s)
		s.events <- gpu.Event{Code: gpu.XID(62), GI: gpu.NoInstance, CI: gpu.NoInstance}
		synctest.Wait()
		expect(t, i, "event without a GPU", idOf(0), "NeedsReset XID62")
		expect(t, i, "event without a GPU", idOf(1), "NeedsReset XID62")
		// A GPU that only the next scan finds: the event waits for it.
		s.events <- gpu.Event{GPU: idOf(2), Code: gpu.XID(79), GI: gpu.NoInstance, CI: gpu.NoInstance}
		synctest.Wait()
		s.set(func(s *source) {
			s.snapshot = nodeOf(3)
			s.snapshot.GPUs[2].Health.Recovery = ""
		})
		rescan(i)
		synctest.Wait()
		expect(t, i, "event before the GPU was found", idOf(2), "NeedsReboot XID79")
	})
}

func TestLostAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(2)
		i := running(t, s)
		lost := time.Now()
		s.set(func(s *source) {
			s.snapshot.GPUs[0].Health = gpu.Health{State: gpu.Gone, Causes: []gpu.Cause{{Code: "GPU_LOST", Message: "it is gone"}}}
		})
		rescan(i)
		synctest.Wait()
		expect(t, i, "lost", idOf(0), "Gone GPU_LOST")
		time.Sleep(time.Hour)
		synctest.Wait()
		if since := i.Current().GPUs[0].Health.Causes[0].Since; !since.Equal(lost) {
			t.Errorf("after an hour of scans, since %v; want %v", since, lost)
		}
		s.set(func(s *source) { s.snapshot = nodeOf(2) })
		time.Sleep(inventory.DefaultPoll)
		synctest.Wait()
		expect(t, i, "back", idOf(0), "Healthy")
	})
}

// TestResetSoonAfterAnXID checks that a reset disproves an XID although the event is younger than a scan usually
// requires to disprove one.
func TestResetSoonAfterAnXID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(1)
		i := running(t, s)
		s.events <- gpu.Event{GPU: idOf(0), Code: gpu.XID(79), GI: gpu.NoInstance, CI: gpu.NoInstance}
		s.set(func(s *source) { s.snapshot.GPUs[0].Health = gpu.Health{State: gpu.Gone} })
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		expect(t, i, "lost", idOf(0), "Gone XID79")
		s.set(func(s *source) { s.snapshot = nodeOf(1) })
		for range 3 {
			rescan(i)
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			expect(t, i, "back", idOf(0), "Healthy")
		}
	})
}

// TestHungScan makes a scan hang on a GPU, on the node, and the first scan of all.
func TestHungScan(t *testing.T) {
	for name, test := range map[string]struct {
		card       gpu.UUID
		call       string
		first      bool
		wantCard   string
		wantFaults string
	}{
		"a card":      {idOf(1), "nvmlDeviceGetUUID", false, "Unhealthy NVML_TIMEOUT", ""},
		"the node":    {"", "nvmlDeviceGetCount", false, "Healthy", "NVML_TIMEOUT"},
		"nobody said": {"", "", false, "Healthy", "NVML_TIMEOUT"},
		"the first":   {idOf(1), "nvmlDeviceGetUUID", true, "absent", "NVML_TIMEOUT"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSource(2)
				s.hang = test.first
				i := running(t, s)
				s.set(func(s *source) { s.hang, s.doing, s.call = true, test.card, test.call })
				rescan(i)
				time.Sleep(inventory.DefaultDeadline - time.Millisecond)
				synctest.Wait()
				expect(t, i, "before the deadline", "", "")
				time.Sleep(2 * time.Millisecond)
				synctest.Wait()
				expect(t, i, "after the deadline", idOf(1), test.wantCard)
				expect(t, i, "after the deadline", "", test.wantFaults)
				if !test.first {
					expect(t, i, "the other GPU", idOf(0), "Healthy")
				}
				// No second scan is started, and events are still applied.
				time.Sleep(time.Hour)
				synctest.Wait()
				if !test.first {
					s.events <- gpu.Event{GPU: idOf(0), Code: gpu.XID(79), GI: gpu.NoInstance, CI: gpu.NoInstance}
					synctest.Wait()
					expect(t, i, "an event meanwhile", idOf(0), "NeedsReboot XID79")
				}
				s.set(func(s *source) {
					if s.most != 1 {
						t.Errorf("%d scans at the same time; want 1", s.most)
					}
					s.hang = false
				})
				close(s.release)
				synctest.Wait()
				expect(t, i, "the call returned", idOf(1), "Healthy")
				expect(t, i, "the call returned", "", "")
				<-i.Ready()
			})
		})
	}
}

// TestSlowNodeStillMoves has scans that always take longer than the deadline.
func TestSlowNodeStillMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(1)
		s.takes = 3 * inventory.DefaultDeadline
		i := running(t, s)
		<-i.Ready()
		s.set(func(s *source) { s.snapshot = nodeOf(2) })
		time.Sleep(4 * s.takes)
		if got := len(i.Current().GPUs); got != 2 {
			t.Errorf("%d GPUs; want 2", got)
		}
		expect(t, i, "always late", "", "NVML_TIMEOUT")
		s.set(func(s *source) { s.takes = 0 })
		time.Sleep(4 * inventory.DefaultDeadline)
		expect(t, i, "quick again", "", "")
	})
}

// TestRescanDuringAScan checks that a requested scan begins after the call.
func TestRescanDuringAScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(1)
		s.takes = time.Second
		i := running(t, s)
		rescan(i)
		time.Sleep(1500 * time.Millisecond)
		s.set(func(s *source) {
			if s.scans != 2 || s.most != 1 {
				t.Errorf("%d scans, %d at the same time; want 2, one after the other", s.scans, s.most)
			}
		})
		time.Sleep(time.Second)
	})
}

func TestScanError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(2)
		i := running(t, s)
		s.set(func(s *source) { s.err = errBroken })
		rescan(i)
		synctest.Wait()
		expect(t, i, "error", "", "SCAN_FAILED")
		if got := len(i.Current().GPUs); got != 2 {
			t.Errorf("%d GPUs; want the previous two", got)
		}
		s.set(func(s *source) { s.err = nil })
		rescan(i)
		synctest.Wait()
		expect(t, i, "well again", "", "")
	})
}

// TestShutdownWithAHungCall checks that Run returns within its timeout; the call's goroutine ends when the call does.
func TestShutdownWithAHungCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(1)
		s.hang = true
		i := inventory.New(inventory.Deps{Vendors: []inventory.Source{s}, Clock: clock.RealClock{}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- i.Run(ctx) }()
		synctest.Wait()
		cancel()
		at := time.Now()
		if err := <-done; err != nil || time.Since(at) > 2*time.Second {
			t.Errorf("Run returned %v after %v; want nil within two seconds", err, time.Since(at))
		}
		close(s.release)
	})
}

// TestShutdownIsPrompt checks that Run waits for nothing when nothing hangs, including a watch that waits for its
// retry.
func TestShutdownIsPrompt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(1)
		i := inventory.New(inventory.Deps{Vendors: []inventory.Source{s}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- i.Run(ctx) }()
		<-i.Ready()
		s.watchErr <- errBroken
		synctest.Wait()
		at := time.Now()
		cancel()
		<-done
		if waited := time.Since(at); waited != 0 {
			t.Errorf("Run took %v to return; want no time", waited)
		}
	})
}

// TestWatchIsRetried checks that a watch that ends is restarted, with pauses that grow.
func TestWatchIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(1)
		i := running(t, s)
		for range 3 {
			s.watchErr <- errBroken
			time.Sleep(inventory.DefaultPoll)
		}
		synctest.Wait()
		s.set(func(s *source) {
			if s.watches != 4 {
				t.Errorf("%d watches; want 4", s.watches)
			}
		})
		s.events <- gpu.Event{GPU: idOf(0), Code: gpu.XID(79), GI: gpu.NoInstance, CI: gpu.NoInstance}
		synctest.Wait()
		expect(t, i, "an event of the new watch", idOf(0), "NeedsReboot XID79")
	})
}

func TestRunNeedsASource(t *testing.T) {
	if err := inventory.New(inventory.Deps{}).Run(t.Context()); err == nil {
		t.Error("Run without a source: got nil; want an error")
	}
}

func TestDiff(t *testing.T) {
	two := nodeOf(2)
	linked := nodeOf(2)
	linked.Topology.Set(0, 1, gpu.Link{Kind: gpu.LinkNVLink, Count: 4})
	sick := nodeOf(2)
	sick.GPUs[1].Health.State = gpu.Unhealthy
	faulty := nodeOf(2)
	faulty.Faults = []gpu.Cause{{Code: "DRIVER_MISSING"}}
	swapped := nodeOf(3)
	swapped.GPUs = swapped.GPUs[1:]
	for name, test := range map[string]struct {
		old  *gpu.Snapshot
		new  *gpu.Snapshot
		want string
	}{
		"nothing":  {&two, &two, "nothing"},
		"nil":      {nil, nil, "nothing"},
		"first":    {nil, &two, "added GPU-0, GPU-1; node"},
		"health":   {&two, &sick, "changed GPU-1"},
		"links":    {&two, &linked, "links"},
		"node":     {&two, &faulty, "node"},
		"replaced": {&two, &swapped, "added GPU-2; removed GPU-0"},
	} {
		t.Run(name, func(t *testing.T) {
			changes := inventory.Diff(test.old, test.new)
			if diff := cmp.Diff(test.want, changes.String()); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRefreshWaitsForAScanThatBeganAfterIt checks that a scan that was in progress does not count.
func TestRefreshWaitsForAScanThatBeganAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(2)
		i := inventory.New(inventory.Deps{Vendors: []inventory.Source{s}, Clock: clock.RealClock{}, Poll: time.Hour})
		ctx, cancel := context.WithCancel(t.Context())
		go i.Run(ctx)
		<-i.Ready()
		s.set(func(s *source) { s.takes = time.Second })
		rescan(i) // starts a scan that sees the old hardware
		s.set(func(s *source) { s.snapshot.GPUs[1].MIG.Capable = true })
		began := time.Now()
		if err := i.Refresh(ctx); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 2*time.Second || !i.Current().GPUs[1].MIG.Capable {
			t.Errorf("Refresh took %s and Current has %+v; want the scan after the one in progress, 2s", took, i.Current().GPUs[1].MIG)
		}
		s.set(func(s *source) { s.err = errors.New("boom") })
		if err := i.Refresh(ctx); err == nil || !strings.Contains(err.Error(), "boom") {
			t.Errorf("Refresh gave %v; want the scan's error", err)
		}
		cancel()
		synctest.Wait()
		short, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		if err := i.Refresh(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Refresh without Run gave %v", err)
		}
	})
}

// TestPartialScan checks that a scan that could not read a GPU completely adds causes, and removes none.
func TestPartialScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(1)
		s.snapshot.GPUs[0].Health.Causes = []gpu.Cause{{Code: "ECC_DOUBLE_BIT"}}
		i := running(t, s)
		s.events <- gpu.Event{GPU: idOf(0), GI: gpu.NoInstance, CI: gpu.NoInstance, Code: gpu.XID(94)}
		synctest.Wait()
		s.set(func(s *source) {
			s.snapshot.GPUs[0].Health = gpu.Health{
				Recovery: gpu.RecoveryNone, Partial: true, Causes: []gpu.Cause{{Code: "GPU_READ_FAILED"}},
			}
		})
		time.Sleep(time.Minute)
		expect(t, i, "partial", idOf(0), "NeedsReset ECC_DOUBLE_BIT XID94 GPU_READ_FAILED")
		s.set(func(s *source) { s.snapshot.GPUs[0].Health = gpu.Health{Recovery: gpu.RecoveryNone} })
		time.Sleep(time.Minute)
		expect(t, i, "complete", idOf(0), "Healthy")
	})
}
