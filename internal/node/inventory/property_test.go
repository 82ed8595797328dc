package inventory_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/utils/clock"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/health"
	"github.com/berth-gpu/berth/internal/node/inventory"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// withoutDeadline hides testing.T's Deadline, which may not be called in a bubble.
type withoutDeadline struct{ rapid.TB }

// twin is a simple model of the inventory without goroutines: it has the begin and end of each scan, and recomputes
// each GPU from the whole history.
type twin struct {
	now     time.Time
	scanned gpu.Snapshot
	// since has each level cause, events each XID that is still in force.
	since  map[gpu.UUID]map[string]time.Time
	events map[gpu.UUID]map[uint64][]time.Time
	gone   map[gpu.UUID]bool
	// acted and answered have, for an XID, whether the driver has reported a recovery action since, and in how many
	// scans the GPU has answered.
	acted    map[gpu.UUID]map[uint64]bool
	answered map[gpu.UUID]map[uint64]int
}

func (w *twin) scan(s gpu.Snapshot) {
	since := map[gpu.UUID]map[string]time.Time{}
	wasGone := w.gone
	w.gone = map[gpu.UUID]bool{}
	for _, card := range s.GPUs {
		id := card.UUID
		since[id] = map[string]time.Time{}
		for _, cause := range card.Health.Causes {
			since[id][cause.Code] = w.now
			if old, ok := w.since[id][cause.Code]; ok {
				since[id][cause.Code] = old
			}
		}
		answers := card.Health.State != gpu.Gone
		w.gone[id] = !answers
		for xid, times := range w.events[id] {
			last := times[len(times)-1]
			if !answers || !w.now.After(last) {
				continue
			}
			w.answered[id][xid]++
			if card.Health.Recovery == gpu.RecoveryGPUReset {
				w.acted[id][xid] = true
			}
			if wasGone[id] || card.Health.Recovery == gpu.RecoveryNone && w.now.Sub(last) > health.Settle && w.acted[id][xid] {
				delete(w.events[id], xid)
			}
		}
	}
	maps.DeleteFunc(w.events, func(id gpu.UUID, _ map[uint64][]time.Time) bool { return s.GPU(id) == nil })
	w.scanned, w.since = s, since
}

func (w *twin) event(id gpu.UUID, xid uint64) {
	if w.scanned.GPU(id) == nil || health.DefaultIgnoredXIDs()[xid] {
		return
	}
	if w.events[id] == nil {
		w.events[id] = map[uint64][]time.Time{}
	}
	if w.acted[id] == nil {
		w.acted[id], w.answered[id] = map[uint64]bool{}, map[uint64]int{}
	}
	w.acted[id][xid], w.answered[id][xid] = false, 0
	w.events[id][xid] = append(w.events[id][xid], w.now)
}

func (w *twin) current() *gpu.Snapshot {
	out := w.scanned
	out.GPUs = slices.Clone(w.scanned.GPUs)
	for i := range out.GPUs {
		card := &out.GPUs[i]
		verdict := gpu.Health{State: gpu.Healthy, Recovery: card.Health.Recovery}
		for _, cause := range card.Health.Causes {
			cause.Since = w.since[card.UUID][cause.Code]
			verdict.Causes = append(verdict.Causes, cause)
		}
		for xid, times := range w.events[card.UUID] {
			verdict.Causes = append(verdict.Causes, gpu.Cause{
				Code: fmt.Sprintf("XID%d", xid), Message: fmt.Sprintf("the driver reported XID %d: %s", xid, health.LookupXID(xid).Meaning), Since: times[0],
			})
		}
		slices.SortFunc(verdict.Causes, health.CompareCauses)
		for _, cause := range verdict.Causes {
			state := gpu.NeedsReset // 48, ECC_DOUBLE_BIT, ROW_REMAP_PENDING, RECOVERY_ACTION
			if cause.Code == "XID79" && w.answered[card.UUID][79] < 2 {
				state = gpu.NeedsReboot
			}
			if state.Worse(verdict.State) {
				verdict.State = state
			}
		}
		if w.gone[card.UUID] {
			verdict.State = gpu.Gone
		}
		card.Health = verdict
	}
	return &out
}

// advice is left out of comparisons: it follows from the code.
var advice = cmpopts.IgnoreFields(gpu.Cause{}, "Recover")

// TestCurrentMatchesTwin runs random sequences of hardware changes, scans and events. After each, Current equals the
// twin's state, and a subscriber that reads signals at any time ends with the last snapshot.
func TestCurrentMatchesTwin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(withoutDeadline{t}, checkHistory)
	})
}

func checkHistory(t *rapid.T) {
	s := newSource(0)
	// A poll of years: only the test's own steps cause scans.
	i := inventory.New(inventory.Deps{Vendors: []inventory.Source{s}, Clock: clock.RealClock{}, Poll: 10000 * time.Hour})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { i.Run(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	<-i.Ready()
	synctest.Wait()

	w := &twin{
		events: map[gpu.UUID]map[uint64][]time.Time{}, now: time.Now(),
		acted: map[gpu.UUID]map[uint64]bool{}, answered: map[gpu.UUID]map[uint64]int{},
	}
	w.scan(s.snapshot)
	fast, lazy := i.Subscribe(), i.Subscribe()
	var sawFast, sawLazy *gpu.Snapshot
	published := i.Current()

	for range rapid.IntRange(1, 25).Draw(t, "steps") {
		time.Sleep(time.Duration(rapid.IntRange(200, 1500).Draw(t, "pause")) * time.Millisecond)
		w.now = time.Now()
		switch rapid.SampledFrom([]string{"scan", "event", "nothing"}).Draw(t, "step") {
		case "scan":
			next := drawNode(t)
			s.set(func(s *source) { s.snapshot = next })
			rescan(i)
			synctest.Wait()
			w.scan(next)
		case "event":
			id := idOf(rapid.IntRange(0, 2).Draw(t, "card"))
			if w.scanned.GPU(id) == nil {
				continue // it waits for the GPU's scan, which has its own test
			}
			xid := rapid.SampledFrom([]uint64{13, 48, 79}).Draw(t, "xid")
			s.events <- gpu.Event{GPU: id, Code: gpu.XID(xid), GI: gpu.NoInstance, CI: gpu.NoInstance}
			synctest.Wait()
			w.event(id, xid)
			// The scan that follows an event finds the same hardware.
			if diff := cmp.Diff(w.current(), i.Current(), advice); diff != "" {
				t.Fatalf("immediately after an event (-twin +inventory):\n%s", diff)
			}
			time.Sleep(150 * time.Millisecond)
			synctest.Wait()
			event := w.now
			w.now = event.Add(100 * time.Millisecond)
			w.scan(w.scanned)
		}
		if diff := cmp.Diff(w.current(), i.Current(), advice); diff != "" {
			t.Fatalf("(-twin +inventory):\n%s", diff)
		}
		if now := i.Current(); now != published && inventory.Equal(now, published) {
			t.Fatal("a snapshot was published that equals the last")
		} else {
			published = now
		}
		take(fast, i, &sawFast)
		if rapid.Bool().Draw(t, "lazy looks") {
			take(lazy, i, &sawLazy)
		}
	}
	take(fast, i, &sawFast)
	take(lazy, i, &sawLazy)
	if sawFast != i.Current() || sawLazy != i.Current() {
		t.Fatal("a subscriber did not end with the last snapshot")
	}
}

// take reads Current only when signalled.
func take(s *signal.Subscription, i *inventory.Inventory, saw **gpu.Snapshot) {
	select {
	case <-s.C():
		*saw = i.Current()
	default:
	}
}

func drawNode(t *rapid.T) gpu.Snapshot {
	s := gpu.Snapshot{Vendors: []gpu.VendorState{{Name: gpu.NVIDIA, Driver: gpu.Driver{Version: "1"}}}}
	for n := range 3 {
		kind := rapid.SampledFrom([]string{"well", "well", "silent", "sick", "needs reset", "gone", "absent"}).Draw(t, "kind")
		g := gpu.GPU{UUID: idOf(n), Vendor: gpu.NVIDIA, Index: len(s.GPUs), Health: gpu.Health{Recovery: gpu.RecoveryNone}}
		switch kind {
		case "silent":
			g.Health.Recovery = ""
		case "sick":
			g.Health.Causes = []gpu.Cause{{Code: "ECC_DOUBLE_BIT", Message: "errors"}, {Code: "ROW_REMAP_PENDING", Message: "pending"}}
		case "needs reset":
			g.Health = gpu.Health{Recovery: gpu.RecoveryGPUReset, Causes: []gpu.Cause{{Code: "RECOVERY_ACTION", Message: "reset"}}}
		case "gone":
			g.Health = gpu.Health{State: gpu.Gone, Causes: []gpu.Cause{{Code: "GPU_LOST", Message: "lost"}}}
		case "absent":
			continue
		}
		s.GPUs = append(s.GPUs, g)
	}
	return s
}
