package migapply

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

func TestPending(t *testing.T) {
	on := true
	mode := mig.GPUPlan{SetMode: &on}
	for name, test := range map[string]struct {
		status Status
		want   map[gpu.UUID]string
	}{
		"the mode waits":   {Status{State: Waiting, Plan: mode}, map[gpu.UUID]string{"GPU-0": "why"}},
		"the mode changes": {Status{State: Changing, Plan: mode}, map[gpu.UUID]string{"GPU-0": "why"}},
		"the mode failed":  {Status{State: Failed, Plan: mode}, map[gpu.UUID]string{}},
		"done":             {Status{State: Applied}, map[gpu.UUID]string{}},
		"refused":          {Status{State: Refused}, map[gpu.UUID]string{}},
		"only instances":   {Status{State: Waiting, Plan: mig.GPUPlan{Destroy: []mig.Instance{{GI: 1}}}}, map[gpu.UUID]string{}},
		"only more instances": {Status{State: Changing, Plan: mig.GPUPlan{Create: []mig.Placed{{Profile: "1g.10gb"}}}},
			map[gpu.UUID]string{}},
		"state unknown": {Status{State: Waiting}, map[gpu.UUID]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			test.status.UUID, test.status.Message = "GPU-0", "why"
			if diff := cmp.Diff(test.want, Pending([]Status{test.status})); diff != "" {
				t.Errorf("pending (-want +got):\n%s", diff)
			}
		})
	}
}

func state(t *testing.T, statuses []Status, id gpu.UUID) Status {
	t.Helper()
	for _, s := range statuses {
		if s.UUID == id {
			return s
		}
	}
	t.Fatalf("no status of %s in %v", id, statuses)
	return Status{}
}

// TestOneAgentAtATime runs a second agent within a change of the first, and then lets the second write the ledger.
func TestOneAgentAtATime(t *testing.T) {
	w := newWorld(t, t.TempDir(), 2)
	w.want("GPU-1", "1x7g.80gb", "")
	first := w.partition
	second := New(Deps{Dir: w.dir, Owner: "second", Hardware: first.deps.Hardware, Inventory: first.deps.Inventory,
		Ledger: first.deps.Ledger, Clock: w.clock, Log: quiet()})
	var inside []Status
	first.deps.Fault = func(step Step) error {
		if step == StepModeSet {
			inside = second.Reconcile(t.Context(), []Want{{UUID: "GPU-1", Wanted: wanted("off")}, {UUID: "GPU-0", Wanted: wanted("on")}})
		}
		return nil
	}
	w.reconcile()
	w.reached(w.wants)
	for _, id := range []gpu.UUID{"GPU-0", "GPU-1"} {
		if got := state(t, inside, id); id == "GPU-0" && (got.State != Waiting || !strings.Contains(got.Message, errBusy.Error())) {
			t.Errorf("the second agent within the first one's change: %+v", got)
		}
	}
	if w.gpuOf("GPU-0").enabled {
		t.Error("both agents changed the node")
	}

	other, err := ledger.Open(ledger.Deps{Path: filepath.Join(w.dir, "ledger"), BootID: w.boot, Clock: w.clock, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := w.book.Acquire(gpu.Holder{Kind: gpu.HolderClaim, ID: "x"},
		[]gpu.DeviceKey{{GPU: "GPU-0"}}); !errors.Is(err, ledger.ErrSuperseded) {
		t.Fatalf("the first ledger was not superseded: %v", err)
	}
	w.be("GPU-0", "1x1g.10gb")
	w.want("GPU-0", "2x1g.10gb", "") // the second agent takes nothing from the ledger
	w.want("GPU-1", "off", "")
	for _, got := range w.reconcile() {
		if got.State != Waiting || !strings.Contains(got.Message, "another agent") {
			t.Errorf("an agent that was superseded: %+v", got)
		}
	}
	if len(w.gpuOf("GPU-0").instances) != 1 || !w.gpuOf("GPU-1").enabled {
		t.Errorf("an agent that was superseded changed the node:\n%s", w.picture())
	}
}

// TestHardwareUnseen checks that, while the result of a change cannot be scanned, the devices stay blocked, because the
// last snapshot still has the removed ones.
func TestHardwareUnseen(t *testing.T) {
	w := newWorld(t, t.TempDir(), 1)
	w.be("GPU-0", "7x1g.10gb")
	if err := w.run("a", gpu.DeviceKey{GPU: "GPU-0", MIG: "MIG-0-10"}); err != nil {
		t.Fatal(err)
	}
	w.want("GPU-0", "1x1g.10gb", "")
	hangs := false
	w.breaks = func(call string) error {
		hangs = hangs || strings.HasPrefix(call, "destroy")
		if hangs && call == "scan" {
			return errors.New("the scan hangs")
		}
		return nil
	}
	for range 3 {
		if got := state(t, w.reconcile(), "GPU-0"); got.State == Applied || !strings.Contains(got.Message, "the scan hangs") {
			t.Errorf("no scan: %+v", got)
		}
		var blocked *ledger.BlockedError
		if err := w.run("b", gpu.DeviceKey{GPU: "GPU-0", MIG: "MIG-0-11"}); !errors.As(err, &blocked) {
			t.Errorf("a pod got a removed device: %v", err)
		}
		w.clock.Step(lastRetry)
	}
	w.breaks = nil
	if got := state(t, w.reconcile(), "GPU-0"); got.State != Applied {
		t.Errorf("the scan is back: %+v", got)
	}
	w.reached(w.wants)
}

// TestDriverLies checks a call that succeeds although the GPU is not in the wanted state.
func TestDriverLies(t *testing.T) {
	w := newWorld(t, t.TempDir(), 2)
	w.want("GPU-1", "1x7g.80gb", "")
	w.breaks = func(call string) error {
		if call == "scan" {
			w.gpuOf("GPU-1").instances = nil
		}
		return nil
	}
	got := state(t, w.reconcile(), "GPU-1")
	want := "GPU 1 could not be changed to MIG with 1x 7g.80gb: the driver reported success, but 7g.80gb at 0 is missing. It is retried at 2026-09-01T12:00:11Z, or at once when something else is wanted."
	if diff := cmp.Diff(want, got.Message); got.State != Failed || diff != "" {
		t.Errorf("%s (-want +got):\n%s", got.State, diff)
	}
	w.clean()
	w.breaks = nil
	w.settle()
	w.reached(w.wants)
}

// TestBackoff checks that the pauses grow to a minute.
func TestBackoff(t *testing.T) {
	w := newWorld(t, t.TempDir(), 1)
	w.want("GPU-0", "1x7g.80gb", "")
	w.breakNext([]string{"reset"}, true)
	var pauses []string
	for range 8 {
		at := w.clock.Now()
		resets := strings.Count(strings.Join(w.trace, "\n"), "reset [")
		for strings.Count(strings.Join(w.trace, "\n"), "reset [") == resets {
			w.clock.SetTime(at)
			w.reconcile()
			at = at.Add(verifyInterval)
		}
		pauses = append(pauses, w.partition.tries["GPU-0"].next.Sub(w.clock.Now()).String())
	}
	if diff := cmp.Diff([]string{"1s", "2s", "4s", "8s", "16s", "32s", "1m0s", "1m0s"}, pauses); diff != "" {
		t.Errorf("pauses (-want +got):\n%s", diff)
	}
	// A layout that is withdrawn and wanted again is tried immediately.
	w.breaks = nil
	wants := w.wants
	w.wants = nil
	w.reconcile()
	w.wants = wants
	w.reconcile()
	w.reached(wants)
}

// TestInterrupted checks that an agent that is stopped ends at the next step, and that a later Reconcile, also of the
// same agent, continues.
func TestInterrupted(t *testing.T) {
	w := newWorld(t, t.TempDir(), 1)
	w.want("GPU-0", "1x7g.80gb", "")
	ctx, cancel := context.WithCancel(t.Context())
	w.breaks = func(call string) error {
		if strings.HasPrefix(call, "reset") {
			cancel()
		}
		return nil
	}
	if got := state(t, w.partition.Reconcile(ctx, w.wants), "GPU-0"); got.State != Changing {
		t.Errorf("interrupted: %+v", got)
	}
	if _, err := os.Stat(filepath.Join(w.dir, JournalFile)); err != nil {
		t.Error(err)
	}
	w.wants = nil
	w.breaks = nil
	w.settle()
	w.reached([]Want{{UUID: "GPU-0", Wanted: wanted("1x7g.80gb")}})
}

// TestJournalOfAnotherNode checks that a change that was in progress on another Node, whose disk this one has, is not
// carried out.
func TestJournalOfAnotherNode(t *testing.T) {
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprintf("the UID is known: %v", known), func(t *testing.T) {
			w := newWorld(t, t.TempDir(), 1)
			w.endAgent()
			d, err := openStore(w.dir)
			if err != nil {
				t.Fatal(err)
			}
			j := journal{
				Generation: 1, Owner: "before", NodeUID: "uid-1",
				GPUs: []entry{{UUID: "GPU-0", Wanted: wanted("7x1g.10gb")}},
			}
			if err := d.write(j, func() error { return nil }); err != nil {
				t.Fatal(err)
			}
			d.close()
			if known {
				w.node = "uid-2"
			}
			w.startAgent()
			w.settle()
			if changed := w.gpuOf("GPU-0").enabled; changed == known {
				t.Errorf("the GPU was partitioned: %v, want %v", changed, !known)
			}
			if _, err := os.Stat(filepath.Join(w.dir, JournalFile)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the journal is left: %v", err)
			}
		})
	}
}

// TestFailureBesideAWait checks that an empty instance that cannot be removed is reported while its GPU waits for a
// pod, until it is removed.
func TestFailureBesideAWait(t *testing.T) {
	w := newWorld(t, t.TempDir(), 1)
	w.be("GPU-0", "7x1g.10gb")
	if err := w.run("a", gpu.DeviceKey{GPU: "GPU-0", MIG: "MIG-0-10"}); err != nil {
		t.Fatal(err)
	}
	w.gpuOf("GPU-0").instances[6].device = false
	w.scan()
	w.want("GPU-0", "1x7g.80gb", "")
	removals := 0
	w.breaks = func(call string) error {
		if strings.HasPrefix(call, "remove") {
			removals++
			return errors.New("In use by another client")
		}
		return nil
	}
	for try := 1; try <= 3; try++ {
		for range 2 { // when it fails, and during the pause
			got := state(t, w.reconcile(), "GPU-0")
			if got.State != Waiting || !strings.Contains(got.Message, "default/a") || !strings.Contains(got.Message,
				"In use by another client") || removals != try {
				t.Errorf("try %d, %d removals: %s: %s", try, removals, got.State, got.Message)
			}
		}
		w.clock.Step(lastRetry)
	}
	w.breaks = nil
	if got := state(t, w.reconcile(), "GPU-0"); got.State != Waiting || strings.Contains(got.Message, "In use by another client") {
		t.Errorf("after the removal: %s: %s", got.State, got.Message)
	}
	w.end("a")
	w.settle()
	w.reached(w.wants)
}

// TestJournalGoodAgain checks that the damage of the journal is reported until the changes that it may have recorded
// are complete.
func TestJournalGoodAgain(t *testing.T) {
	for name, layout := range map[string]string{"a change is to be done": "1x7g.80gb", "all is done": "off"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, t.TempDir(), 2)
			if err := os.WriteFile(filepath.Join(w.dir, JournalFile), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
			w.want("GPU-1", layout, "")
			w.blind = "the kubelet does not run"
			for range 3 {
				w.reconcile()
				if faults := w.partition.Faults(); len(faults) != 1 || faults[0].Code != "MIG_JOURNAL_CORRUPT" {
					t.Fatalf("faults %v", faults)
				}
			}
			w.blind = ""
			w.settle()
			if faults := w.partition.Faults(); len(faults) != 0 {
				t.Errorf("faults %v", faults)
			}
		})
	}
}

// TestJournalUnwritable checks that without the journal the hardware is not changed, and blocked devices are released.
func TestJournalUnwritable(t *testing.T) {
	w := newWorld(t, t.TempDir(), 2)
	// With a UID of that size it could not be read back.
	w.node = strings.Repeat("x", statefile.DefaultMax)
	w.want("GPU-1", "1x7g.80gb", "")
	if got := state(t, w.reconcile(), "GPU-1"); got.State != Failed || w.gpuOf("GPU-1").enabled {
		t.Errorf("without a journal: %+v", got)
	}
	if held := w.book.Holdings(); len(held) > 0 {
		t.Errorf("held: %v", held)
	}
	if faults := w.partition.Faults(); len(faults) != 1 || faults[0].Code != "MIG_JOURNAL_UNWRITABLE" {
		t.Errorf("faults: %v", faults)
	}
	w.node = ""
	w.clock.Step(lastRetry)
	w.settle()
	w.reached(w.wants)
	if faults := w.partition.Faults(); len(faults) != 0 {
		t.Errorf("faults: %v", faults)
	}
}

// TestGenerations checks that the generation grows by one for each change and each takeover.
func TestGenerations(t *testing.T) {
	w := newWorld(t, t.TempDir(), 1)
	generation := func() string {
		blob, err := os.ReadFile(filepath.Join(w.dir, LockFile))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimLeft(strings.TrimSpace(string(blob)), "0")
	}
	for _, step := range []struct{ want, generation string }{{"on", "1"}, {"on", "1"}, {"1x1g.10gb", "2"}, {"off", "3"}} {
		w.want("GPU-0", step.want, "")
		w.settle()
		if got := generation(); got != step.generation {
			t.Errorf("%s: generation %s, want %s", step.want, got, step.generation)
		}
	}
	w.want("GPU-0", "1x7g.80gb", "")
	w.killNext(t, string(StepReset), 1)
	w.settle()
	if got := generation(); got != "6" { // started, taken over, started again
		t.Errorf("generation %s, want 6", got)
	}
	// A lock file that was truncated.
	if err := os.Truncate(filepath.Join(w.dir, LockFile), 0); err != nil {
		t.Fatal(err)
	}
	w.want("GPU-0", "off", "")
	w.settle()
	if got := generation(); got != "1" {
		t.Errorf("generation %s, want 1", got)
	}
}

// TestDirUnusable checks that nothing is changed without the lock.
func TestDirUnusable(t *testing.T) {
	w := newWorld(t, t.TempDir(), 1)
	w.want("GPU-0", "on", "")
	lock := filepath.Join(w.dir, LockFile)
	// A folder, which cannot be renamed either.
	if err := errors.Join(os.Mkdir(lock, 0o700), os.MkdirAll(filepath.Join(lock+".bak", "in the way"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if got := state(t, w.reconcile(), "GPU-0"); got.State != Waiting || w.gpuOf("GPU-0").pending {
		t.Errorf("without a lock: %+v", got)
	}
	if faults := w.partition.Faults(); len(faults) != 1 || faults[0].Code != "MIG_JOURNAL_UNREADABLE" {
		t.Errorf("faults: %v", faults)
	}
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	w.settle()
	w.reached(w.wants)
	if faults := w.partition.Faults(); len(faults) != 0 {
		t.Errorf("faults: %v", faults)
	}
}

// TestHungCall has a call that does not return: its GPU stays in maintenance until it does, and the other GPUs are not
// affected.
func TestHungCall(t *testing.T) {
	w := newWorld(t, t.TempDir(), 4)
	w.be("GPU-1", "2x1g.10gb")
	w.want("GPU-1", "1x7g.80gb", "layout x")
	w.want("GPU-3", "1x7g.80gb", "layout x")
	w.slow = []string{"destroy GPU-1"}
	got := w.reconcile()
	if state(t, got, "GPU-1").State != Changing || state(t, got, "GPU-3").State != Applied {
		t.Errorf("while a call hangs: %+v", got)
	}
	w.clock.Step(callWithin)
	got = w.reconcile()
	want := "GPU 1 does not change to MIG with 1x 7g.80gb (layout x): the driver has not answered since 2026-09-01T12:00:00Z (destroy 1g.10gb at 5 (GPU instance 15)). Until it answers, the GPU is not changed, and the devices that were to change are not allocated."
	if diff := cmp.Diff(want, state(t, got, "GPU-1").Message); diff != "" {
		t.Errorf("later (-want +got):\n%s", diff)
	}
	var blocked *ledger.BlockedError
	if err := w.run("a", gpu.DeviceKey{GPU: "GPU-1", MIG: "MIG-1-15"}); !errors.As(err, &blocked) {
		t.Errorf("a pod got a device that may be removed at any time: %v", err)
	}
	if _, err := os.Stat(filepath.Join(w.dir, JournalFile)); err != nil {
		t.Error(err)
	}
	w.answer()
	w.settle()
	w.reached(w.wants)
}

// TestHungScan checks that the wait for the inventory is bounded.
func TestHungScan(t *testing.T) {
	w := newWorld(t, t.TempDir(), 1)
	w.want("GPU-0", "off", "")
	w.gpuOf("GPU-0").enabled, w.gpuOf("GPU-0").pending = true, true
	w.scan()
	release := make(chan struct{})
	w.breaks = func(call string) error {
		if call == "scan" {
			w.clock.Step(scanWithin)
			<-release
			return errors.New("too late")
		}
		return nil
	}
	got := state(t, w.reconcile(), "GPU-0")
	close(release)
	if got.State != Waiting || !strings.Contains(got.Message, "the hardware does not respond: no answer within 30s") {
		t.Errorf("while a scan hangs: %+v", got)
	}
	w.breaks = nil
	w.settle()
	w.reached(w.wants)
}

// BenchmarkIdle measures a Reconcile while all GPUs are as wanted.
func BenchmarkIdle(b *testing.B) {
	w := newWorld(b, b.TempDir(), 8)
	for _, c := range w.gpus {
		w.be(c.id, "7x1g.10gb")
		w.want(c.id, "7x1g.10gb", "layout all-1g.10gb")
		for at := range 6 {
			if err := w.run(fmt.Sprint(c.id, at), gpu.DeviceKey{GPU: c.id,
				MIG: gpu.UUID(fmt.Sprintf("MIG-%d-1%d", c.index, at))}); err != nil {
				b.Fatal(err)
			}
		}
	}
	for b.Loop() {
		w.partition.Reconcile(w.ctx, w.wants)
	}
}
