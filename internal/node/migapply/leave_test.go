package migapply

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// claimed makes a claim hold a placement of a GPU, which the GPU is to have.
func (w *world) claimed(id gpu.UUID, profile string, at gpu.Placement) {
	w.t.Helper()
	holder := gpu.Holder{Kind: gpu.HolderClaim, ID: "claim-" + string(id)}
	if err := w.book.AcquireClaim(ledger.Claim{UID: holder.ID, Namespace: "ns", Name: holder.ID, Devices: []ledger.ClaimDevice{
		{Key: gpu.Placed(id, at), Profile: profile},
	}}); err != nil {
		w.t.Fatalf("claim: %v", err)
	}
	w.waiting[holder.ID] = true
	w.wants = slices.DeleteFunc(w.wants, func(want Want) bool { return want.UUID == id })
	w.wants = append(w.wants, Want{UUID: id, Source: "claims", Claims: true, Wanted: mig.Wanted{
		Enabled: true, Placed: []mig.Placed{{Profile: profile, Start: at.Start, Size: at.Size}},
	}})
}

// TestSlowCall: the device of a claim is created in the round in which a call for another GPU does not return. The change of that GPU is
// under way until the call returns, and continues where it was.
func TestSlowCall(t *testing.T) {
	for call, change := range map[string]struct{ from, to string }{
		"create GPU-1":  {"on", "2x3g.40gb"},
		"destroy GPU-1": {"2x1g.10gb", "1x7g.80gb"},
		"mode GPU-1":    {"off", "1x7g.80gb"},
		"quiesce GPU-1": {"off", "1x7g.80gb"},
		"mode GPU-0":    {"off", "1x7g.80gb"}, // with a reset
	} {
		t.Run(call, func(t *testing.T) {
			w := newWorld(t, t.TempDir(), 4)
			_, slow, _ := strings.Cut(call, " ")
			id := gpu.UUID(slow)
			w.be(id, change.from)
			w.want(id, change.to, "layout x")
			w.claimed("GPU-3", "3g.40gb", gpu.Placement{Start: 4, Size: 4})
			w.slow = []string{call}
			returned := w.partition.Subscribe()
			defer returned.Close()
			<-returned.C()
			for attempt := range 3 {
				began := w.clock.Now()
				got := w.reconcile()
				said := attempt > 0 // leaveAfter has passed in the first attempt, and sayAfter before the second.
				status := state(t, got, id)
				if status.State != Changing || status.Delayed != said || strings.Contains(status.Message, "the driver has not answered since 2026-09-01T12:00:00Z (") != said {
					t.Errorf("attempt %d: the GPU with the call: %s, delayed %v: %s", attempt, status.State, status.Delayed, status.Message)
				}
				if status := state(t, got, "GPU-3"); status.State != Applied || w.clock.Since(began) > leaveAfter {
					t.Errorf("the claim's GPU after %s: %s: %s", w.clock.Since(began), status.State, status.Message)
				}
				if withheld := Pending(got)[id] != ""; withheld != (change.from == "off") {
					t.Errorf("withheld: %v", withheld)
				}
				w.clock.Step(sayAfter - leaveAfter)
			}
			w.answer()
			<-returned.C()
			w.waiting = nil
			for _, want := range []State{Applied, Applied} {
				if status := state(t, w.reconcile(), id); status.State != want {
					t.Errorf("after the call: %s: %s", status.State, status.Message)
				}
			}
			w.reached(w.wants)
		})
	}
}

// TestEachCallSlow completes changes of which every call takes longer than a round waits. Once the programs have ended, quiesce does not.
func TestEachCallSlow(t *testing.T) {
	w := newWorld(t, t.TempDir(), 2)
	w.be("GPU-0", "off") // its mode takes a reset
	w.be("GPU-1", "2x1g.10gb")
	w.want("GPU-0", "2x3g.40gb", "layout x")
	w.want("GPU-1", "2x3g.40gb", "layout x")
	rounds := 0
	for ; rounds < 20; rounds++ {
		w.slow = []string{"mode", "create", "destroy"}
		if rounds == 0 {
			w.slow = append(w.slow, "quiesce")
		}
		got := w.reconcile()
		w.answer()
		if !slices.ContainsFunc(got, func(s Status) bool { return s.State != Applied }) {
			break
		}
	}
	var modes int
	for _, call := range w.trace {
		if strings.HasPrefix(call, "mode GPU-0") {
			modes++
		}
	}
	if modes != 1 {
		t.Errorf("the mode was set %d times", modes)
	}
	w.reached(w.wants)
}

// TestSlowCallFails: the error of a call that no round waited for is shown, and its repetition pauses as after any failure.
func TestSlowCallFails(t *testing.T) {
	w := newWorld(t, t.TempDir(), 2)
	w.be("GPU-1", "on")
	w.want("GPU-1", "1x7g.80gb", "layout x")
	creates := 0
	w.breaks = func(call string) error {
		if strings.HasPrefix(call, "create") {
			creates++
			return errors.New("Insufficient Resources")
		}
		return nil
	}
	w.slow = []string{"create"}
	w.reconcile()
	w.answer()
	for range 2 {
		got := state(t, w.reconcile(), "GPU-1")
		want := "GPU 1 could not be changed to MIG with 1x 7g.80gb (layout x): create 7g.80gb at 0: Insufficient Resources. It is retried at 2026-09-01T12:00:01Z, or at once when something else is wanted."
		if diff := cmp.Diff(want, got.Message); diff != "" || got.State != Failed || creates != 1 {
			t.Errorf("%s after %d calls (-want +got):\n%s", got.State, creates, diff)
		}
	}
	w.breaks = nil
	w.settle()
	w.reached(w.wants)
}

// TestSlowCallKeepsTheLock: no other agent changes the node while a call of this one may, at most for callWithin.
func TestSlowCallKeepsTheLock(t *testing.T) {
	for _, returns := range []bool{true, false} {
		w := newWorld(t, t.TempDir(), 2)
		w.be("GPU-1", "on")
		w.want("GPU-1", "1x7g.80gb", "")
		w.slow = []string{"create"}
		returned := w.partition.Subscribe()
		<-returned.C()
		w.reconcile()
		if store, err := openStore(w.dir); !errors.Is(err, errBusy) {
			t.Errorf("the lock: %v, %v", store, err)
		}
		if returns {
			w.answer()
		} else {
			w.clock.Step(callWithin)
		}
		<-returned.C()
		returned.Close()
		store, err := openStore(w.dir)
		if err != nil {
			t.Fatalf("the lock after the call, returned %v: %v", returns, err)
		}
		store.close()
		w.answer()
		w.settle()
		w.reached(w.wants)
	}
}

// TestResetWaitsForCalls: a GPU is not reset while a call for another one has the driver open.
func TestResetWaitsForCalls(t *testing.T) {
	w := newWorld(t, t.TempDir(), 2)
	w.be("GPU-1", "2x1g.10gb")
	w.want("GPU-0", "on", "layout x") // with a reset
	w.want("GPU-1", "1x7g.80gb", "layout x")
	w.slow = []string{"destroy GPU-1"}
	for _, why := range []string{"", ": it is reset when the driver has answered for the other GPUs"} {
		got := state(t, w.reconcile(), "GPU-0")
		if want := "GPU 0 is being changed to MIG without devices (layout x)" + why + "."; got.State != Changing || got.Message != want || got.Delayed != (why != "") {
			t.Errorf("%s, delayed %v: %s", got.State, got.Delayed, got.Message)
		}
		w.clock.Step(sayAfter)
		if slices.Contains(w.trace, "reset [GPU-0]") {
			t.Errorf("reset during another call: %v", w.trace)
		}
	}
	w.answer()
	w.reconcile()
	w.reached(w.wants)
}
