package ledger

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

func following(d *Deps) { d.Follow = true }

// writes are all calls that a follower refuses.
var writes = map[string]func(l *Ledger) error{
	"Acquire for a claim": func(l *Ledger) error { return l.Acquire(claim("A"), []gpu.DeviceKey{key("G0")}) },
	"Acquire for maintenance": func(l *Ledger) error {
		return l.Acquire(gpu.Holder{Kind: gpu.HolderMaintenance, ID: "MIG"}, []gpu.DeviceKey{key("G5")})
	},
	"AcquireClaim":              func(l *Ledger) error { return l.AcquireClaim(train(on("G5"))) },
	"AcquireClaim of held ones": func(l *Ledger) error { return l.AcquireClaim(Claim{UID: "A", Devices: []ClaimDevice{on("G0")}}) },
	"AdoptAll":                  func(l *Ledger) error { _, err := l.AdoptAll([]Claim{train(on("G5"))}); return err },
	"Adopt":                     func(l *Ledger) error { return adoptOne(l, claim("A"), []gpu.DeviceKey{key("G0")}) },
	"Resolve":                   func(l *Ledger) error { return l.Resolve(claim("A"), anyKey("G1/0:4"), "M1") },
	"Unresolve":                 func(l *Ledger) error { return l.Unresolve(claim("A"), key("G1/M2"), gpu.Placement{Start: 4, Size: 2}) },
	"Release":                   func(l *Ledger) error { return l.Release(claim("A"), nil) },
	"Release of nothing":        func(l *Ledger) error { return l.Release(claim("Z"), nil) },
}

// TestOnlyTheWriterWrites: a follower refuses every change of claims and maintenance with its own error, and after a takeover
// the old writer does with the one that it has always had, whether or not it has noticed before. A pod's Allocate is granted by
// each of them.
func TestOnlyTheWriterWrites(t *testing.T) {
	for name, write := range writes {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger")
			writer := openTest(t, path, nil)
			follower := openTest(t, path, following)
			err := writer.AcquireClaim(Claim{UID: "A", Devices: []ClaimDevice{on("G0"), on("G1/0:4"), on("G1/M2")}})
			if err != nil {
				t.Fatal(err)
			}
			if err := follower.followFile(); err != nil {
				t.Fatal(err)
			}
			before, file := names(follower), content(t, path)
			if err := write(follower); !errors.Is(err, ErrFollows) {
				t.Errorf("the follower: %v", err)
			}
			if diff := cmp.Diff(before, names(follower)); diff != "" {
				t.Errorf("the follower changed (-want +got):\n%s", diff)
			}
			if err := follower.Acquire(pod, []gpu.DeviceKey{key("G9")}); err != nil {
				t.Errorf("an Allocate of the follower: %v", err)
			}
			if follower.Writes() || !follower.HasWriter() || !writer.HasWriter() || content(t, path) != file {
				t.Error("the follower is the writer, or wrote, or finds none")
			}
			for range 2 { // A takeover by the writer does nothing.
				if err := follower.TakeOver(); err != nil {
					t.Fatal(err)
				}
			}
			if epoch := follower.store.epoch.Load(); epoch != 2 {
				t.Errorf("the second writer has epoch %d", epoch)
			}
			if err := write(writer); !errors.Is(err, ErrSuperseded) {
				t.Errorf("the old writer: %v", err)
			}
			if writer.Writes() || !follower.Writes() || !writer.HasWriter() {
				t.Error("after the takeover the wrong one is the writer")
			}
			if name == "Adopt" || name == "AdoptAll" || name == "Release of nothing" {
				return
			}
			if err := write(follower); err != nil {
				t.Errorf("after the takeover: %v", err)
			}
		})
	}
}

func content(t *testing.T, path string) string {
	t.Helper()
	blob, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(blob)
}

// TestFollowerFollows: what the writer writes is in force in the follower with the next comparison, or with followFile, and its
// subscribers are signalled then and only then.
func TestFollowerFollows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	writer := openTest(t, path, nil)
	follower := openTest(t, path, following)
	sub := follower.Subscribe()
	defer sub.Close()
	<-sub.C()
	signalled := func() bool {
		select {
		case <-sub.C():
			return true
		default:
			return false
		}
	}
	refreshers := map[string]func() error{
		"followFile": follower.followFile,
		"Reconcile":  func() error { follower.Reconcile(follower.NewView()); return nil },
	}
	for name, refresh := range refreshers {
		changes := []func() error{
			func() error { return writer.AcquireClaim(train(on("G0"), on("G1/0:4"))) },
			func() error { return writer.Resolve(train().Holder(), anyKey("G1/0:4"), "M1") },
			func() error { return listed(ClaimPods{UID: "claim-1", Pods: []gpu.Pod{{UID: "P7"}}})(writer) },
			func() error { return writer.Release(train().Holder(), nil) },
		}
		for i, change := range changes {
			if err := change(); err != nil {
				t.Fatal(err)
			}
			if err := refresh(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(names(writer), names(follower)); diff != "" {
				t.Errorf("%s after change %d (-writer +follower):\n%s", name, i, diff)
			}
			if _, blocked := follower.BlockedBy("gpu", key("G0")); blocked != (i < 3) {
				t.Errorf("%s after change %d: G0 is blocked: %v", name, i, blocked)
			}
			if !signalled() {
				t.Errorf("%s after change %d signalled nobody", name, i)
			}
			if err := refresh(); err != nil || signalled() {
				t.Errorf("%s without a change: %v, or it signalled", name, err)
			}
		}
	}
}

// TestFollowerKeepsItsGrants: a grant to a pod that only the follower made survives what the writer writes, and the takeover.
func TestFollowerKeepsItsGrants(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	writer := openTest(t, path, nil)
	follower := openTest(t, path, following)
	if err := errors.Join(follower.Acquire(pod, []gpu.DeviceKey{key("G0")}), writer.Acquire(claim("A"), []gpu.DeviceKey{key("G1")}), follower.followFile()); err != nil {
		t.Fatal(err)
	}
	want := []string{"G0 Pod pending", "G1 Claim A"}
	if diff := cmp.Diff(want, names(follower)); diff != "" {
		t.Errorf("follower (-want +got):\n%s", diff)
	}
	if err := follower.TakeOver(); err != nil {
		t.Fatal(err)
	}
	check(t, follower, path, want...)
}

// TestFollowerWithABadFile: a follower leaves a file that it cannot read to the writer, says so, and follows again when the file
// is good. If it takes over, it keeps the file as the writer does.
func TestFollowerWithABadFile(t *testing.T) {
	for name, test := range map[string]struct{ content, code string }{
		"corrupt": {"half\n", "LEDGER_CORRUPT"},
		"newer":   {`{"format":"berth-ledger","version":9,"bootID":"boot1"}` + "\nx\nx\n", "LEDGER_VERSION"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger")
			writer := openTest(t, path, nil)
			if err := writer.Acquire(claim("A"), []gpu.DeviceKey{key("G0")}); err != nil {
				t.Fatal(err)
			}
			follower := openTest(t, path, following)
			spoil := func() {
				if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			spoil()
			if err := follower.followFile(); err != nil {
				t.Fatal(err)
			}
			faults := follower.Faults()
			if len(faults) != 1 || faults[0].Code != test.code || !strings.Contains(faults[0].Message, "It is left to the agent that writes it.") {
				t.Errorf("faults are %v", faults)
			}
			if content(t, path) != test.content || !slices.Equal(names(follower), []string{"G0 Claim A"}) {
				t.Errorf("the follower has %v, the file %q", names(follower), content(t, path))
			}
			if err := errors.Join(writer.Acquire(claim("B"), []gpu.DeviceKey{key("G1")}), follower.followFile()); err != nil {
				t.Fatal(err)
			}
			if len(follower.Faults()) > 0 || len(follower.Holdings()) != 2 {
				t.Errorf("with a good file again: %v, %v", follower.Faults(), names(follower))
			}
			spoil()
			if err := follower.TakeOver(); err != nil {
				t.Fatal(err)
			}
			if bak, err := os.ReadFile(path + ".bak"); err != nil || string(bak) != test.content {
				t.Errorf("kept %q (%v)", bak, err)
			}
			check(t, follower, path, "G0 Claim A", "G1 Claim B")
		})
	}
}

// TestNoWriter: a follower finds that nobody writes: nobody ever did, or the writer has ended. A follower that ends changes
// nothing.
func TestNoWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	follower := openTest(t, path, following)
	if follower.HasWriter() {
		t.Error("there is a writer although nobody took over")
	}
	writer := openTest(t, path, nil)
	if !follower.HasWriter() {
		t.Error("there is no writer")
	}
	other := openTest(t, path, following)
	other.Close()
	if !follower.HasWriter() {
		t.Error("there is no writer after another follower ended")
	}
	writer.Close()
	if follower.HasWriter() {
		t.Error("there is a writer after its end")
	}
	if err := follower.TakeOver(); err != nil || !follower.HasWriter() {
		t.Errorf("after the takeover there is none (%v)", err)
	}
}

// TestKilledInATakeover kills the new agent at each step of its takeover: the old one prepares again at once, from what is in the
// file, and so does a third agent.
func TestKilledInATakeover(t *testing.T) {
	for _, step := range []Step{StepLead, StepLock, StepCreate, StepTorn, StepClose, StepRename} {
		t.Run(string(step), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger")
			old := openTest(t, path, nil)
			if err := old.AcquireClaim(train(on("G0"), on("G1/0:4"))); err != nil {
				t.Fatal(err)
			}
			died, reached := errors.New("died"), false
			next, err := Open(Deps{Path: path, BootID: "boot1", Log: quiet(), Follow: true, Fault: func(s Step) error {
				if s == step {
					reached = true
					return died
				}
				return nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			if err := next.TakeOver(); !reached || errors.Is(err, died) != (step == StepLead) {
				t.Fatalf("the takeover ended with %v, reached %v", err, reached)
			}
			if err := old.AcquireClaim(train(on("G0"))); !errors.Is(err, ErrSuperseded) {
				t.Errorf("while the new agent lives, the old one got %v", err)
			}
			next.store.close() // as the death of the process does
			if err := old.Resolve(train().Holder(), anyKey("G1/0:4"), "M1"); err != nil {
				t.Errorf("after its death the old one got %v", err)
			}
			want := []string{"G0 Claim claim-1 (ml/train) pods=P1,P2", "G1/M1 Claim claim-1 (ml/train) pods=P1,P2"}
			check(t, old, path, want...)
			third := openTest(t, path, nil)
			if diff := cmp.Diff(want, names(third)); diff != "" || len(third.Faults()) > 0 {
				t.Errorf("the third agent has %v (-want +got):\n%s", third.Faults(), diff)
			}
		})
	}
}

// agents are two agents over one file, for TestTwoLedgers.
type agents struct {
	t       *rapid.T
	path    string
	ledgers [2]*Ledger
	kill    [2]Step // at which the agent dies in its next write
	// holds are those that a call has confirmed, or that the file had after an agent's death.
	holds map[gpu.DeviceKey]string
}

var errDied = errors.New("died")

func (a *agents) open(i int, follow bool) {
	a.kill[i] = ""
	l, err := Open(Deps{Path: a.path, BootID: "boot", Log: quiet(), Clock: clocktesting.NewFakePassiveClock(start), Follow: follow, Placement: scanned,
		Fault: func(s Step) error {
			if s == a.kill[i] {
				return errDied
			}
			return nil
		}})
	if err != nil {
		a.t.Fatal(err)
	}
	a.ledgers[i] = l
}

// inFile reads what is on disk.
func (a *agents) inFile() map[gpu.DeviceKey]string {
	blob, err := os.ReadFile(a.path)
	if errors.Is(err, os.ErrNotExist) {
		return map[gpu.DeviceKey]string{}
	}
	if err != nil {
		a.t.Fatal(err)
	}
	holdings, err := parseFile(blob, "boot")
	if err != nil {
		a.t.Fatal(err)
	}
	found := map[gpu.DeviceKey]string{}
	for _, h := range holdings {
		found[h.Key] = h.Holder.ID
	}
	return found
}

// do makes a change by an agent. wanted is the state after it. An agent that dies leaves the state from before or after, of
// which the file decides.
func (a *agents) do(i int, wanted map[gpu.DeviceKey]string, call func(*Ledger) error) {
	l := a.ledgers[i]
	err := call(l)
	switch {
	case errors.Is(err, errDied):
		l.store.close()
		if now := a.inFile(); !equalHolds(now, a.holds) && !equalHolds(now, wanted) {
			a.t.Fatalf("after a death in a change from %v to %v the file has %v", a.holds, wanted, now)
		}
		a.holds = a.inFile()
		a.open(i, rapid.Bool().Draw(a.t, "follow"))
	case err == nil:
		if !l.Writes() {
			a.t.Fatalf("agent %d changed something, and is not the writer", i)
		}
		a.holds = wanted
	case !errors.Is(err, ErrFollows) && !errors.Is(err, ErrSuperseded) && l.Writes():
		if _, blocked := errors.AsType[*BlockedError](err); !blocked {
			a.t.Fatalf("agent %d: %v", i, err)
		}
	}
	a.kill[i] = ""
}

func equalHolds(x, y map[gpu.DeviceKey]string) bool { return cmp.Equal(x, y) }

// TestTwoLedgers runs two agents over one file in random steps: they take over, end, die at each step of a write, and prepare and
// release claims. The file always has exactly what the calls have confirmed, never two claims on one slice, and at most one of
// the agents writes.
func TestTwoLedgers(t *testing.T) {
	dir, run := t.TempDir(), 0
	var keys []gpu.DeviceKey
	for _, text := range []string{"G0", "G0#1", "G0/M1", "G0/0:4", "G0/4:2", "G0/3:2", "G1"} {
		keys = append(keys, anyKey(text))
	}
	steps := []Step{"", "", "", StepLock, StepCreate, StepTorn, StepClose, StepRename}
	rapid.Check(t, func(t *rapid.T) {
		run++
		a := &agents{t: t, path: filepath.Join(dir, fmt.Sprint(run)), holds: map[gpu.DeviceKey]string{}}
		a.open(0, false)
		a.open(1, true)
		defer func() { a.ledgers[0].Close(); a.ledgers[1].Close() }()
		agent := func() int { return rapid.IntRange(0, 1).Draw(t, "agent") }
		id := func() string { return rapid.SampledFrom([]string{"A", "B", "C"}).Draw(t, "claim") }
		t.Repeat(map[string]func(*rapid.T){
			"acquire": func(t *rapid.T) {
				i, by, some := agent(), id(), rapid.SliceOfN(rapid.SampledFrom(keys), 1, 2).Draw(t, "keys")
				a.kill[i] = rapid.SampledFrom(steps).Draw(t, "killed at")
				wanted := maps.Clone(a.holds)
				var devices []ClaimDevice
				for _, k := range some {
					wanted[k] = by
					devices = append(devices, ClaimDevice{Key: k})
				}
				a.do(i, wanted, func(l *Ledger) error { return l.AcquireClaim(Claim{UID: by, Devices: devices}) })
			},
			"release": func(t *rapid.T) {
				i, by := agent(), id()
				wanted := map[gpu.DeviceKey]string{}
				for k, holder := range a.holds {
					if holder != by {
						wanted[k] = holder
					}
				}
				a.do(i, wanted, func(l *Ledger) error { return l.Release(claim(by), nil) })
			},
			"resolve": func(t *rapid.T) {
				i, by, from, to := agent(), a.holds[anyKey("G0/0:4")], anyKey("G0/0:4"), key("G0/M1")
				if by == "" || a.holds[to] != "" {
					t.Skip("not held")
				}
				a.kill[i] = rapid.SampledFrom(steps).Draw(t, "killed at")
				wanted := map[gpu.DeviceKey]string{to: by}
				for k, holder := range a.holds {
					if k != from {
						wanted[k] = holder
					}
				}
				a.do(i, wanted, func(l *Ledger) error { return l.Resolve(claim(by), from, "M1") })
			},
			"take over": func(t *rapid.T) {
				i := agent()
				a.kill[i] = rapid.SampledFrom([]Step{"", "", StepLead}).Draw(t, "killed at")
				a.do(i, a.holds, func(l *Ledger) error { return l.TakeOver() })
			},
			"end": func(t *rapid.T) {
				i := agent()
				a.ledgers[i].Close()
				a.open(i, rapid.Bool().Draw(t, "follow"))
			},
			"compare": func(*rapid.T) { l := a.ledgers[agent()]; l.Reconcile(l.NewView()) },
			"":        a.check,
		})
	})
}

func (a *agents) check(t *rapid.T) {
	now := a.inFile()
	if !equalHolds(now, a.holds) {
		t.Fatalf("the file has %v, and confirmed are %v", now, a.holds)
	}
	w := &placedTwin{held: now, at: map[gpu.DeviceKey]gpu.Placement{}}
	for k, by := range now {
		if !w.free(by, k) {
			t.Fatalf("%s of %s overlaps with another claim's: %v", k, by, now)
		}
	}
	if a.ledgers[0].Writes() && a.ledgers[1].Writes() {
		// The older one has not tried to write since it was superseded.
		older := slices.MinFunc(a.ledgers[:], func(x, y *Ledger) int { return int(x.store.epoch.Load() - y.store.epoch.Load()) })
		if err := older.store.confirm(); !errors.Is(err, ErrSuperseded) {
			t.Fatalf("two agents write: %v", err)
		}
	}
}

// TestWrites: an agent that was superseded is not the writer although it has changed nothing since, and is again, with a signal, when the
// other agent has ended.
func TestWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	first := openTest(t, path, nil)
	if !first.Writes() {
		t.Error("the only agent does not write")
	}
	second := openTest(t, path, func(d *Deps) { d.Follow = true })
	if !first.Writes() || second.Writes() {
		t.Errorf("beside a follower: %v %v", first.Writes(), second.Writes())
	}
	if err := second.TakeOver(); err != nil {
		t.Fatal(err)
	}
	if first.Writes() || !second.Writes() {
		t.Errorf("after the second has taken over: %v %v", first.Writes(), second.Writes())
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	changed := first.Subscribe()
	defer changed.Close()
	<-changed.C() // The first signal is pending.
	first.Reconcile(first.NewView())
	if !first.Writes() {
		t.Error("it does not write again")
	}
	select {
	case <-changed.C():
	case <-time.After(10 * time.Second):
		t.Error("no signal that it writes again")
	}
}
